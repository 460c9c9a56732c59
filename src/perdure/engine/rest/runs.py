"""`app.runs`, `app.dead_letters` and `app.workers` through the API of a server."""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence, Sequence
from datetime import datetime
from typing import Any, TypeVar, Unpack

import msgspec

from perdure.core.explain.why import Why
from perdure.core.run.attempts import Attempt
from perdure.core.run.effects import DeadLetter
from perdure.core.run.events import RecordedEvent
from perdure.core.run.run import Run, is_run_id
from perdure.engine.client.handle import RunHandle
from perdure.engine.client.handles import Handles
from perdure.engine.observability.log_reader import Bundle
from perdure.engine.operators.filters import (
    MOST_ON_A_PAGE,
    LetterFilters,
    RunFilters,
    Statuses,
    make_filter,
    make_letter_filter,
    page_limit,
    plain_words,
)
from perdure.engine.operators.reruns import Payload
from perdure.engine.operators.runs import AnyRun, DeadLetters, Runs
from perdure.engine.operators.workers import Workers
from perdure.engine.rest.client import Items, RestClient
from perdure.engine.rest.records import (
    LogLineShown,
    Retried,
    RunId,
    Shown,
    decode_event,
    decode_log_line,
    decode_run,
)
from perdure.engine.runtime.input import OPERATOR, By, count, flag, reason_of, run_id_of, text
from perdure.engine.runtime.keywords import explain_methods
from perdure.engine.runtime.runtime import OpenComponents
from perdure.engine.tasks.catalogue import WorkerEntry
from perdure.errors import InvalidInput, RunNotFound
from perdure.storage.contract.inspection import LetterPage
from perdure.storage.contract.logs import LogLine, Progress, parse_cursor
from perdure.storage.contract.runs import Page

MAX_RUNS_BY_ID = 100
"""Runs that one request may ask for by their ids."""


T = TypeVar("T")


class ProgressShown(msgspec.Struct, frozen=True):
    progress: Progress | None


async def get_run(rest: RestClient, run: AnyRun) -> Run:
    return decode_run(await rest.get(Shown, "runs", _path_id(run)))


async def get_runs(rest: RestClient, run_ids: Sequence[str]) -> list[Run]:
    """The runs with these ids, in their order; without those that do not exist any more."""
    shown = await _details(rest, Shown, run_ids)
    found = {run.id: run for run in map(decode_run, shown)}
    return [found[run_id] for run_id in run_ids if run_id in found]


async def _details(rest: RestClient, kind: type[T], run_ids: Sequence[str]) -> list[T]:
    """What the server tells about these runs. It ends an answer early that gets large."""
    found: list[T] = []
    missing = list(run_ids)
    while missing:
        wanted = missing[:MAX_RUNS_BY_ID]
        page: Items[T] = await rest.get(Items[kind], "runs:details", ids=",".join(wanted))  # type: ignore[valid-type]  # known at run time only
        found += page.items
        # The cursor names the last run that was looked for.
        done = wanted if page.cursor is None else wanted[: wanted.index(page.cursor) + 1]
        missing = missing[len(done) :]
    return found


