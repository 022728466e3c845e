"""The golden frames of schema 1: what an agent sends, fixed for ever, as files beside this one.

``python tests/wire/golden.py`` writes frames that are new. It refuses to change one that is there: a frame that comes
out otherwise means that agents already running speak something else, and needs a new schema number.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

from bsmon_agent import packing, wire

FOLDER = Path(__file__).parent / "schema1"
SESSION = "00112233445566778899aabbccddeeff"

HELLO: dict[str, Any] = {
    "schema": 1,
    "session": SESSION,
    "pid": 4242,
    "pid_start": 123456789,
    "host": "node7",
    "name": "pretrain",
    "job": "pretrain-1a2b3c",
    "started": 1764500000.25,
    "time": 1764500001.5,
    "rank": 1,
    "local_rank": 1,
    "world_size": 2,
    "data_parallel": 2,
    "launcher": "torchrun",
    "command": ["python", "pretrain.py", "--lr", "3e-4"],
    "python": "3.11.7",
    "torch": "2.13.0",
    "agent": "0.1.0",
    "device": {"type": "cuda", "index": 1, "name": "NVIDIA H100", "uuid": "GPU-0"},
    "total_steps": 10000,
    "optimizers": ["AdamW"],
    "model": {
        "name": "Transformer",
        "parameters": 125000000,
        "trainable": 124000000,
        "active": 60000000,
        "parameter_bytes": 250000000,
        "gradient_bytes": 250000000,
        "optimizer_bytes": 1000000000,
    },
    "token_source": "input_ids",
    "loss_source": "backward",
    "grad_norm_source": "clip_grad_norm_",
    "routers": [
        {
            "name": "layers.0.mlp.router",
            "router": "standard",
            "experts": 8,
            "top_k": 2,
            "capacity_factor": 1.25,
            "capacity": 320,
            "dropless": False,
            "tag": "exact",
            "calls": 4,
        },
        {"name": "layers.1.mlp.router", "router": "unheard of", "tag": "unsupported", "reason": "no counts"},
    ],
    "unavailable": {"phases_s.data_wait": "no iterator was seen"},
}

RECORD: dict[str, Any] = {
    "seq": 17,
    "step": 1017,
    "time": 1764500042.125,
    "duration": 0.25,
    "loss": 2.5,
    "grad_norm": 0.75,
    "learning_rate": 0.0003,
    "optimizer": 0,
    "samples": 64,
    "tokens": 65536,
    "padding": 128,
    "micro": 16,
    "accumulation": 4,
    "sequence_length": 1024,
    "data_wait": 0.015625,
    "forward": 0.0625,
    "backward": 0.125,
    "optimizer_time": 0.03125,
    "communication": 0.0078125,
    "cpu_time": 0.375,
    "skipped": False,
    "moe": [
        {
            "layer": 0,
            "tokens": 65536,
            "assignments": 131072,
            "assigned": [16000, 17000, 16384, 16384, 16384, 16384, 16384, 16152],
            "kept": [16000, 16384, 16384, 16384, 16384, 16384, 16384, 16152],
            "padding": [16, 16, 16, 16, 16, 16, 16, 16],
            "dropped": 616,
            "fully_dropped": 2,
            "policy_skipped": 0,
            "entropy": 1.5,
            "probability": [0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125],
            "calls": 4,
            "groups": 4,
        }
    ],
    "noise": {
        "total": 0.5625,
        "parts": [0.25, 0.125, 0.125, 0.25],
        "weights": [0.25, 0.25, 0.25, 0.25],
        "estimator": "accumulation",
        "coverage": 1.0,
        "processes": 2,
        "residual": 0.0,
    },
    "user": {"reward": 0.5},
}

NOT_FINITE = {"seq": 18, "step": 1018, "time": 1764500042.375, "loss": math.nan, "grad_norm": math.inf, "skipped": True}
SHORT = [{"seq": seq, "step": seq, "time": 1764500000.0 + seq} for seq in range(1, 513)]

BEAT: dict[str, Any] = {
    "schema": 1,
    "session": SESSION,
    "time": 1764500043.0,
    "seq": 18,
    "state": "live",
    "exit_code": None,
    "dropped_records": 3,
    "overhead": {"us_per_step": 21.5, "share_of_step": 0.0001, "budget": 2500.0, "sampling": {"router": 0.5}},
    "memory": {"allocated": 1, "reserved": 2, "peak": 3, "device_total": 4, "process_rss": 5},
    "notes": ["noise: off, an exception (RuntimeError)"],
}

FINISHED: dict[str, Any] = {**BEAT, "state": "finished", "exit_code": 137, "notes": []}
END = {"schema": 1, "session": SESSION, "seq": 18}


def _packed(value: dict[str, Any]) -> bytes:
    payload, left_out = packing.fields(value)
    assert left_out == []
    return payload


def _steps(*records: dict[str, Any]) -> bytes:
    [payload] = packing.steps(SESSION, map(_packed, records))
    return payload


def frames() -> dict[str, tuple[bytes, bytes]]:
    """File name -> topic and payload, as the agent of today makes them."""
    return {
        "hello": (wire.HELLO, _packed(HELLO)),
        "steps": (wire.STEPS, _steps(RECORD)),
        "steps_not_finite": (wire.STEPS, _steps(RECORD, NOT_FINITE)),
        "steps_many": (wire.STEPS, _steps(*SHORT)),
        "beat": (wire.BEAT, _packed(BEAT)),
        "beat_finished": (wire.BEAT, _packed(FINISHED)),
        "end": (wire.END, _packed(END)),
        "request": (wire.HISTORY, _packed({"after": 17})),
    }


def stored(name: str) -> bytes:
    return (FOLDER / f"{name}.msgpack").read_bytes()


def main() -> int:
    changed = 0
    for name, (_, payload) in frames().items():
        path = FOLDER / f"{name}.msgpack"
        if not path.exists():
            path.write_bytes(payload)
            print(f"{path.name}: written, {len(payload)} bytes")
        elif path.read_bytes() != payload:
            print(f"{path.name}: differs from what is stored; a change of meaning needs a new schema", file=sys.stderr)
            changed = 1
    return changed


if __name__ == "__main__":
    raise SystemExit(main())
