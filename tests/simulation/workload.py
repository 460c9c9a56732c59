"""Tasks of every kind, and clients that ask for them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from datetime import timedelta
from random import Random  # seeded
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from perdure.core.limits.rates import Rate
from perdure.core.run.run import OnLeaseExpired
from perdure.engine.attempt.context import Context
from perdure.engine.attempt.exits import Fail, Released, RetryAfter
from perdure.engine.client.handle import RunHandle
from perdure.engine.definition.definition import task_settings
from perdure.engine.definition.task import Task
from perdure.engine.runtime.defaults import Defaults
from perdure.engine.tasks.options import Retry, TaskSettings
from perdure.engine.tasks.signature import Signature
from perdure.errors import (
    IdempotencyConflict,
    ResultTimeout,
    RunNotFound,
    RunUnsuccessful,
    StorageUnavailable,
)
from simulation.ledger import RAISED, RELEASED, RETURNED, STOPPED
from simulation.loop import Process, current_process

if TYPE_CHECKING:
    from simulation.world import World

DEFAULTS = Defaults(
    url="sqlite:///:memory:",
    lease_ttl=timedelta(seconds=3),
    poll=timedelta(seconds=1.5),
    cancel_grace=timedelta(seconds=0.5),
    abandon_after=timedelta(seconds=1.5),
    drain_deadline=timedelta(seconds=1),
    maintenance_tick=timedelta(seconds=0.5),
)
TTL = DEFAULTS.lease_ttl.total_seconds()


class Script(msgspec.Struct, frozen=True):
    """What the handler does in its n-th attempt; the last act is repeated."""

    acts: tuple[str, ...]
    seconds: float

    def act(self, attempt: int) -> str:
        return self.acts[min(attempt, len(self.acts)) - 1]


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One trigger."""

    at: float
    task: str
    script: Script
    options: dict[str, Any]
    awaits: bool
    repeats: bool


async def perform(ctx: Context, script: Script) -> dict[str, Any]:
    """The handler of every task."""
    process = current_process()
    world: World = process.world  # type: ignore[attr-defined]  # set where it was made
    act = script.act(ctx.attempt)
    performance = world.ledger.begin(process, ctx.run, is_stubborn=act == "stubborn")
    assert ctx.run.lease is not None
    token = ctx.run.lease.token
    ending = RAISED
    try:
        await _play(ctx, script, act)
        ending = RETURNED
    except asyncio.CancelledError:
        ending = STOPPED
        raise
    except Released:
        ending = RELEASED
        raise
    except Exception:
        raise
    except BaseException:
        ending = STOPPED
        raise
    finally:
        world.ledger.end(ctx.run, performance, ending, was_asked=ctx.cancelled)
    return {"token": token, "effects": [token]} if act == "transact" else {"token": token}


async def _play(ctx: Context, script: Script, act: str) -> None:
    await asyncio.sleep(script.seconds)
    match act:
        case "fail":
            raise ValueError(f"attempt {ctx.attempt}")
        case "give_up":
            raise Fail("no use")
        case "later":
            raise RetryAfter(1.5)
        case "long":
            await asyncio.sleep(2.2 * TTL)
        case "stubborn":
            await _stubbornly(1.6 * TTL)
        case "transact":
            await _transact(ctx, script.seconds)
        case "spawn":
            world: World = current_process().world  # type: ignore[attr-defined]  # as above
            await world.spawn_child()
        case _:
            _leave(ctx, act)


async def _transact(ctx: Context, seconds: float) -> None:
    """An effect in the same database, and some time inside of its transaction and after."""
    assert ctx.run.lease is not None
    async with ctx.transaction() as connection:
        connection.write(ctx.run_id, ctx.run.lease.token)
        await asyncio.sleep(seconds / 4)
    await asyncio.sleep(seconds * 3 / 4)


def _leave(ctx: Context, act: str) -> None:
    match act:
        case "release":
            ctx.release(delay=1.0)
        case "yield":
            ctx.release(delay=0.0)
        case "wait":
            ctx.wait_for("signal", deadline=ctx.run.updated_at + timedelta(seconds=3))
        case "wait_long":
            ctx.wait_for("signal")