@explain_methods
class RemoteRuns(Runs):
    """The key names the operator, so `by` is ignored."""

    def __init__(self, components: OpenComponents, rest: RestClient, handles: Handles) -> None:
        self._components = components
        self._rest = rest
        self._handles = handles

    # Reading

    async def get(self, run: AnyRun) -> Run:
        return await get_run(self._rest, run)

    async def list(
        self,
        *,
        status: Statuses | None = None,
        limit: int = 50,
        cursor: str | None = None,
        **filters: Unpack[RunFilters],
    ) -> Page:
        given, now = {"status": status, **filters}, self._components.now()
        make_filter(self._components.environment, given, now)
        if cursor is not None:
            text(cursor, "cursor")
        words = query_words(plain_words(given, now))
        page = await self._rest.get(
            Items[RunId], "runs", limit=page_limit(limit), cursor=cursor, **words
        )
        runs = await get_runs(self._rest, [run.id for run in page.items])
        return Page(tuple(runs), page.cursor)

    async def why(self, run: AnyRun) -> Why:
        return await self._rest.get(Why, "runs", _path_id(run), "why")

    async def events(self, run: AnyRun, *, after: int = 0) -> Sequence[RecordedEvent]:
        run_id = _path_id(run)
        since = count(after, "after", least=0)
        found = await self._read_all(Shown, "runs", run_id, "events", after=str(since))
        return [decode_event(shown, run_id, self._components.environment) for shown in found]

    async def attempts(self, run: AnyRun) -> Sequence[Attempt]:
        return await self._read_all(Attempt, "runs", _path_id(run), "attempts")

    async def _read_all(self, kind: type[T], *path: str, after: str | None = "0") -> Sequence[T]:
        """Read page after page: a server bounds what it sends at once."""
        items: MutableSequence[T] = []
        while after is not None:
            page: Items[T] = await self._rest.get(Items[kind], *path, after=after)  # type: ignore[valid-type]  # known at run time only
            items += page.items
            after = page.cursor
        return items

    async def logs(
        self, run: AnyRun, *, after: str | None = None, limit: int = 1000
    ) -> Sequence[LogLine]:
        run_id, lines = _path_id(run), list[LogLine]()
        parse_cursor(after)
        left = count(limit, "limit")
        while left:
            asked = min(left, MOST_ON_A_PAGE)
            page = await self._rest.get(
                Items[LogLineShown], "runs", run_id, "logs", after=after, limit=asked
            )
            lines += map(decode_log_line, page.items)
            left, after = left - asked, page.cursor
            if after is None:
                break
        return lines

    async def progress(self, run: AnyRun) -> Progress | None:
        return (await self._rest.get(ProgressShown, "runs", _path_id(run), "progress")).progress

    async def bundle(self, run: AnyRun) -> Bundle:
        return await self._rest.get(Bundle, "runs", _path_id(run), "bundle")

    # Steering

    async def cancel(
        self,
        run: AnyRun,
        reason: str | None = None,
        *,
        by: By = OPERATOR,
        expected: int | None = None,
    ) -> Run:
        return await self._steer(run, "cancel", expected, reason=reason_of(reason))

    async def pause(
        self,
        run: AnyRun,
        reason: str | None = None,
        *,
        by: By = OPERATOR,
        expected: int | None = None,
    ) -> Run:
        return await self._steer(run, "pause", expected, reason=reason_of(reason))

    async def resume(self, run: AnyRun, *, by: By = OPERATOR, expected: int | None = None) -> Run:
        return await self._steer(run, "resume", expected)

    async def reschedule(
        self,
        run: AnyRun,
        *,
        by: By = OPERATOR,
        run_at: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        reason: str | None = None,
        expected: int | None = None,
    ) -> Run:
        change = {"run_at": run_at, "priority": priority, "queue": queue}
        return await self._steer(run, "reschedule", expected, reason=reason_of(reason), **change)

    async def wake(self, run: AnyRun, *, by: By = OPERATOR) -> Run:
        return await self._steer(run, "wake", None)

    async def reset_idempotency_key(
        self, run: AnyRun, reason: str | None = None, *, by: By = OPERATOR
    ) -> Run:
        return await self._steer(run, "reset-idempotency-key", None, reason=reason_of(reason))

    async def rerun(
        self,
        run: AnyRun,
        reason: str | None = None,
        *,
        by: By = OPERATOR,
        payload: Payload | None = None,
        new_id: str | None = None,
    ) -> RunHandle[Any]:
        return await _run_again(self._rest, run, "rerun", reason, payload, new_id)

    async def retry(
        self,
        run: AnyRun,
        reason: str | None = None,
        *,
        by: By = OPERATOR,
        payload: Payload | None = None,
        new_id: str | None = None,
        again: bool = False,
    ) -> RunHandle[Any]:
        said = {"again": True} if flag(again, "again") else {}
        return await _run_again(self._rest, run, "retry", reason, payload, new_id, **said)

    async def successors(self, runs: Sequence[AnyRun]) -> dict[str, str]:
        shown = await _details(self._rest, Retried, [run_id_of(run) for run in runs])
        return {it.id: it.retried_as for it in shown if it.retried_as is not None}

    async def _steer(self, run: AnyRun, action: str, expected: int | None, **body: Any) -> Run:
        path = ("runs", _path_id(run), action)
        return decode_run(await self._rest.send(Shown, "POST", *path, expected=expected, **body))


