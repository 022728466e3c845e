"""Trains a dense character transformer on Python's reference text: gradient accumulation, clipping, AdamW."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from bsmon.demo.options import Pace, parse
from bsmon.demo.text import ALPHABET, Windows
from bsmon.demo.transformer import Transformer

LENGTH, WIDTH, DEPTH, HEADS = 64, 64, 2, 4
MICRO_BATCH, ACCUMULATION = 8, 4


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


def main() -> None:
    options = parse(__doc__)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(Windows(LENGTH), batch_size=MICRO_BATCH, shuffle=True, drop_last=True)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    model = Transformer(len(ALPHABET), LENGTH, WIDTH, DEPTH, HEADS, mlp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    warmup = min(0.1, 100 / options.steps)  # of all steps
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=options.steps, pct_start=warmup)
    pace = Pace(options.share)

    for step in range(1, options.steps + 1):
        total = 0.0
        for characters, following in itertools.islice(batches, ACCUMULATION):
            logits = model(characters)
            loss = functional.cross_entropy(logits.flatten(0, 1), following.flatten()) / ACCUMULATION
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step == 1 or step % 50 == 0:
            print(f"step {step}: loss {total:.3f}", flush=True)
        pace.rest()


if __name__ == "__main__":
    main()
