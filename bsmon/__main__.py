"""``python -m bsmon``."""

import sys

from bsmon.cli import main

sys.exit(main())
