"""Handing over due runs: claims, with the outcomes that ride along, and reservations for pushes.

Both look for due runs, admit as many as the limits allow, and write what was decided about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from perdure.core.decide import Claim, decide_claim, decide_dispatch
from perdure.core.limits.admission import Admission, Standing, admit, gates_of
from perdure.core.run.commit import Commit, prepare_commit
from perdure.core.run.run import Run
from perdure.errors import StorageError, StorageUnavailable, UnreadableHistory
from perdure.storage.contract.reservation import ReserveRequest
from perdure.storage.contract.runs import Claimed, ClaimRequest, Committed, Outcome
from perdure.storage.sql import rows
from perdure.storage.sql.read.runs import moment_of
from perdure.storage.sql.rows import SUSPECT, Dialect
from perdure.storage.sql.statements import Many, Operation, Rows, Step, Trip, trip
from perdure.storage.sql.write.commit import advance_unseen, gates_opened, judge_batch, writes_of
from perdure.storage.sql.write.limits import UNREADABLE, lock_standing, token_writes
from perdure.storage.sql.write.turns import FairQueue, interleave, next_turns, turn_writes
from perdure.telemetry import table

MAX_CLAIM_BYTES = 8 * 1024 * 1024
"""Bytes of payloads that are handed over at once. A single larger payload is handed over alone."""


class Wish(Protocol):
    """What differs between a claim and a reservation."""

    places: int

    @property
    def request(self) -> ClaimRequest | ReserveRequest: ...

    def commit(self, run: Run, given: int, now: datetime) -> Commit:
        """The step that hands `run` over, once `given` others were. Raises if it cannot be."""
        ...

    def is_given(self, run: Run) -> bool:
        """Whether that step used up a place."""
        ...


class Claiming:
    """A worker's wish: one lease a token."""

    def __init__(self, request: ClaimRequest) -> None:
        self.request = request
        self.places = len(request.tokens)

    def commit(self, run: Run, given: int, now: datetime) -> Commit:
        versions = self.request.versions
        offer = Claim(
            token=self.request.tokens[given],
            worker_id=self.request.worker_id,
            lease_ttl=self.request.lease_ttl,
            start=given < self.request.start,
            version=versions.get(run.task) if versions else None,
        )
        return prepare_commit(run, decide_claim(run, offer, now), self.request.commit_id)

    def is_given(self, run: Run) -> bool:
        return run.lease is not None


class Reserving:
    """A push transport's wish: so many reservations, each with its row in the outbox."""

    def __init__(self, request: ReserveRequest) -> None:
        self.request = request
        self.places = request.places

    def commit(self, run: Run, given: int, now: datetime) -> Commit:
        events = decide_dispatch(run, now, self.request.ttl)
        queues = self.request.queues
        return prepare_commit(run, events, self.request.commit_id, pushed_queues=queues)

    def is_given(self, run: Run) -> bool:
        return run.dispatch_expires_at is not None


