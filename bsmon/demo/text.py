"""Python's own reference text, which every CPython carries (``pydoc_data.topics``), as characters to learn from."""

from __future__ import annotations

from pydoc_data.topics import topics

import torch
from torch import Tensor
from torch.utils.data import Dataset

TEXT = "\n\n".join(topics[title] for title in sorted(topics))
ALPHABET = sorted(set(TEXT))


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Stretches of ``length`` characters [length], each with the characters that follow them [length]."""

    def __init__(self, length: int) -> None:
        code = {character: number for number, character in enumerate(ALPHABET)}
        self.codes = torch.tensor([code[character] for character in TEXT])
        self.length = length

    def __len__(self) -> int:
        return (len(self.codes) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * self.length
        window = self.codes[start : start + self.length + 1]
        return window[:-1], window[1:]
