"""A run that somebody asked for, and may wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.engine.runtime.current_run import note_wait_here, transaction_here
from perdure.engine.runtime.input import Duration, duration
from perdure.errors import (
    ResultTimeout,
    RunCancelled,
    RunExpired,
    RunFailed,
    RunNotFound,
    RunSkipped,
    RunUnsuccessful,
    TransactionError,
)

if TYPE_CHECKING:
    from perdure.engine.client.results import EndedRun, Results
    from perdure.engine.tasks.signature import Signature
    from perdure.engine.tasks.task_definition import TaskDefinition

R = TypeVar("R")
T = TypeVar("T")

_ERRORS: dict[Status, type[RunUnsuccessful]] = {
    Status.FAILED: RunFailed,
    Status.DEAD_LETTERED: RunFailed,
    Status.CANCELLED: RunCancelled,
    Status.EXPIRED: RunExpired,
    Status.SKIPPED: RunSkipped,
}


class RunReader(Protocol):
    async def get(self, run: str, /) -> Run: ...


class HandleSync(Protocol):
    """The app of a handle, for code that cannot await."""

    def call(self, use: Callable[[HandleApp], Awaitable[T]], /) -> T: ...

    def wait(self, use: Callable[[HandleApp], Awaitable[T]], method: str, instead: str, /) -> T: ...


class HandleApp(Protocol):
    """What a handle needs of the app that it belongs to."""

    @property
    def url(self) -> str: ...

    @property
    def runs(self) -> RunReader: ...

    @property
    def results(self) -> Results: ...

    @property
    def served_tasks(self) -> Mapping[str, TaskDefinition]: ...

    @property
    def sync(self) -> HandleSync: ...


class RunHandle(Generic[R]):
    """`id`, and whether this trigger made the run or found the one that owned its key."""

    def __init__(self, app: HandleApp, run_id: str, signature: Signature | None, *, created: bool):
        self._app = app
        self._signature = signature
        self.id = run_id
        self.created = created

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    def __eq__(self, other: object) -> bool:
        """Two handles of one run are the same, whoever made it."""
        return isinstance(other, RunHandle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def outcome(self) -> str:
        return "created" if self.created else "returned_existing"

    async def get(self) -> Run:
        """The run as it is now."""
        return await self._app.runs.get(self.id)

    def get_sync(self) -> Run:
        """`get`, from code that cannot await."""
        return self._app.sync.call(lambda app: app.runs.get(self.id))

    async def result(self, timeout: Duration | None = None) -> R:  # noqa: ASYNC109  # the contract
        """What the run returned, once it has ended; `timeout` in seconds or as a timedelta.

        Raises RunFailed, RunCancelled, RunExpired or RunSkipped; ResultTimeout if it has not
        ended in time.
        """
        _refuse_to_wait_for_oneself(self.id, self._app.url)
        limit = None if timeout is None else duration(timeout, "timeout").total_seconds()
        try:
            async with asyncio.timeout(limit):
                with note_wait_here(self.id):
                    run = await self._app.results.ended(self.id)
        except TimeoutError:
            raise ResultTimeout(self.id, limit or 0.0) from None
        except RunNotFound:
            await self.get()  # if it is there and cannot be read, this says so
            raise
        value: R = result_of(run, self._signature or self._known_signature(run))
        return value

    def result_sync(self, timeout: Duration | None = None) -> R:
        """`result`, from code that cannot await."""
        return self._app.sync.wait(
            lambda app: RunHandle[R](app, self.id, self._signature, created=self.created).result(
                timeout
            ),
            "run.result_sync()",
            "write `await run.result()`",
        )

    def _known_signature(self, run: EndedRun) -> Signature | None:
        """A run known by its id only may be one of a task that this app knows."""
        task = self._app.served_tasks.get(run.task)
        return None if task is None else task.signature


def _refuse_to_wait_for_oneself(run_id: str, url: str) -> None:
    """A run that was triggered inside a handler's transaction begins after that has ended."""
    transaction = transaction_here(url)
    if transaction is not None and run_id in transaction.children:
        raise TransactionError(
            f"run {run_id} was triggered inside this handler's ctx.transaction() and exists only "
            "once that is committed; trigger it before, or let another run wait for it"
        )


def result_of(run: EndedRun, signature: Signature | None) -> Any:
    """What an ended run returned; plain data without a signature. Raises RunUnsuccessful."""
    if run.status is not Status.SUCCEEDED:
        why = run.failure.message if run.failure is not None else run.reason or ""
        raise _ERRORS[run.status](run.id, run.status, why, run.failure)
    if run.result_json is msgspec.UNSET:
        return None
    if signature is None:
        return run.result
    return signature.decode_result(run.result_json)