class Round(msgspec.Struct, frozen=True):
    """One transaction's share of a claim. `is_limited`: there are limits, so the next one should
    look for them at once. `again`: they took places, and more is due.
    `is_early`: it took nothing, since runs that wait for a key's rate are to be let in first."""

    claimed: Claimed
    is_limited: bool = False
    again: bool = False
    is_early: bool = False


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Due runs under lock in the order of their turns, and what else there is to heed.
    `suspects`: let in by a limit; they go behind their own gate, for a claim by name."""

    runs: tuple[Run, ...]
    suspects: tuple[Run, ...] = ()
    unreadable: tuple[str, ...]
    fair: tuple[FairQueue, ...]
    is_limited: bool
    now: datetime


class Clock(msgspec.Struct, frozen=True):
    """The time, and what there is to heed: limits, fair queues, keys that wait for their rate."""

    now: datetime
    is_limited: bool
    fair_queues: tuple[str, ...] = ()
    waking_at: datetime | None = None


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """How to look. `at_least`: at so many runs, even where there is room for fewer, to get past
    those whose keys have none. `is_limited`: limits are to be expected; where they are not, none
    is touched. `is_eager`: whoever waits for a key's rate was let in already. `is_careful`: before
    outcomes are written, too."""

    at_least: int = 0
    is_limited: bool = False
    is_eager: bool = False
    is_careful: bool = False


class Overtaken(StorageError):
    """What was written without a look may not be so. Once more, carefully."""


def hand_over(
    wish: Wish, batch: Sequence[Commit], look: Look, dialect: Dialect
) -> Operation[Round]:
    """Outcomes first, a savepoint, then the claim: if that half fails the outcomes stay.

    Limits are locked once a transaction, in order of name: whoever looks again, after having
    parked what it found behind full limits, must do so in another one.
    """
    if not batch:
        due = yield from _due(wish, look, dialect)
        return (yield from _give(wish, (), look, due, dialect))
    seen = yield from _advance_and_look(wish, batch, look, dialect)
    if seen is None:
        outcomes, writes = yield from judge_batch(batch, dialect)
        yield Trip((*writes.steps, Step("savepoint")))
    else:
        outcomes = [Committed(item.run.id, item.run.sequence, item.records) for item in batch]
    try:
        due = (yield from _due(wish, look, dialect)) if seen is None else seen
        return (yield from _give(wish, tuple(outcomes), look, due, dialect))
    except (StorageError, OverflowError):
        _, [[now]] = yield Trip((Step("rollback_to_savepoint"), Step("read_time")), last=True)
        return Round(Claimed(outcomes=tuple(outcomes), now=moment_of(now, dialect)))


def _advance_and_look(
    wish: Wish, batch: Sequence[Commit], look: Look, dialect: Dialect
) -> Operation[tuple[Rows, Clock] | None]:
    """Outcomes and the search for due runs in one trip: nearly always nobody else has written to
    the runs that end. Raises Overtaken if somebody has, or if it is refused: whoever catches that
    rolls back, and looks before it writes."""
    writes = None if look.is_limited or look.is_careful else advance_unseen(batch, dialect)
    if writes is None:
        return None
    steps = (*writes.steps, Step("savepoint"), *_questions(wish, look, dialect))
    try:
        moved, *_, [[any_parked]], _, due, clock = yield Trip(steps)
    except StorageUnavailable:
        raise
    except StorageError as error:
        raise Overtaken from error
    if len(moved) < len(batch):
        raise Overtaken
    gates = gates_opened(batch) if any_parked else []
    if gates:
        yield trip(*gates)
    return due, _clock_of(clock, look, dialect)


def _give(
    wish: Wish,
    outcomes: tuple[Outcome, ...],
    look: Look,
    seen: tuple[Rows, Clock],
    dialect: Dialect,
) -> Operation[Round]:
    due, clock = seen
    if clock.is_limited and not look.is_limited:
        due, clock = yield from _due(wish, replace(look, is_limited=True), dialect)
    if not look.is_eager and clock.waking_at is not None and clock.waking_at <= clock.now:
        yield Trip((Step("read_time"),), last=True)
        return Round(Claimed(outcomes=outcomes, now=clock.now), is_limited=True, is_early=True)
    found = yield from _found(wish, look, due, clock, dialect)
    places = _places(wish, found)
    admission, standing = yield from _admit(wish, places, found, dialect)
    now = found.now if standing is None else standing.now
    commits, impossible = _decide(wish, places, admission.admitted, now)
    runs = tuple(commit.run for commit in commits if wish.is_given(commit.run))
    writes = _writes(wish, found, admission, standing, commits, impossible, dialect)
    if runs and len(runs) == places:  # a full worker needs no next time
        yield Trip(writes.steps, last=True)
        return Round(
            Claimed(runs=runs, outcomes=outcomes, now=now, next_claimable_at=now), clock.is_limited
        )
    when = "limited_next_claimable" if clock.is_limited else "next_claimable"
    results = yield Trip((*writes.steps, Step(when, _scope(wish))), last=True)
    next_at = dialect.moment(results[-1][0][0])
    claimed = Claimed(runs=runs, outcomes=outcomes, now=now, next_claimable_at=next_at)
    used = len(commits) > len(runs) or found.unreadable or impossible or found.suspects
    held_up = bool(admission.parked or admission.passed or used)
    again = held_up and next_at is not None and next_at <= now
    return Round(claimed, clock.is_limited, again)


def _writes(
    wish: Wish,
    found: Found,
    admission: Admission,
    standing: Standing | None,
    commits: Sequence[Commit],
    impossible: Sequence[str],
    dialect: Dialect,
) -> Trip:
    environment = wish.request.environment
    parked = [(run.id, str(gate)) for run, gate in admission.parked]
    parked += [(run_id, UNREADABLE) for run_id in (*found.unreadable, *impossible)]
    parked += [(run.id, SUSPECT) for run in found.suspects]
    steps = [_park(parked, dialect), *writes_of(commits, dialect, any_parked=False).steps]
    if standing is not None:
        waited = [gate for _, gate in admission.parked]
        steps += token_writes(environment, admission.buckets, waited, standing, dialect)
    if found.fair:
        served = {run_id for run_id, _ in parked} | {commit.run.id for commit in commits}
        steps.append(turn_writes(environment, found.fair, found.runs, served, dialect))
    return trip(*steps)


def _scope(wish: Wish) -> dict[str, Any]:
    request = wish.request
    return {
        "environment": request.environment,
        "tasks": rows.json_list(rows.served_tasks(request.tasks, request.versions)),
        "queues": None if request.queues is None else rows.json_list(request.queues),
    }


def _due(wish: Wish, look: Look, dialect: Dialect) -> Operation[tuple[Rows, Clock]]:
    """Due runs, and what else there is to heed. Where nothing is limited, that is asked for and
    nothing else; where something turns out to be, it is worth another look."""
    due, clock = yield trip(*_questions(wish, look, dialect))
    return due, _clock_of(clock, look, dialect)


def _questions(wish: Wish, look: Look, dialect: Dialect) -> tuple[Step, Step]:
    environment = {"environment": wish.request.environment}
    scope = _scope(wish)
    clock = Step("limited_clock", scope) if look.is_limited else Step("claim_clock", environment)
    return _search(wish, look, dialect), clock


def _search(wish: Wish, look: Look, dialect: Dialect) -> Step:
    scope = _scope(wish) | {"wanted": _wanted(wish, look)}
    if wish.request.run_ids is None and look.is_limited:
        return Step("limited_candidates", scope | {"at_least": look.at_least})
    if wish.request.run_ids is None:
        return Step("claim_candidates", scope)
    ids = rows.json_list([dialect.key(run_id) for run_id in wish.request.run_ids])
    return Step("claim_named", scope | {"ids": ids})


def _wanted(wish: Wish, look: Look) -> int:
    return max(wish.places, look.at_least)


def _clock_of(answer: Rows, look: Look, dialect: Dialect) -> Clock:
    if not look.is_limited:
        [(now, is_limited)] = answer
        return Clock(moment_of(now, dialect), bool(is_limited))
    [(now, is_limited, fair, waking_at)] = answer
    names = () if fair is None else msgspec.json.decode(fair, type=tuple[str, ...])
    return Clock(moment_of(now, dialect), bool(is_limited), names, dialect.moment(waking_at))


def _found(wish: Wish, look: Look, due: Rows, clock: Clock, dialect: Dialect) -> Operation[Found]:
    """The candidates, those of fair queues among them. Known by name, nobody waits for a turn."""
    request = wish.request
    fair: Sequence[FairQueue] = ()
    if clock.fair_queues and request.run_ids is None:
        fair = yield from next_turns(
            request.environment,
            clock.fair_queues,
            request.tasks,
            request.versions,
            wanted=_wanted(wish, look),
            at_least=look.at_least,
        )
    runs, unreadable = _read(due, dialect)
    if fair:
        ordinary: dict[str, list[Run]] = {}
        for run in runs:
            ordinary.setdefault(run.queue, []).append(run)
        read = [_read(queue.found, dialect) for queue in fair]
        runs = interleave([*ordinary.values(), *(runs for runs, _ in read)])
        runs = runs[: _wanted(wish, look)]
        unreadable += [run_id for _, ids in read for run_id in ids]
    is_for_all = request.run_ids is None
    return Found(
        runs=tuple(run for run in runs if not (is_for_all and run.is_suspect)),
        suspects=tuple(run for run in runs if is_for_all and run.is_suspect),
        unreadable=tuple(unreadable),
        fair=tuple(fair),
        is_limited=clock.is_limited,
        now=clock.now,
    )


def _read(found: Rows, dialect: Dialect) -> tuple[list[Run], list[str]]:
    runs: list[Run] = []
    unreadable: list[str] = []
    for row in found:
        try:
            runs.append(rows.run_of(row, dialect))
        except UnreadableHistory:
            unreadable.append(dialect.run_id(row[0]))
    return runs, unreadable


def _places(wish: Wish, found: Found) -> int:
    """Return how many of the runs may be handed over: their payloads fit into MAX_CLAIM_BYTES.
    Limits may choose any of them: then the largest must fit."""
    sizes = [len(run.payload_json) for run in found.runs]
    if sum(sizes) <= MAX_CLAIM_BYTES:
        return wish.places
    totals = accumulate(sorted(sizes, reverse=True) if found.is_limited else sizes)
    return min(wish.places, max(1, sum(total <= MAX_CLAIM_BYTES for total in totals)))


def _admit(
    wish: Wish, places: int, found: Found, dialect: Dialect
) -> Operation[tuple[Admission, Standing | None]]:
    """Who of the candidates may be claimed, under the limits there are, and from when on."""
    if not found.is_limited or not found.runs:
        return Admission(found.runs), None
    gates = {gate for run in found.runs for gate in gates_of(run)}
    standing = yield from lock_standing(wish.request.environment, gates, dialect)
    if standing is None:
        return Admission(found.runs), None
    return admit(found.runs, places, standing), standing


def _park(parked: Sequence[tuple[str, str]], dialect: Dialect) -> Many:
    return Many("park_runs", [{"id": dialect.key(run_id), "gate": gate} for run_id, gate in parked])


def _decide(
    wish: Wish, places: int, runs: Sequence[Run], now: datetime
) -> tuple[list[Commit], list[str]]:
    """Return the commits, and the ids of runs about which no decision is possible."""
    commits: list[Commit] = []
    impossible: list[str] = []
    given = 0
    for run in runs:
        if given == places:
            break
        try:
            commit = wish.commit(run, given, now)
        except Exception as error:  # noqa: BLE001  # one damaged run must not stop the claim
            table.UNREADABLE_RUN.log_hourly(run.id, run_id=run.id, why=str(error))
            impossible.append(run.id)
            continue
        commits.append(commit)
        given += wish.is_given(commit.run)
    return commits, impossible
