"""What a campaign is, and the registry of all campaigns."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

DATABASES = ("sqlite", "postgres")


class CampaignFailed(Exception):
    """A slice found something that must not happen."""


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a campaign that runs at once and is repeated if it is interrupted."""

    number: int
    seed: int
    """Depends only on the campaign's seed and the number of the slice."""
    size: int
    """How many units of work to do."""
    database: str | None
    url: str
    """An empty, migrated database for this slice alone; "" if the campaign needs none."""
    directory: Path
    """For logs and files. Kept if the slice fails."""
    report: Callable[[int], None]
    """Call it with the units done so far, to show progress on the terminal."""


class Outcome(msgspec.Struct):
    """What a slice did. Counts of several slices are added, but of `max_…` the largest is kept."""

    counts: dict[str, float]
    sightings: dict[str, int] = {}
    """Counts for `verify` that are too many for docs/proof.md."""


Run = Callable[[Slice], Outcome]
Verify = Callable[[Outcome], None]


class Campaign(msgspec.Struct, frozen=True, kw_only=True):
    """A name, a sentence, and a function that does one slice of the work."""

    name: str
    summary: str
    unit: str
    size: int
    slice_size: int
    run: Run
    databases: tuple[str, ...] = DATABASES
    verify: Verify | None = None
    """Checks the sum of all slices, and may add counts to it. Raises CampaignFailed."""

    def slices(self, size: int) -> list[int]:
        """Return the size of each slice of a campaign of `size` units."""
        whole, rest = divmod(size, self.slice_size)
        return [self.slice_size] * whole + ([rest] if rest else [])


REGISTRY: dict[str, Campaign] = {}


def campaign(
    name: str, summary: str, *, unit: str, size: int, slice_size: int, **options: Any
) -> Callable[[Run], Run]:
    """Register a function as a campaign. Options: `databases` and `verify`."""

    def register(run: Run) -> Run:
        assert name not in REGISTRY, f"two campaigns are named {name}"
        REGISTRY[name] = Campaign(
            name=name,
            summary=summary,
            unit=unit,
            size=size,
            slice_size=slice_size,
            run=run,
            **options,
        )
        return run

    return register


def load_campaigns() -> dict[str, Campaign]:
    """Import every module of `prove.campaigns`, so that each registers what it has."""
    package = importlib.import_module("prove.campaigns")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"prove.campaigns.{module.name}")
    return dict(sorted(REGISTRY.items()))


def require(condition: bool, problem: str) -> None:
    """Raise CampaignFailed unless the condition holds."""
    if not condition:
        raise CampaignFailed(problem)


def merge(first: Outcome, second: Outcome) -> Outcome:
    """Return the counts of both."""
    counts = dict(first.counts)
    for name, count in second.counts.items():
        known = counts.get(name, 0)
        counts[name] = max(known, count) if name.startswith("max_") else known + count
    sightings = dict(first.sightings)
    for name, number in second.sightings.items():
        sightings[name] = sightings.get(name, 0) + number
    return Outcome(counts, sightings)
