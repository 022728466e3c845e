"""The wire: what the agent and the app agree on. The only module that both sides import.

Every message is two ZeroMQ frames, ``[topic, payload]``; a payload is one msgpack map with the keys named here.
A reader ignores keys that it does not know, so fields may be added under one schema number; a field that changes
its meaning needs a new number. Times are Unix seconds, durations seconds, sizes bytes.

======== ==================================================================================================
topic    payload
======== ==================================================================================================
hello    who this is; sent at the start, on any change, and as the first answer to a history request
steps    ``records``: optimizer steps in order of ``seq``, each a map (see ``RECORD_FIELDS``)
beat     once a second: state, newest ``seq``, the agent's own cost, memory, notes
end      closes an answer to a history request; ``seq`` is the newest record at that moment
======== ==================================================================================================
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

SCHEMA = 1

HELLO = b"hello"
STEPS = b"steps"
BEAT = b"beat"
END = b"end"
TOPICS = (HELLO, STEPS, BEAT)

HISTORY = b"history"  # request on the ROUTER: [HISTORY, msgpack {"after": seq}] -> hello, beat, steps…, end

MAX_PAYLOAD = 1 << 20  # a reader drops anything larger; a writer splits below it
MAX_RECORDS = 512  # records in one steps payload
MAX_NAME = 200  # characters of any name
MAX_LAYERS = 512
MAX_EXPERTS = 4096
MAX_PATH = 107  # bytes of a Unix socket's path, less the closing zero

BEAT_INTERVAL = 1.0  # seconds
SEND_INTERVAL = 0.1  # seconds; steps wait at most this long for company

RECORD_FIELDS = (
    "seq",  # int: numbers records from 1 without a gap; a gap seen by a reader is a loss
    "step",  # int: optimizer steps so far, from the optimizer's own count where it has one
    "time",  # float: when the step ended
    "duration",  # float: since the previous step ended; absent for the first
    "loss",  # float: sum of the roots of backward(), loss scale undone
    "grad_norm",  # float: the gradient's L2 norm before clipping
    "learning_rate",  # float: of the first parameter group
    "optimizer",  # int: which of hello's "optimizers" closed the step
    "samples",  # int: sequences or images in this process, all micro-batches
    "tokens",  # int: tokens in this process, padding included
    "padding",  # int: of these, padding
    "micro",  # int: samples in a micro-batch
    "accumulation",  # int: backward passes in the step
    "sequence_length",  # int
    "data_wait",  # float, seconds in this step, as are the next four
    "forward",
    "backward",
    "optimizer_time",
    "communication",
    "cpu_time",  # float, seconds: what the training thread itself ran on a core in this step
    "skipped",  # bool: the gradients were thrown away (loss scaler, zero_grad before step)
    "moe",  # list of maps, one a router that was counted in this step (see MOE_FIELDS)
    "noise",  # map, if the gradient noise was measured in this step (see NOISE_FIELDS)
    "user",  # map name -> float, from bsmon_agent.log()
)

MODEL_FIELDS = (  # of hello's "model", a map
    "name",  # str: the class of what the user wrote
    "parameters",  # int: of the whole model, as are "trainable" and "active"
    "trainable",
    "active",  # int: that a token meets, k of E experts
    "parameter_bytes",  # int: kept in this process, as are the next two
    "gradient_bytes",
    "optimizer_bytes",
    "matmul",  # int: of "active", those in a product: no embedding that is only looked up
    "matmul_frozen",  # int: of these, frozen, but with a backward through them
    "matmul_forward_only",  # int: of these, frozen, and before all that is trained
    "matmul_recomputed",  # int: of these, computed again in the backward; absent where no checkpointing was seen
    "recomputed_layers",  # int: attention layers that are computed again
    "attention_layers",  # int; absent where the attention is not known, as are the next three
    "attention_width",  # int: heads x head size of a layer, the mean of queries' and values'
    "attention_window",  # int: keys that a query meets at most, in ...
    "windowed_layers",  # int: ... so many of the layers
    "compute_dtype",  # str, of the products: bfloat16, float16, float32, tf32, float8; absent where it is not known
    "devices",  # int: that this process computes on
)

MOE_FIELDS = (
    "layer",  # int: index into hello's "routers"
    "tokens",  # int: tokens routed, padding included
    "assignments",  # int: tokens x k before any drop
    "assigned",  # [E] int, before any drop; absent where the library shows only what was kept
    "kept",  # [E] int, what experts really computed; absent where nothing can be dropped
    "padding",  # [E] int: of "assigned", padding; absent where it is not known
    "dropped",  # int: assignments
    "fully_dropped",  # int: tokens that lost every expert by capacity
    "policy_skipped",  # int: assignments left out by the router's own policy, not by capacity
    "entropy",  # float: mean router entropy over the tokens, nats
    "probability",  # [E] float: mean router probability
    "calls",  # int: router calls counted, one a micro-batch
    "groups",  # int: how often an expert's capacity applied afresh: calls, or sequences
)

NOISE_FIELDS = (
    "total",  # float: |g|^2
    "parts",  # [R] float: |h_r|^2, contributions of this process that add up to g, those of its peers left out
    "weights",  # [R] float: w_r; absent when equal
    "estimator",  # str: accumulation, ranks, half_split
    "coverage",  # float: share of the parameters that was measured
    "processes",  # int: processes whose data is in g; absent: 1
    "residual",  # float: |g - sum h_r|^2 / |g|^2 over a few elements; absent where peers hold the rest
)


def runtime_directories() -> list[Path]:
    """Where agents may have put their sockets, in the order in which an agent tries them."""
    uid = os.getuid()
    candidates = [os.environ.get("BSMON_DIR")]
    if not candidates[0]:
        xdg = os.environ.get("XDG_RUNTIME_DIR")
        candidates = [xdg and f"{xdg}/bsmon"]
    candidates += [f"/run/user/{uid}/bsmon", f"/tmp/bsmon-{uid}"]
    return list(dict.fromkeys(Path(path) for path in candidates if path))


def private(directory: Path) -> str | None:
    """Why this directory must not be used, or None if it is ours alone (a real directory, our uid, mode 0700)."""
    try:
        found = os.lstat(directory)
    except OSError as error:
        return error.strerror or "it cannot be read"
    if not stat.S_ISDIR(found.st_mode):
        return "it is not a directory"
    if found.st_uid != os.getuid():
        return f"it belongs to uid {found.st_uid}"
    if stat.S_IMODE(found.st_mode) & 0o077:
        return f"others may enter it (mode {stat.S_IMODE(found.st_mode):04o}); chmod 700 {directory}"
    return None


def process_start(pid: int) -> int | None:
    """Clock ticks from boot to the start of a process, or None if there is none: tells a reused pid apart."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        fields = line.rpartition(")")[2].split()
        return None if fields[0] == "Z" else int(fields[19])  # a zombie is over, though not yet waited for
    except (OSError, ValueError, IndexError):
        return None