async def _stubbornly(seconds: float) -> None:
    """Does not stop when asked for the first time, and takes its time at the second."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        try:
            await asyncio.sleep(2.0)
        except asyncio.CancelledError:
            await asyncio.sleep(1.5)


_QUICK = Retry(max_attempts=3, initial=0.5, maximum=3.0)
_KINDS: dict[str, dict[str, Any]] = {
    "plain": {"retry": _QUICK},
    "once": {"retry": Retry(max_attempts=1)},
    "brief": {"retry": _QUICK, "lease_ttl": 1.5},
    "fragile": {"retry": _QUICK, "on_lease_expired": OnLeaseExpired.FAIL},
    "again": {"retry": _QUICK, "on_lease_expired": OnLeaseExpired.REDELIVER},
    "timed": {"retry": _QUICK, "timeout": 1.2},
    "narrow": {"retry": _QUICK, "concurrency": 1},
    "keyed": {"retry": _QUICK, "concurrency_per_key": 1},
    "busy": {"retry": _QUICK, "queue": "busy"},
    "paced": {"retry": _QUICK, "rate_per_key": Rate(2, per=2, burst=1)},
    "shared": {"retry": _QUICK, "queue": "fair"},
}
SETTINGS: dict[str, TaskSettings] = {
    name: task_settings(perform, DEFAULTS, name=name, **settings)
    for name, settings in _KINDS.items()
}


class _Signature(Signature):
    """Asked for its schema with every start of every node; making it is what costs."""

    @functools.cached_property
    def _schema(self) -> dict[str, Any]:
        return super().schema()

    def schema(self) -> dict[str, Any]:
        return self._schema


_SIGNATURE = _Signature(perform, Context)


def tasks_of(app: Any, version: int | None) -> dict[str, Task[..., Any]]:
    """All tasks, on `app`. Made without the decorator: signatures are costly, and all equal."""
    return {
        name: Task(app, perform, replace(made, version=version), _SIGNATURE)
        for name, made in SETTINGS.items()
    }


FEATURES = (
    "fail",
    "release",
    "wait",
    "long",
    "stubborn",
    "spawn",
    "ttl",
    "delay",
    "priority",
    "idempotency",
    "singleton",
    "limits",
    "timed",
    "expiry",
    "meddle",
    "prune",
    "queue",
    "burst",
    "rates",
    "fair",
    "steer",
    "push",
)


def make_items(chance: Random, features: set[str], span: float) -> list[Item]:
    kinds = ["plain"]
    kinds += ["narrow", "narrow", "keyed"] if "limits" in features else []
    kinds += ["fragile", "again", "once", "brief"] if "expiry" in features else []
    kinds += ["timed"] if "timed" in features else []
    kinds += ["busy", "busy"] if {"queue", "push"} & features else []
    kinds += ["paced", "paced"] if "rates" in features else []
    items = [
        _item(chance, features, chance.choice(kinds), span) for _ in range(chance.randint(3, 9))
    ]
    if "burst" in features:
        began = chance.uniform(0.0, span / 2)
        items += [_quick(chance, began) for _ in range(chance.randint(8, 14))]
    if "fair" in features:
        began = chance.uniform(0.0, span / 2)
        items += [_shared(chance, features, began) for _ in range(chance.randint(8, 14))]
    return sorted(items, key=lambda item: item.at)


def with_transactions(items: Sequence[Item], chance: Random) -> list[Item]:
    """Some of those that would just succeed do so in a transaction. By a chance of its own, so
    that every other scenario stays what it was."""
    return [
        replace(item, script=Script(("transact",), chance.choice((item.script.seconds, 1.4 * TTL))))
        if item.script.acts == ("ok",) and chance.random() < 0.6
        else item
        for item in items
    ]


def _item(chance: Random, features: set[str], task: str, span: float) -> Item:
    return Item(
        at=chance.uniform(0.0, span),
        task=task,
        script=_script(chance, features),
        options=_options(chance, features, task),
        awaits=chance.random() < 0.3,
        repeats=chance.random() < 0.5,
    )


def _quick(chance: Random, began: float) -> Item:
    """One of many that come at once and end at once: claims overlap all the time."""
    return Item(
        at=began + chance.uniform(0.0, 2.5),
        task="plain",
        script=Script(("ok",), chance.choice((0.0, 0.1, 0.3))),
        options={},
        awaits=False,
        repeats=False,
    )


def _shared(chance: Random, features: set[str], began: float) -> Item:
    """One of many on a fair queue: most of one key, a few of others or of none."""
    key = chance.choice(("a", "a", "a", "a", "b", "c", None))
    return Item(
        at=began + chance.uniform(0.0, 1.0),
        task="shared",
        script=Script(("ok",), chance.choice((0.0, 0.3, 0.8))),
        options=_options(chance, features - {"singleton", "idempotency"}, "shared")
        | ({} if key is None else {"concurrency_key": key}),
        awaits=False,
        repeats=False,
    )


def _script(chance: Random, features: set[str]) -> Script:
    acts = ["ok", "ok"]
    acts += ["fail", "fail", "later", "give_up"] if "fail" in features else []
    acts += ["release", "yield", "yield"] if "release" in features else []
    acts += ["wait", "wait_long"] if "wait" in features else []
    acts += [name for name in ("long", "stubborn", "spawn") if name in features]
    played = [chance.choice(acts) for _ in range(chance.randint(0, 2))]
    last = ["ok", "ok", "ok", *(name for name in ("long", "stubborn") if name in features)]
    last += ["fail", "give_up"] if "fail" in features else []
    seconds = chance.choice((0.0, 0.01, 0.5, 1.5, 3.5))
    return Script(acts=(*played, chance.choice(last)), seconds=seconds)


def _options(chance: Random, features: set[str], task: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if "ttl" in features and chance.random() < 0.4:
        options["ttl"] = chance.uniform(0.5, 6.0)
    if "delay" in features and chance.random() < 0.4:
        options["delay"] = chance.uniform(0.1, 5.0)
    if "priority" in features:
        options["priority"] = chance.randint(0, 10)
    if "idempotency" in features and chance.random() < 0.6:
        options["idempotency_key"] = chance.choice("ab")
        options["idempotency_ttl"] = chance.choice((3.0, 3600.0))
    elif "singleton" in features and chance.random() < 0.6:
        options["singleton_key"] = "one"
    if task in ("keyed", "paced"):
        options["concurrency_key"] = chance.choice("xy")
    return options


class ClientNode:
    """Triggers items in their time, and waits for some of them."""

    def __init__(self, world: World, process: Process, app: Any, items: list[Item]) -> None:
        self._world = world
        self._process = process
        self._app = app
        self._items = items

    async def run(self) -> None:
        async with self._app:
            waiting = []
            while self._items:
                await asyncio.sleep(max(self._items[0].at - self._world.loop.time(), 0.0))
                item = self._items.pop(0)
                handle = await self._trigger(item)
                if handle is not None and item.awaits:
                    waiting.append(asyncio.create_task(self._wait(handle)))
            await asyncio.gather(*waiting)

    async def _trigger(self, item: Item) -> RunHandle[Any] | None:
        task = self._app.tasks[item.task].options(**item.options)
        for _ in range(5 if item.repeats else 1):
            try:
                handle: RunHandle[Any] = await task.trigger(script=item.script)
            except IdempotencyConflict:
                self._world.notes.sometimes("idempotency conflict")
                return None
            except StorageUnavailable:
                self._world.notes.sometimes("trigger answered late")
                await asyncio.sleep(0.5)
            else:
                self._world.acknowledged(handle, item)
                return handle
        return None

    async def _wait(self, handle: RunHandle[Any]) -> None:
        try:
            result = await handle.result(timeout=8.0)
        except RunUnsuccessful as ending:
            self._world.told(handle.id, ending.status, None)
        except RunNotFound:
            if handle.id not in self._world.oracle.pruned:
                self._world.notes.fail(f"run {handle.id}: a waiter was told that it does not exist")
        except ResultTimeout:
            pass
        else:
            self._world.told(handle.id, "succeeded", result)
