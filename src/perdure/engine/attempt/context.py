"""What a handler sees of its run."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Never, Protocol, TypeVar, cast

from perdure.core.json_text import check_label, in_utc
from perdure.core.run.run import Awaiting, AwaitingKind, Run
from perdure.engine.attempt.exits import Released
from perdure.engine.observability.handler_log import NOWHERE, RunLog, Sink
from perdure.engine.runtime.current_run import attempt_here
from perdure.engine.runtime.input import Duration, duration
from perdure.engine.runtime.keywords import explain_offers
from perdure.errors import InvalidInput, OutsideRun, TransactionError
from perdure.telemetry import table

if TYPE_CHECKING:
    from perdure.core.decide.ending import Ending, Settled
    from perdure.engine.attempt.transaction import HandlerTransaction, TransactionTerms

    MYPY = bool()  # noqa: UP018  # not a literal, which checkers would know
    """mypy takes it as true, other checkers do not know."""
    Y_co = TypeVar("Y_co", covariant=True)

    class _Release(Protocol[Y_co]):
        """`Context.release`, as checkers other than mypy see it. See ADR 45."""

        def __call__(
            self, *, delay: Duration | None = None, until: datetime | None = None
        ) -> Coroutine[Y_co, Any, Never]:
            """Give the run back until later, and leave the handler. Await it in `async def`."""
            ...


@explain_offers
class Context:
    """One attempt, seen from inside. Ask for it by annotation: `def task(ctx: Context, …)`."""

    def __init__(
        self, run: Run, sink: Sink = NOWHERE, terms: TransactionTerms | None = None
    ) -> None:
        assert run.lease is not None
        assert run.lease.attempt is not None
        self.run = run
        self.sink = sink
        self.attempt: int = run.lease.attempt
        self.fence: int = run.lease.fence
        self.awaits = False
        self.timings: dict[str, Any] = {}
        self.output: dict[str, Any] | None = None
        self._asked_to_stop = False
        self._terms = terms
        self._transaction: HandlerTransaction | None = None
        self._awaited: tuple[str, ...] = ()

    @cached_property
    def log(self) -> RunLog:
        """A logger whose lines carry the run's id, task and attempt, and are kept with the run."""
        return RunLog(self.run, self.attempt, self.sink)

    @property
    def run_id(self) -> str:
        return self.run.id

    @property
    def cancelled(self) -> bool:
        """Whether the attempt has been asked to stop. Long loops should look now and then."""
        return self._asked_to_stop

    def idempotency_key(self, name: str) -> str:
        """The same in every attempt of this run: give it to systems that know such keys."""
        check_label(name, "name", limit=1024)
        return hashlib.sha256(f"{self.run.id}:{name}".encode()).hexdigest()[:32]

    def transaction(self) -> HandlerTransaction:
        """A connection to Perdure's database, whose changes become durable together with this
        run's success, or not at all: `async with ctx.transaction() as connection:`, or `with`
        in a `def` handler. Once an attempt."""
        if self._terms is None:
            raise TransactionError(
                "ctx.transaction() needs a handler in the worker's own process: leave out "
                'executor="process"'
            )
        if self._transaction is None:
            self._transaction = self._terms.make(self)
        return self._transaction

    @property
    def has_transaction(self) -> bool:
        """Whether the attempt has asked for one, open or not."""
        return self._transaction is not None

    @property
    def open_transaction(self) -> HandlerTransaction | None:
        """The transaction in which runs triggered here take part."""
        transaction = self._transaction
        return transaction if transaction is not None and transaction.is_open else None

    @property
    def is_concluding(self) -> bool:
        """Whether the handler has returned and its transaction is being committed."""
        return self._transaction is not None and self._transaction.is_concluding

    async def conclude(self, ending: Ending) -> Ending | Settled:
        """For the worker: what became of an open transaction is the end of the attempt."""
        if self._transaction is None:
            return ending
        return await self._transaction.conclude(ending)

    @contextmanager
    def _note_wait(self, run_id: str) -> Iterator[None]:
        """Let others see that the attempt awaits the result of another run."""
        with _noting:
            self._awaited = (*self._awaited, run_id)
            self.sink.awaiting(self._awaited)
        try:
            yield
        finally:
            with _noting:
                left = list(self._awaited)
                left.remove(run_id)
                self._awaited = tuple(left)
                self.sink.awaiting(self._awaited)

    def progress(self, fraction: float, message: str = "") -> None:
        """Say how far it is, from 0 to 1. As often as you like: the latest word is kept."""
        done = _share(fraction)
        self.sink.progress(done, message)
        table.PROGRESS.say_on(self.log.aside, fraction=done, progress=message)

    def release(self, *, delay: Duration | None = None, until: datetime | None = None) -> Never:
        """Give the run back until later; it begins anew then. No failure, not counted. The call
        raises; in an `async def`, `await` it, since pyright cannot see otherwise that it ends."""
        if delay is not None and until is not None:
            raise InvalidInput("until", "give delay or until, not both")
        length = None if delay is None else duration(delay, "delay")
        raise Released(length, None if until is None else in_utc(until, "until"), None)

    if TYPE_CHECKING and not MYPY:
        # A call that is not awaited would be an unused coroutine, but not one of a union.
        release: _Release[object] | _Release[None]

    def wait_for(self, key: str, *, deadline: datetime | None = None) -> Never:
        """Give the run back until `key` is signalled, or until the deadline."""
        check_label(key, "key")
        deadline = None if deadline is None else in_utc(deadline, "deadline")
        raise Released(None, None, Awaiting(kind=AwaitingKind.SIGNAL, key=key, deadline=deadline))

    def ask_to_stop(self) -> None:
        """For the worker: the first rung of the ladder."""
        self._asked_to_stop = True


_noting = threading.Lock()
"""Handles of one attempt may wait on several threads."""


def current() -> Context:
    """The context of the attempt that runs here. Raises OutsideRun where there is none."""
    context = attempt_here()
    if context is None:
        raise OutsideRun
    return cast("Context", context)


def _share(fraction: Any) -> float:
    """Rounding errors are no reason to fail a run; something that is no number is a mistake."""
    if not isinstance(fraction, int | float) or math.isnan(fraction):
        raise InvalidInput("fraction", f"must be a number from 0 to 1, not {fraction!r}")
    return min(max(float(fraction), 0.0), 1.0)