@explain_methods
class RemoteDeadLetters(DeadLetters):
    def __init__(self, environment: str, rest: RestClient, runs: RemoteRuns) -> None:
        self._environment = environment
        self._rest = rest
        self._runs = runs

    async def page(
        self,
        *,
        status: str | None = "open",
        limit: int = 100,
        cursor: str | None = None,
        **filters: Unpack[LetterFilters],
    ) -> LetterPage:
        make_letter_filter(self._environment, status, filters)
        page = await self._rest.get(
            Items[DeadLetter],
            "dead-letters",
            status="all" if status is None else status,
            limit=page_limit(limit),
            cursor=cursor,
            **filters,
        )
        return LetterPage(tuple(page.items), page.cursor)

    async def get(self, run: AnyRun) -> DeadLetter:
        return await self._rest.get(DeadLetter, "dead-letters", _path_id(run))

    async def replay(
        self,
        run: AnyRun,
        reason: str | None = None,
        *,
        by: By = OPERATOR,
        payload: Payload | None = None,
        new_id: str | None = None,
    ) -> RunHandle[Any]:
        return await _run_again(self._rest, run, "replay", reason, payload, new_id)

    async def discard(self, run: AnyRun, reason: str | None = None, *, by: By = OPERATOR) -> None:
        path = ("dead-letters", _path_id(run), "discard")
        await self._rest.send(DeadLetter, "POST", *path, reason=reason_of(reason))


@explain_methods
class RemoteWorkers(Workers):
    def __init__(self, rest: RestClient) -> None:
        self._rest = rest

    async def list(self) -> Sequence[WorkerEntry]:
        return await self._rest.get_all(WorkerEntry, "workers")

    async def leases(self, worker_id: str) -> Sequence[Run]:
        path = ("workers", text(worker_id, "worker_id"), "leases")
        page = await self._rest.get(Items[RunId], *path)
        return await get_runs(self._rest, [run.id for run in page.items])

    async def drain(
        self, worker_id: str, reason: str | None = None, *, by: By = OPERATOR
    ) -> WorkerEntry:
        path = ("workers", text(worker_id, "worker_id"), "drain")
        return await self._rest.send(WorkerEntry, "POST", *path, reason=reason_of(reason))


async def _run_again(
    rest: RestClient,
    run: AnyRun,
    action: str,
    reason: str | None,
    payload: Payload | None,
    new_id: str | None,
    **said: Any,
) -> RunHandle[Any]:
    if new_id is not None:
        raise InvalidInput("new_id", "cannot be chosen over HTTP; leave it out")
    if payload is not None and not isinstance(payload, Mapping):
        raise InvalidInput("payload", f"must be a dict of arguments, not {payload!r:.80}")
    path = ("dead-letters" if action == "replay" else "runs", _path_id(run), action)
    return await rest.create_run(*path, reason=reason_of(reason), payload=payload, **said)


def query_words(words: dict[str, Any]) -> dict[str, Any]:
    """Filters of runs as the API spells them. `make_filter` has checked them."""
    plain = {name: value for name, value in words.items() if name != "tag"}
    if words.get("tag") is not None:
        plain["tag"] = encode_tag(words["tag"])
    return plain


def encode_tag(tag: tuple[str, str]) -> str:
    """Raises InvalidInput for a key that the API cannot tell from its value."""
    key, value = tag
    if not key or "=" in key:
        problem = f"the API takes KEY=VALUE, so the key must hold no '=', but is {key!r:.80}"
        raise InvalidInput("tag", problem)
    return f"{key}={value}"


def _path_id(run: AnyRun) -> str:
    """The id of a run, as part of a path. Raises RunNotFound for one that no run has."""
    run_id = run_id_of(run)
    if not is_run_id(run_id):
        raise RunNotFound(run_id)
    return run_id
