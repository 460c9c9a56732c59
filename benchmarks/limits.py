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
        name="drain",
        targets=(
            "PostgreSQL drain, 1 worker: of PgQueuer's",
            "PostgreSQL drain, 1 worker: of DBOS's",
            "PostgreSQL drain, 1 worker: of Procrastinate's",
            "PostgreSQL drain, 1 worker: of graphile-worker's",
            "PostgreSQL drain, 2 workers: of PgQueuer's",
            "PostgreSQL end to end: of PgQueuer's",
        ),
        says="Two cores are shared by workers and server, and a run costs both some 80 µs"
        " together; a job of PgQueuer's some 70, its worker's part being about as long as ours and"
        " its server's 15 less. One worker process leaves a fifth of the cores"
        " idle, since it waits for the server and the server for it; two leave nothing, and"
        " then only the sum counts. The server's part is two updates and two rows of history,"
        " each one heap row and two index entries, about a microsecond apiece; dropping every"
        " secondary index once took it from 44 to 35. PgQueuer deletes what is done, and keeps"
        " three short log rows of it. The worker's part is Python: reading the run, deciding two"
        " steps, encoding two commits. graphile-worker keeps nothing of a job that is done,"
        " and Node compiles what it runs.",
        profile=Profile(
            title="A drained run on PostgreSQL, claims of 500",
            taken="CPU time of the server's processes by statement, of the worker's by samples,"
            " 2026-11-18",
            unit="µs",
            parts=(
                ("server: start the run", 10.8),
                ("server: end it", 10.0),
                ("server: two rows of history", 10.7),
                ("server: search and lock", 4.3),
                ("server: commit, and the rest", 3.0),
                ("worker: JSON, both ways", 7.0),
                ("worker: decide and project", 6.2),
                ("worker: rows and statements", 11.3),
                ("worker: attempts, leases, metrics", 13.5),
                ("worker: the handler's loop", 4.0),
            ),
        ),
    ),
    Limit(
        name="sqlite",
        targets=(
            "SQLite drain: of Huey's",
            "SQLite drain: of DBOS's",
            "SQLite drain: of hand-written SQL's whole lives",
        ),
        says="One thread writes, is never idle, and needs 34 µs for a run: 21 inside SQLite, the"
        " rest is Python, to read the runs, decide, encode and bind. All else goes on meanwhile,"
        " but not quite: there is one interpreter lock, and though the writer has precedence it"
        " waits for that some 7 µs a run. Claims of 1,000 instead of 500 would be a tenth faster."
        " Hand-written SQL has integer keys, three statements a batch, events of 16 bytes, and"
        " neither leases nor guards.",
        profile=Profile(
            title="A drained run on SQLite, claims of 500",
            taken="CPU time by thread, and of a replayed drain by statement, 2026-11-18",
            unit="µs",
            parts=(
                ("SQLite: start the run", 5.0),
                ("SQLite: end it", 4.6),
                ("SQLite: two rows of history", 3.1),
                ("SQLite: search", 2.9),
                ("SQLite: commit and checkpoint", 5.8),
                ("writer thread: Python", 12.5),
                ("worker: I/O loop", 16.0),
                ("worker: the handler's loop", 4.0),
            ),
        ),
    ),
    Limit(
        name="import",
        targets=("from perdure import App",),
        says="Not asked for, but our own: what an app needs is imported lazily where it can be."
        " What is left is flat: asyncio and its kin, msgspec, and the definitions of some"
        " hundred structs.",
        profile=Profile(
            title="`from perdure import App`",
            taken="-X importtime, 2026-11-18",
            unit="ms",
            parts=(
                ("Perdure's own modules", 84),
                ("the standard library's", 40),
                ("asyncio", 14),
                ("msgspec", 3),
            ),
        ),
    ),
    Limit(
        name="start",
        targets=("Start, p50: of PgQueuer's", "Start, p99: of PgQueuer's"),
        says="A claim here takes two trips to the database: one that searches and locks, one that"
        " writes what Python has decided, with its events, and commits. PgQueuer's takes one:"
        " a single statement picks a job, logs that, and hands it over. The search and the"
        " decision below are about as long as the difference; PgQueuer's own steps were not"
        " timed. All steps are of processes that have just been woken: the client's part of"
        " such a trip took three times as long after a pause of 50 ms as without one.",
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
