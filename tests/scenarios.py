"""What the processes of a `Crew` do. Each scenario gets an open storage and answers with facts;
judging them is left to the tests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any

from builders import OPERATOR
from gates import TASKS, Watch
from perdure.core.decide import decide_failure, decide_reschedule
from perdure.core.run.commit import Commit
from perdure.core.run.failure import FailureKind, make_failure
from perdure.core.run.lifecycle import TERMINAL
from perdure.core.run.run import Run
from perdure.errors import SequenceConflict
from perdure.storage.contract.runs import Committed, Existing, Outcome
from perdure.storage.contract.storage import Storage
from processes import Report, say
from storage_kit import new_run, now, request, step, success, token_of

MOST_TRIES = 10_000
"""A bound for loops that others may hold up: whoever reaches it has found a livelock."""


async def open_only(storage: Storage) -> Report:
    return {}


async def claim_everything(storage: Storage, worker_id: str, places: int) -> Report:
    """Claim until nothing is left; which run was claimed with which token."""
    claims: list[tuple[str, str]] = []
    while runs := (await storage.claim(request(places, worker_id=worker_id))).runs:
        claims += [(run.id, token_of(run)) for run in runs]
    return {"claims": claims}


async def append_everywhere(
    storage: Storage, name: str, run_ids: list[str], appends: int
) -> Report:
    """Read, decide, commit, and again after a conflict, `appends` times for each run."""
    wanted = dict.fromkeys(run_ids, appends)
    conflicts = 0
    for _ in range(MOST_TRIES):
        batch = [
            _note(run, f"{name}:{wanted[run.id]}")
            for run in (await storage.get(run_ids)).values()
            if wanted[run.id]
        ]
        if not batch:
            return {"conflicts": conflicts}
        for outcome in await storage.commit(batch):
            if isinstance(outcome, Committed):
                wanted[outcome.run_id] -= 1
            else:
                assert isinstance(outcome, SequenceConflict), outcome
                conflicts += 1
    raise AssertionError(f"still to append: {wanted}")


def _note(run: Run, text: str) -> Commit:
    """An event that may happen to any waiting run as often as one likes."""
    priority = 1 - min(run.priority, 1)
    return step(run, decide_reschedule(run, OPERATOR, now(), priority=priority, reason=text))


async def trigger_with_keys(storage: Storage, keys: list[str]) -> Report:
    """Ask for one run a key, each by itself or all in one batch; who got it."""
    commits = [new_run("same", idempotency_key=key) for key in keys]
    half = len(keys) // 2
    outcomes = [(await storage.commit([commit]))[0] for commit in commits[:half]]
    outcomes += await storage.commit(commits[half:])
    return {"answers": dict(zip(keys, map(_answer, outcomes), strict=True))}


def _answer(outcome: Outcome) -> list[Any]:
    if isinstance(outcome, Existing):
        return ["existing", outcome.run_id, outcome.same_payload]
    assert isinstance(outcome, Committed), outcome
    return ["created", outcome.run_id, True]


async def mix_everything(
    storage: Storage, worker_id: str, shared: list[str], rounds: int, backwards: bool
) -> Report:
    """Keyed triggers, appends to shared runs and claims that carry outcomes, in one order in
    one half of the processes and in the other order in the other half."""
    direction = -1 if backwards else 1
    asked: list[str] = []
    done: list[Commit] = []
    for number in range(rounds):
        batch = [*(_keyed(number, place) for place in range(8)), *done]
        asked += [commit.run.id for commit in batch]
        if number % 4 == 0:
            # Not always: whoever waits for these rows does not race for the keys.
            found = (await storage.get(shared)).values()
            batch += [_note(run, worker_id) for run in sorted(found, key=lambda run: run.id)]
        batch = batch[::direction]
        riding = batch if number % 2 else []
        if not riding:
            _check(await storage.commit(batch))
        claimed = await storage.claim(request(8, worker_id=worker_id, queues=("keyed",)), riding)
        _check(claimed.outcomes)
        done = [success(run) for run in claimed.runs]
    _check(await storage.commit(done))
    return {"asked": asked}


def _keyed(number: int, place: int) -> Commit:
    """Singletons are wanted again and again; an idempotency key by every process once."""
    return new_run(
        queue="keyed",
        idempotency_key=None if place % 4 else f"{number}-{place}",
        singleton_key=f"only-{place}",
    )


def _check(outcomes: Any) -> None:
    for outcome in outcomes:
        assert isinstance(outcome, Committed | Existing | SequenceConflict), outcome


async def work_until_killed(storage: Storage, worker_id: str) -> Report:
    """Create, claim, finish, and say after each commit which sequence of which run is stored."""
    done: list[Commit] = []
    for _ in range(MOST_TRIES):
        triggers = [new_run("x" * 500) for _ in range(3)]
        _acknowledge(triggers, await storage.commit(triggers))
        claimed = await storage.claim(request(2, worker_id=worker_id), done)
        say([[run.id, run.sequence] for run in claimed.runs])
        _acknowledge(done, claimed.outcomes)
        done = [success(run) for run in claimed.runs]
    return {}


def _acknowledge(commits: list[Commit], outcomes: Sequence[Outcome]) -> None:
    assert all(isinstance(outcome, Committed) for outcome in outcomes), outcomes
    say([[commit.run.id, commit.run.sequence] for commit in commits])


async def finish_under_limits(storage: Storage, url: str, worker_id: str) -> Report:
    """Claim and finish until all is done; after every claim, count what everybody holds."""
    done: list[Commit] = []
    excess: list[str] = []
    with closing(Watch(url)) as watch:
        for claims in range(MOST_TRIES):
            asked = request(5, worker_id=worker_id, tasks=TASKS)
            claimed = await storage.claim(asked, done)
            excess += watch.excess()
            assert all(isinstance(outcome, Committed) for outcome in claimed.outcomes)
            done = [_ending(run) for run in claimed.runs]
            if claimed.runs:
                continue
            if await _all_is_done(storage):
                return {"excess": excess, "claims": claims}
            await storage.open_gates(100)
    raise AssertionError("some runs were never finished")


def _ending(run: Run) -> Commit:
    """Most succeed; some fail first, and keep a schedule's slot until they are tried again."""
    if run.counters.attempts > 1 or int(run.id[-4:], 16) % 5:
        return success(run)
    error = make_failure(FailureKind.ERROR, type="ValueError", message="boom")
    return step(run, decide_failure(run, token_of(run), now(), error, retry_after=timedelta(0)))


async def _all_is_done(storage: Storage) -> bool:
    return all(status in TERMINAL for _, status in await storage.counts("default"))
