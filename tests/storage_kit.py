"""What storage tests say all the time, in one word each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from builders import CLIENT, TASK
from perdure.core.decide import NewRun, decide_create, decide_failure, decide_success
from perdure.core.invariants import check_history, check_run
from perdure.core.json_text import encode_value
from perdure.core.limits.admission import LimitScope
from perdure.core.limits.rates import make_rate
from perdure.core.limits.settings import Limit, Values, declare
from perdure.core.run.commit import Commit, prepare_commit
from perdure.core.run.effects import DeadLetter
from perdure.core.run.events import Event
from perdure.core.run.failure import Failure, FailureKind, make_failure
from perdure.core.run.run import SYSTEM, Run
from perdure.engine.runtime.clock import SystemClock
from perdure.engine.runtime.ids import make_run_id, make_token
from perdure.storage.contract.inspection import LetterFilter
from perdure.storage.contract.runs import Claimed, ClaimRequest, Committed
from perdure.storage.contract.storage import Storage

CLOCK = SystemClock()


def now() -> datetime:
    return CLOCK.now()


def new_run(payload: Any = None, *, at: datetime | None = None, **fields: Any) -> Commit:
    """A commit that creates a run."""
    wish = NewRun(task=fields.pop("task", TASK), payload_json=encode_value(payload), **fields)
    at = at or now()
    return prepare_commit(None, decide_create(wish, make_run_id(at), CLIENT, at), make_token())


def step(run: Run, events: Sequence[Event], **options: Any) -> Commit:
    """A commit that takes `run` further."""
    return prepare_commit(run, events, make_token(), **options)


async def stored(storage: Storage, *commits: Commit) -> list[Run]:
    """Commit, and insist that it worked; the runs as they now are."""
    outcomes = await storage.commit(commits)
    assert outcomes == [Committed(c.run.id, c.run.sequence) for c in commits], outcomes
    return [commit.run for commit in commits]


async def create(storage: Storage, payload: Any = None, **fields: Any) -> Run:
    [run] = await stored(storage, new_run(payload, **fields))
    return run


def request(places: int = 10, **fields: Any) -> ClaimRequest:
    defaults: dict[str, Any] = {
        "worker_id": "worker-1",
        "tokens": tuple(make_token() for _ in range(places)),
        "tasks": (TASK,),
        "start": places,
        "commit_id": make_token(),
    }
    return ClaimRequest(**(defaults | fields))


async def claim(
    storage: Storage, places: int = 10, *, outcomes: Sequence[Commit] = (), **fields: Any
) -> Claimed:
    return await storage.claim(request(places, **fields), outcomes)


async def claim_one(storage: Storage, **fields: Any) -> Run:
    claimed = await claim(storage, 1, **fields)
    [run] = claimed.runs
    return run


def token_of(run: Run) -> str:
    assert run.lease is not None
    return run.lease.token


def success(run: Run, result: Any = None) -> Commit:
    return step(run, decide_success(run, token_of(run), now(), encode_value(result)))


def failure(run: Run, error: Failure | None = None) -> Commit:
    error = error or make_failure(FailureKind.ERROR, type="ValueError", message="boom")
    return step(run, decide_failure(run, token_of(run), now(), error))


async def reload(storage: Storage, run: Run) -> Run:
    return (await storage.get([run.id]))[run.id]


async def history(storage: Storage, run: Run) -> list[Event]:
    return [recorded.event for recorded in await storage.events(run.id)]


async def letters(storage: Storage, **fields: Any) -> list[DeadLetter]:
    """The dead letters that fit, newest first."""
    return list((await storage.find_dead_letters(LetterFilter(**fields), limit=100)).letters)


def a_limit(
    scope: LimitScope,
    name: str,
    most: int | None = None,
    *,
    rate: Any = None,
    fair: bool = False,
    environment: str = "default",
    over: Limit | None = None,
) -> Limit:
    """A limit as code would set it; a new one, or `over` what was said before."""
    limit = over or Limit(scope=scope, name=name, environment=environment)
    values = Values(concurrency=most, rate=make_rate(rate), fair=fair)
    return replace(declare(limit, values, SYSTEM, now()), version=limit.version + 1)


async def known_limit(
    storage: Storage, scope: LimitScope, name: str, environment: str = "default"
) -> Limit | None:
    found = await storage.limits(environment)
    return next((limit for limit in found if (limit.scope, limit.name) == (scope, name)), None)


async def put_limit(storage: Storage, limit: Limit) -> None:
    """Store it over whatever there is."""
    before = await known_limit(storage, limit.scope, limit.name, limit.environment)
    version = 1 if before is None else before.version + 1
    assert await storage.put_limits([replace(limit, version=version)]) == [True]


async def set_limit(
    storage: Storage, scope: LimitScope, name: str, most: int | None = None, **said: Any
) -> None:
    """Say all that code has to say about it."""
    before = await known_limit(storage, scope, name, said.get("environment", "default"))
    await put_limit(storage, a_limit(scope, name, most, over=before, **said))


async def check_all(storage: Storage, run_ids: Sequence[str]) -> None:
    """Every stored run is sound, and is what its history adds up to."""
    for run in (await storage.get(run_ids)).values():
        events = await history(storage, run)
        assert check_run(run) + check_history(run, events) == [], run


async def wait_until(storage: Storage, moment: datetime) -> None:
    """Until the storage's clock has passed `moment`."""
    while (left := moment - await storage.now()) > timedelta(0):
        await CLOCK.sleep(left)
