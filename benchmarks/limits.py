"""Why a promise is missed, where it is: what the limit is, and the profile that shows it.

The page quotes what stands in `LIMITS` for every target that these results miss, and for no other.
Whoever changes what a profile shows takes it again and changes it here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from benchmarks.targets import Judged


class Profile(NamedTuple):
    """Where the time goes: of what, and how and when that was found out."""

    title: str
    taken: str
    unit: str
    parts: tuple[tuple[str, float], ...]


class Limit(NamedTuple):
    """`name` is the chart's; `targets` are named as `targets.py` calls them."""

    name: str
    targets: tuple[str, ...]
    says: str
    profile: Profile


LIMITS = (
    Limit(
        name="start",
        targets=("Start, p50: of PgQueuer's", "Start, p99: of PgQueuer's"),
        says="A claim here takes two trips to the database: one that searches and locks, one that"
        " writes what Python has decided, with its events, and commits. PgQueuer's takes one: a"
        " single statement picks a job, logs that, and hands it over. The search and the decision"
        " below are about as long as the difference; PgQueuer's own steps were not timed. All steps"
        " are of processes that have just been woken: the client's part of such a trip took three"
        " times as long after a pause of 50 ms as without one.",
        profile=Profile(
            title="From trigger to start on PostgreSQL, in another process, at 20 a second",
            taken="medians of time stamps, 2026-11-18",
            unit="ms",
            parts=(
                ("the caller prepares it", 0.52),
                ("store it, sync, and the worker hears", 1.44),
                ("the worker wakes up and asks", 0.41),
                ("search for due runs, one trip", 0.62),
                ("decide the claim and the start", 0.19),
                ("write and sync them, one trip", 0.70),
                ("hand over to the handler's loop", 0.35),
            ),
        ),
    ),
)


def reached(missed: Iterable[Judged]) -> list[Limit]:
    """The limits that these targets ran into."""
    names = {one.target.says for one in missed}
    return [limit for limit in LIMITS if names & set(limit.targets)]


def unexplained(missed: Iterable[Judged]) -> list[str]:
    explained = {target for limit in LIMITS for target in limit.targets}
    return [one.target.says for one in missed if one.target.says not in explained]
