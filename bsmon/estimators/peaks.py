"""What a GPU can reach: nominal dense peaks and what matmuls were measured to reach, each with its source.

The table is ``gpu_peaks.json``. A GPU that is not in it, or that the name leaves open, is unknown, never a default.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from importlib.resources import files

import msgspec
from msgspec import Struct

VENDOR = re.compile(r"\b(NVIDIA|Tesla|GeForce|Quadro)\b", re.IGNORECASE)


COLUMNS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32_vector", "tf32": "tf32", "float8": "fp8"}


class Peak(Struct, frozen=True):
    """Dense FLOP/s; ``achievable`` is the share of it that matmuls reach, measured in half precision alone."""

    nominal: float | None = None
    achievable: float | None = None
    source: str | None = None


class _Row(Struct, frozen=True):
    key: str
    match_regex: str
    dense_tflops: dict[str, float | None]
    achievable_over_nominal: float | None = None
    confidence: str = "unknown"

    @property
    def half(self) -> float | None:
        """bf16 where the GPU has it, else fp16, in FLOP/s."""
        tflops = self.dense_tflops.get("bf16") or self.dense_tflops.get("fp16")
        return tflops * 1e12 if tflops else None


class _Table(Struct, frozen=True):
    rows: list[_Row]


@cache
def _rows() -> list[_Row]:
    text = files("bsmon.estimators").joinpath("gpu_peaks.json").read_bytes()
    return msgspec.json.decode(text, type=_Table).rows


@lru_cache(maxsize=256)
def peak_of(name: str) -> Peak:
    """The peaks of a GPU as its driver names it, or as people do: then only what all models of that name share."""
    exact = _exactly(name)
    rows = exact if len(exact) == 1 else _family(_short(name))
    nominal = {row.half for row in rows}
    shares = [row.achievable_over_nominal for row in rows if row.achievable_over_nominal]
    return Peak(
        nominal=nominal.pop() if len(nominal) == 1 else None,
        achievable=max(shares) if shares else None,
    )


@lru_cache(maxsize=256)
def device_peak(name: str, dtype: str) -> Peak:
    """The peak of the one GPU whose driver says this name, for products in this dtype of torch's (or "tf32")."""
    if re.search(r"\bMIG\b", name):
        return Peak()  # a slice of a GPU that goes by the name of the whole
    rows = _exactly(name)
    column = COLUMNS.get(dtype)
    tflops = rows[0].dense_tflops.get(column) if len(rows) == 1 and column else None
    if not tflops:
        return Peak()
    row = rows[0]
    return Peak(
        nominal=tflops * 1e12,
        achievable=row.achievable_over_nominal if column in ("bf16", "fp16") else None,
        source=f"{row.key}, {column} dense, nominal, one device (confidence: {row.confidence})",
    )


def _exactly(name: str) -> list[_Row]:
    short = _short(name)
    return [row for row in _rows() if re.search(row.match_regex, short, re.IGNORECASE)]


def _short(name: str) -> str:
    return " ".join(VENDOR.sub("", name[:100]).split())


def _family(name: str) -> list[_Row]:
    """Rows of that model (the first word with a digit) and as many other words: "A100 80GB" is any with 80 GB."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    number = next((word for word in words if any(map(str.isdigit, word))), "")
    model = [row for row in _rows() if _has(row, number)]
    for word in words:
        model = [row for row in model if _has(row, word)] or model
    return model


def _has(row: _Row, word: str) -> bool:
    return word in row.key.split("-")
