"""When a record closes: at every optimizer step, or, with several optimizers, when each has had its turn."""

from __future__ import annotations

from typing import NamedTuple

PATIENCE = 8  # repeats of the others after which an optimizer that no longer steps is left out
LONGEST = 64  # repeats in one cycle that are still taken for one cycle


class Closed(NamedTuple):
    """A record is complete. ``counted``: it is one more step; ``skipped``: some optimizer threw its gradients away."""

    counted: bool
    skipped: bool


class Cycle:
    """Which optimizers step in turn (GAN, actor and critic, Muon beside AdamW), told by small numbers.

    One optimizer: every step closes. Several: the record closes when the last of the set has stepped. The set is
    learned: an optimizer that joins after a backward closes a record of its own that is not counted, one that joins
    without a backward belongs to the step just closed. One that stays away is expelled.
    """

    def __init__(self) -> None:
        self.members: set[int] = set()
        self.count = 0
        self._turns: dict[int, int] = {}  # steps of each optimizer in the open record
        self._away: dict[int, int] = {}  # expelled optimizer -> steps of others since
        self._longest = 1
        self._backwards = 0
        self._stepped = False
        self._skipped = False

    def backward(self) -> None:
        self._backwards += 1

    def step(self, key: int, skipped: bool = False) -> Closed | None:
        """An optimizer stepped, or its gradients were thrown away. Says whether that completes the record."""
        joins = key not in self.members
        self._return(key)
        self._skipped |= skipped
        self._stepped |= not skipped
        if joins and len(self.members) > 1 and not self._turns:
            if self._backwards:
                return self._close(counted=False)
            self._reset()
            return None
        self._turns[key] = self._turns.get(key, 0) + 1
        return self._complete()

    def _return(self, key: int) -> None:
        """Note a member's presence; how long it was away tells how many repeats a cycle may have."""
        self.members.add(key)
        if key in self._away:
            self._longest = min(LONGEST, max(self._longest, self._away.pop(key)))
        for other in self._away:
            self._away[other] += 1

    def _complete(self) -> Closed | None:
        missing = self.members - self._turns.keys()
        repeats = max(self._turns.values())
        if not missing:
            self._longest = min(LONGEST, max(self._longest, repeats))
        elif repeats <= max(PATIENCE, 2 * self._longest):
            return None
        self.members -= missing
        self._away.update(dict.fromkeys(missing, repeats))
        return self._close(counted=self._stepped)

    def _close(self, counted: bool) -> Closed:
        closed = Closed(counted, self._skipped)
        self.count += counted
        self._reset()
        return closed

    def _reset(self) -> None:
        self._turns.clear()
        self._backwards = 0
        self._stepped = self._skipped = False
