"""What is known: the fleet of jobs, joined from their ranks, in flat memory."""

from bsmon.store.buckets import Bucket
from bsmon.store.fleet import Fleet

__all__ = ["Bucket", "Fleet"]
