"""A job's FLOPs per token and what share of its devices' peak they use. What is not known is said, never guessed."""

from __future__ import annotations

from collections.abc import Sequence

from bsmon.estimators import flops
from bsmon.estimators.peaks import Peak, device_peak
from bsmon.model import Hello, Job, ModelInfo
from bsmon.store.reasons import Reasons

NOT_COUNTED = "its agent did not count what a token needs of this model"
NOT_TOKENS = "FLOPs are counted per token, and no tokens were found in the inputs"
SHARED_OUT = "its processes hold parts of one model, and how they share a token's work is not known"
NO_RECOMPUTE = "no activation checkpointing was seen in the model's modules"
NO_ATTENTION = "the model's attention is not known"


def fill(job: Job, hellos: Sequence[Hello], why: Reasons) -> None:
    """After the rates: tokens a second, data-parallel size and sequence length must be there."""
    lead = hellos[0]
    _count(job, lead, why)
    peak = _peak(hellos, why)
    job.mfu.peak_flops, job.mfu.peak_source = peak.nominal, peak.source
    if peak.nominal is None:
        why.say("mfu", why.told("mfu.peak_flops"))
    elif job.model.flops_per_token is None:
        why.say("mfu", "it needs the FLOPs per token: " + why.told("model.flops_per_token"))
    elif job.tokens_per_s is None:
        for name in ("value", "achievable", "causal", "hfu"):
            why.say(f"mfu.{name}", why.told("tokens_per_s"))
    else:
        _shares(job, lead.model, job.tokens_per_s / (peak.nominal * job.world_size), peak, why)


def _count(job: Job, lead: Hello, why: Reasons) -> None:
    """FLOPs per token, by the fullest convention that can be followed."""
    model, length = lead.model, job.batch.sequence_length
    reason = None
    if model.matmul is None:
        unread = NOT_COUNTED if model.parameters is not None else why.told("model")
        reason = lead.unavailable.get("model.flops_per_token", unread)
    elif job.token_source is None:
        reason = NOT_TOKENS
    elif job.batch.data_parallel != job.world_size:
        reason = SHARED_OUT
    if reason is not None:
        why.say("model.flops_per_token", reason)
        why.say("model.convention", reason)
        return
    by = flops.convention(model, length)
    job.model.flops_per_token = flops.per_token(model, length, by)
    job.model.convention = by


def _peak(hellos: Sequence[Hello], why: Reasons) -> Peak:
    """Of one of the job's devices, which must all be the same."""
    device, dtype = hellos[0].device, hellos[0].model.compute_dtype
    peak = Peak()
    if device.type == "cpu":
        reason = "no peak is known for a CPU"
    elif len({(hello.device.name, hello.model.compute_dtype) for hello in hellos}) > 1:
        reason = "its processes compute on different devices or in different dtypes"
    elif (hellos[0].model.devices or 1) > 1:
        reason = "one process computes on several devices"
    elif device.name is None or dtype is None:
        reason = "the device's name is not known" if device.name is None else "the dtype of its products is not known"
    else:
        peak = device_peak(device.name, dtype)
        reason = f"no peak is known for {dtype} on a {device.name}"
    if peak.nominal is None:
        why.say("mfu.peak_flops", reason)
        why.say("mfu.peak_source", reason)
    return peak


def _shares(job: Job, model: ModelInfo, per_flop: float, peak: Peak, why: Reasons) -> None:
    """``per_flop``: tokens a second over the peak of all devices; times FLOPs per token it is a share."""
    mfu, length, by = job.mfu, job.batch.sequence_length, flops.convention(model, job.batch.sequence_length)
    per_token = job.model.flops_per_token or 0.0
    causal = flops.per_token(model, length, "causal")
    if (causal or per_token) * per_flop > max(1.0, peak.achievable or 1.0):
        why.say("mfu", f"more than the peak in {model.compute_dtype}: its products run in another dtype than was seen")
        return
    mfu.value = per_token * per_flop
    if peak.achievable:
        mfu.achievable = mfu.value / peak.achievable
    else:
        why.say("mfu.achievable", "what matmuls reach on this device, in this dtype, is not in the table")
    if causal is not None:
        mfu.causal = causal * per_flop
    else:
        why.say("mfu.causal", NO_ATTENTION)
    again = flops.recomputed_per_token(model, length, by)
    if again is not None:
        mfu.hfu = (per_token + again) * per_flop
    else:
        why.say("mfu.hfu", NO_RECOMPUTE)
