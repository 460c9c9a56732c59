"""The life of one run, on a real embedded database: `make demo`.

A clock that we move by hand plays the time, so that an hour of trouble takes a second to watch.
Everything else is real: the storage, the decisions, the refused late writer, the history.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from perdure.core.decide import (
    NewRun,
    decide_attention,
    decide_create,
    decide_failure,
    decide_success,
)
from perdure.core.invariants import check_history, check_run
from perdure.core.json_text import encode_value
from perdure.core.run.attempts import derive_attempts
from perdure.core.run.commit import prepare_commit
from perdure.core.run.events import Event
from perdure.core.run.failure import FailureKind, make_failure
from perdure.core.run.reducer import replay
from perdure.core.run.run import Actor, ActorType, Run
from perdure.engine.runtime.ids import make_run_id, make_token
from perdure.errors import LeaseLost
from perdure.storage import Storage, open_storage
from perdure.storage.contract.runs import ClaimRequest, Committed, Existing, Outcome

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SHOP = Actor(ActorType.CLIENT, "web-shop")


class StoryClock:
    """Time passes when the story says so."""

    def __init__(self) -> None:
        self._now = NOON

    def now(self) -> datetime:
        return self._now

    def elapsed(self) -> float:
        return (self._now - NOON).total_seconds()

    def jitter(self) -> float:
        return 0.0

    async def sleep(self, delay: timedelta) -> None:
        self._now += delay

    def pass_by(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


class Story:
    """Each method is one scene: it tells what happens, and makes it happen."""

    def __init__(self, storage: Storage, clock: StoryClock) -> None:
        self.storage = storage
        self.clock = clock
        self.run_id = ""

    async def trigger(self) -> None:
        say("The web shop asks for a receipt to be sent, with an idempotency key.")
        outcome = await self._create()
        assert isinstance(outcome, Committed)
        self.run_id = outcome.run_id
        show(f"{self.run_id} is durable and {(await self.run()).status}.")
        say("Its network hiccups, so it asks again.")
        again = await self._create()
        assert isinstance(again, Existing)
        show(f"answered with the existing run …{again.run_id[-6:]}: there is no second one.")

    async def _create(self) -> Outcome:
        wish = NewRun(
            task="send_receipt",
            payload_json=encode_value({"order": 1042}),
            idempotency_key="order-1042",
        )
        now = self.clock.now()
        events = decide_create(wish, make_run_id(now), SHOP, now)
        [outcome] = await self.storage.commit([prepare_commit(None, events, make_token())])
        return outcome

    async def claim(self, worker_id: str) -> Run:
        say(f"{worker_id} looks for work.")
        request = ClaimRequest(
            worker_id=worker_id,
            tokens=(make_token(),),
            tasks=("send_receipt",),
            start=1,
            commit_id=make_token(),
        )
        [run] = (await self.storage.claim(request)).runs
        lease = run.lease
        assert lease is not None
        show(f"it holds the lease (fence {lease.fence}) and begins attempt {lease.attempt}.")
        return run

    async def fail(self, run: Run) -> None:
        say("The mail server does not answer.")
        error = make_failure(
            FailureKind.ERROR, type="ConnectionError", message="mail.example:25 refused"
        )
        assert run.lease is not None
        await self.commit(run, decide_failure(run, run.lease.token, self.clock.now(), error))
        show(f"counted as failure 1 of {run.policy.tries}; tried again in a second.")

    async def recover(self) -> None:
        say("worker-2 falls silent: a crash, a frozen machine, nobody knows. 30 seconds pass.")
        self.clock.pass_by(31)
        [lost] = await self.storage.attention(10)
        await self.commit(lost, decide_attention(lost, self.clock.now()))
        run = await self.run()
        show(f"maintenance finds the expired lease: {run.status} again. That costs no attempt:")
        show("another run may have killed the worker. After a second death it executes alone.")

    async def zombie(self, run: Run) -> None:
        say("It was frozen. worker-2 wakes up and reports success, too late.")
        assert run.lease is not None
        events = decide_success(run, run.lease.token, self.clock.now())
        [outcome] = await self.storage.commit([prepare_commit(run, events, make_token())])
        show(f"{type(outcome).__name__}: it reloads the run and decides again …")
        try:
            decide_success(await self.run(), run.lease.token, self.clock.now())
        except LeaseLost as error:
            show(f"… {type(error).__name__}: the token offered does not hold its lease.")

    async def succeed(self, run: Run) -> None:
        assert run.lease is not None
        result = encode_value({"message_id": "m-77"})
        await self.commit(run, decide_success(run, run.lease.token, self.clock.now(), result))
        show("this time it works: the receipt is sent.")

    async def commit(self, run: Run, events: Sequence[Event]) -> None:
        [outcome] = await self.storage.commit([prepare_commit(run, events, make_token())])
        assert not isinstance(outcome, Exception), outcome

    async def run(self) -> Run:
        return (await self.storage.get([self.run_id]))[self.run_id]

    async def history(self) -> list[Event]:
        return [recorded.event for recorded in await self.storage.events(self.run_id)]


async def tell(path: Path) -> None:
    clock = StoryClock()
    storage = open_storage(f"sqlite:///{path}", clock)
    await storage.migrate()
    story = Story(storage, clock)

    await story.trigger()
    await story.fail(await story.claim("worker-1"))
    clock.pass_by(2)
    frozen = await story.claim("worker-2")
    await story.recover()
    await story.zombie(frozen)
    clock.pass_by(3)
    await story.succeed(await story.claim("worker-3"))

    run, history = await story.run(), await story.history()
    print_history(history)
    print_attempts(history)
    print_diagram(history)
    print_verdict(run, history)
    await storage.close()


def print_history(history: list[Event]) -> None:
    title("Its history, which is the truth")
    for sequence, event in enumerate(history, 1):
        status = replay(history[:sequence]).status
        elapsed = (event.occurred_at - NOON).total_seconds()
        who = f"{event.actor.type} {event.actor.id or ''}".strip()
        line(f"{sequence:>3}  +{elapsed:>4.0f} s  {event.type:<20} {status:<10} {dim(who)}")


def print_attempts(history: list[Event]) -> None:
    title("Its attempts, derived from the history")
    for attempt in derive_attempts(history):
        why = (
            "" if attempt.failure is None else f"{attempt.failure.kind}: {attempt.failure.message}"
        )
        line(f"{attempt.number:>3}  {attempt.worker_id:<10} {attempt.status:<10} {dim(why)}")


DIAGRAM = """\
 ┌─────────────┐    ┌──────────┐    ┌───────────┐    ┌───────────┐    ┌─────────────────┐
 │ · scheduled ├───▶│ · queued ├───▶│ · claimed ├───▶│ · running ├─┬─▶│ · succeeded     │
 └─────────────┘    └──────────┘    └───────────┘    └─────┬─────┘ │  └─────────────────┘
                                          ▲                │       │  ┌─────────────────┐
                                          │                │       ├─▶│ · failed        │
                                    ┌─────┴──────┐         │       │  └─────────────────┘
                                    │ · retrying │         │       │  ┌─────────────────┐
                                    │ · released │◀────────┘       ├─▶│ · dead_lettered │
                                    │ · waiting  │                 │  └─────────────────┘
                                    └────────────┘                 │  ┌─────────────────┐
                                                                   └─▶│ · cancelled     │
                                                                      └─────────────────┘"""


def print_diagram(history: list[Event]) -> None:
    title("Where it has been")
    seen = {str(replay(history[:n]).status) for n in range(1, len(history) + 1)}
    picture = DIAGRAM
    for status in seen:
        picture = picture.replace(f"· {status} ", strong(f"● {status} "))
    print(picture)
    line(dim("The whole machine: docs/reference/lifecycle.md"))


def print_verdict(run: Run, history: list[Event]) -> None:
    title("The audit")
    problems = check_run(run) + check_history(run, history)
    assert replay(history) == run, problems
    assert problems == [], problems
    line(f"{len(history)} events replay to exactly the stored run: {run.status}, {run.result}.")


def say(text: str) -> None:
    print(f"\n{strong('•')} {text}")


def show(text: str) -> None:
    line(dim("→ ") + text)


def line(text: str) -> None:
    print(f"  {text}")


def title(text: str) -> None:
    print(f"\n{strong(text)}")


def strong(text: str) -> str:
    return f"\033[1;32m{text}\033[0m" if sys.stdout.isatty() else text


def dim(text: str) -> str:
    return f"\033[2m{text}\033[0m" if sys.stdout.isatty() else text


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(tell(Path(folder) / "runs.db"))
