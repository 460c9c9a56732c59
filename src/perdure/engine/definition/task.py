"""A task: an ordinary function that can also be asked for durably."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    Unpack,
    cast,
)

import msgspec

from perdure.engine.client.handle import HandleApp, RunHandle
from perdure.engine.runtime.current_run import transaction_here
from perdure.engine.runtime.input import only_known
from perdure.engine.tasks.options import TaskSettings, TriggerKeywords, TriggerOptions
from perdure.engine.tasks.signature import Signature

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from perdure.engine.attempt.context import Context
    from perdure.engine.client.trigger import LastMade
    from perdure.engine.definition.transactional import Place, TransactionalTask
    from perdure.engine.observability.metrics import Metrics
    from perdure.engine.observability.tracing import Tracing
    from perdure.engine.runtime.defaults import Defaults
    from perdure.engine.runtime.runtime import Components
    from perdure.engine.tasks.concurrency_key import KeyFunction

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class TriggerClient(Protocol):
    """Asks for runs, beside a database or at a server."""

    async def trigger(
        self, task: Task[..., R], payload: msgspec.Raw, options: TriggerOptions, /
    ) -> RunHandle[R]: ...

    async def trigger_many(
        self, task: Task[..., R], items: Iterable[Mapping[str, Any]], options: TriggerOptions, /
    ) -> list[RunHandle[R] | Exception]: ...


class TaskSync(Protocol):
    """The app of a task, for code that cannot await."""

    def call(self, use: Callable[[TaskApp], Awaitable[T]], /) -> T: ...


class TaskApp(Protocol):
    """What a task needs of the app that it belongs to."""

    @property
    def url(self) -> str: ...

    @property
    def defaults(self) -> Defaults: ...

    @property
    def components(self) -> Components: ...

    @property
    def tracing(self) -> Tracing: ...

    @property
    def metrics(self) -> Metrics: ...

    @property
    def client(self) -> TriggerClient: ...

    @property
    def sync(self) -> TaskSync: ...

    @property
    def original(self) -> HandleApp:
        """The app that the runs' handles belong to."""

    def executing(self, run_id: str, /) -> AbstractAsyncContextManager[object]:
        """Execute this run here."""


class Task(Generic[P, R]):
    """Made by `@app.task`. Called like the function it was, it is that function."""

    def __init__(
        self,
        app: TaskApp,
        function: Callable[..., Any],
        settings: TaskSettings,
        signature: Signature,
        options: TriggerOptions | None = None,
        *,
        key_function: KeyFunction | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.app = app
        self.function = function
        self.settings = settings
        self.signature = signature
        self._options = options or TriggerOptions()
        self.key_function = key_function
        self.last_made: LastMade | None = None

    def __repr__(self) -> str:
        return f"<task {self.name} in {self.function.__module__}>"

    @functools.cached_property
    def schema_digest(self) -> str:
        """Tells code that takes other payloads from this code."""
        text = msgspec.json.encode([self.settings.version, self.signature.schema()], order="sorted")
        return hashlib.sha256(text).hexdigest()[:16]

    @property
    def name(self) -> str:
        return self.settings.name

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """The function itself, here and now, without a run."""
        return self.function(*args, **kwargs)

    def options(self, **options: Unpack[TriggerKeywords]) -> Self:
        """The same task, asked for differently: see `TriggerOptions`. Options add up."""
        only_known(options, TriggerOptions.__struct_fields__, "option of a trigger")
        made = self._options.changed(cast("dict[str, Any]", options))
        about = (self.app, self.function, self.settings, self.signature, made)
        return type(self)(*about, key_function=self.key_function)

    def using(self, connection: Any) -> TransactionalTask[P, R]:
        """The same task, asked for inside the transaction that is open on `connection`: of
        psycopg, psycopg2, asyncpg, sqlite3, aiosqlite, SQLAlchemy or Django."""
        from perdure.engine.definition.transactional import Borrowing

        inside = transaction_here(self.app.url)
        own = inside is not None and inside.connection is connection
        return self._in(inside if inside is not None and own else Borrowing(connection))

    def _in(self, place: Place) -> TransactionalTask[P, R]:
        from perdure.engine.definition.transactional import TransactionalTask

        return TransactionalTask(self, self._options, place)

    async def trigger(self, /, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R]:
        """Ask for a run. When this returns, the run is durable; inside of a handler's open
        `ctx.transaction()`, it will be once that is committed."""
        if (place := transaction_here(self.app.url)) is not None:
            return await self._in(place).trigger(*args, **kwargs)
        payload = self.payload(args, kwargs)
        return await self.app.client.trigger(self, payload, self._options)

    def trigger_sync(self, /, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R]:
        """`trigger`, from code that cannot await."""
        if (place := transaction_here(self.app.url)) is not None:
            return self._in(place).trigger_sync(*args, **kwargs)
        payload = self.payload(args, kwargs)
        return self.app.sync.call(lambda app: app.client.trigger(self, payload, self._options))

    async def trigger_many(
        self, items: Iterable[Mapping[str, Any]]
    ) -> list[RunHandle[R] | Exception]:
        """Ask for one run an item, with one batch id. One bad item does not stop the others:
        in its place stands the error. If storage failed and nothing was kept, that is raised; if it
        failed in between, in place of each item that was not kept stands that error."""
        if (place := transaction_here(self.app.url)) is not None:
            return await self._in(place).trigger_many(items)
        return await self.app.client.trigger_many(self, items, self._options)

    def trigger_many_sync(
        self, items: Iterable[Mapping[str, Any]]
    ) -> list[RunHandle[R] | Exception]:
        """`trigger_many`, from code that cannot await."""
        if (place := transaction_here(self.app.url)) is not None:
            return self._in(place).trigger_many_sync(items)
        return self.app.sync.call(lambda app: app.client.trigger_many(self, items, self._options))

    async def run(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Trigger, claim and execute here, as durably as anywhere: retries, limits and the lease
        hold, and if this process dies another worker goes on."""
        handle = await self.trigger(*args, **kwargs)
        async with self.app.executing(handle.id):
            return await handle.result()

    def payload(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> msgspec.Raw:
        """The arguments of one call as JSON. Raises InvalidInput."""
        limit = self.app.defaults.payload_limit
        return self.signature.encode(self.signature.bind(args, kwargs), limit)


if TYPE_CHECKING:
    # For type checkers only: what a task gives when it is called like the function it was.

    class Anything:
        """Accepted only by a parameter that takes every object: one that is untyped, `Any` or
        `object`. It takes a `Context`, too, but is not a request for one."""

    class PlainTask(Task[P, R]):
        def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    class AsyncTask(Task[P, R]):
        def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...

    class ContextTask(Task[P, R]):
        def __call__(self, ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    class AsyncContextTask(Task[P, R]):
        def __call__(
            self, ctx: Context, /, *args: P.args, **kwargs: P.kwargs
        ) -> Coroutine[Any, Any, R]: ...

    class OptionalContextTask(Task[P, R]):
        def __call__(
            self, ctx: Context | None = None, /, *args: P.args, **kwargs: P.kwargs
        ) -> R: ...

    class AsyncOptionalContextTask(Task[P, R]):
        def __call__(
            self, ctx: Context | None = None, /, *args: P.args, **kwargs: P.kwargs
        ) -> Coroutine[Any, Any, R]: ...
