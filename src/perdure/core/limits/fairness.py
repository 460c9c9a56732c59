"""Whose turn it is: keys of a fair queue are served one after the other, in a circle.

The circle runs through the keys in order, with the runs that have none as one more member before
the first. A claim goes on after the key served last (`after`; "" stands for the runs without a
key), gives each key one run a turn, and begins again at the first key while places are left. So
between two runs of one key, every other key that has a run due gets one too.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Lane(msgspec.Struct, frozen=True):
    """Runs of one key, task, version and priority; `is_due`: the first of them may be claimed."""

    key: str | None
    task: str
    version: int
    priority: int
    is_due: bool


class Walk(msgspec.Struct, frozen=True):
    """Lanes as they were met, key by key. `is_cut`: it had gone far enough for one claim."""

    lanes: tuple[Lane, ...]
    is_cut: bool = False

    @property
    def last_key(self) -> str:
        return self.lanes[-1].key or "" if self.lanes else ""


class Turns(msgspec.Struct, frozen=True):
    """The lanes to take from, each with its key's place in the circle. `go_on_after`: where the
    next claim begins if this one finds nothing more."""

    lanes: tuple[tuple[Lane, int], ...]
    go_on_after: str | None = None


def take_turns(
    after: str, ahead: Walk, unkeyed: Sequence[Lane], around: Walk, most_keys: int
) -> Turns:
    """The next keys with something due: those `ahead` of the key served last, then the runs
    without a key, then those before it. A walk that was cut goes on in the next claim."""
    if ahead.is_cut:
        met = list(ahead.lanes)
        go_on: str | None = ahead.last_key
    else:
        behind = [lane for lane in around.lanes if (lane.key or "") <= after]
        met = [*ahead.lanes, *unkeyed, *behind]
        go_on = around.last_key if around.is_cut and around.last_key < after else None
    places: dict[str | None, int] = {}
    for lane in met:
        if lane.is_due and (lane.key in places or len(places) < most_keys):
            places.setdefault(lane.key, len(places))
    lanes = tuple((lane, places[lane.key]) for lane in met if lane.is_due and lane.key in places)
    return Turns(lanes, go_on if len(places) < most_keys else None)
