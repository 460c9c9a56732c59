"""Where an interrupted campaign goes on: one file for each campaign and database."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

import msgspec

from prove.campaign import Outcome, merge


class Checkpoint(msgspec.Struct, kw_only=True):
    """A campaign that has not ended yet. `slices` of its slices are done."""

    commit: str
    seed: int
    size: int
    slices: int = 0
    seconds: float = 0.0
    outcome: Outcome = msgspec.field(default_factory=lambda: Outcome({}))

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """Return the stored checkpoint; None if there is none that can be read."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def save(self, path: Path) -> None:
        """Replace the file in one step, so that a kill leaves the old one or the new one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".new")
        written.write_bytes(msgspec.json.encode(self))
        os.replace(written, path)

    def add(self, outcome: Outcome, seconds: float) -> None:
        self.slices += 1
        self.seconds += seconds
        self.outcome = merge(self.outcome, outcome)

    def fits(self, commit: str, seed: int | None, size: int) -> bool:
        """Whether a campaign with these parameters may continue here."""
        return (self.commit, self.size) == (commit, size) and seed in (None, self.seed)
