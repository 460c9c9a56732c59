"""What may be a task, what may be said about one, and about an app."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from builders import as_id
from perdure import App, Retry
from perdure.core.run.backoff import Backoff, BackoffKind
from perdure.core.run.run import OnExhausted
from perdure.engine.definition.definition import task_settings
from perdure.engine.runtime.clock import SystemClock
from perdure.engine.runtime.defaults import Defaults
from perdure.engine.tasks.options import TaskKeywords, TriggerKeywords, TriggerOptions
from perdure.errors import InvalidInput, InvalidTask, StorageRefused
from perdure.storage import open_storage, options_of
from perdure.storage.postgres.storage import PostgresStorage
from perdure.storage.sqlite import SqliteStorage


@pytest.fixture
def app(sqlite_storage_url: str) -> App:
    return App(sqlite_storage_url)


def identity(x: int) -> int:
    return x


async def slow(x: int) -> int:
    return x


def many(x: int) -> Iterator[int]:
    yield x


async def many_slow(x: int) -> AsyncIterator[int]:
    yield x


@functools.wraps(slow)
def hasty(*args: Any, **kwargs: Any) -> Any:
    return slow(*args, **kwargs)


class Service:
    def method(self, x: int) -> int:
        return x

    @staticmethod
    def static(x: int) -> int:
        return x

    def __call__(self, x: int) -> int:
        return x


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (Service.method, "Service.method: is a method, and a run has no `self`"),
        (Service, "is a class"),
        (Service(), "is an object that can be called, not a function"),
        (functools.partial(identity, 1), "is a partial"),
        (len, "len: is a builtin"),
        (many, "many: yields, and a run has one result"),
        (many_slow, "many_slow: yields, and a run has one result"),
        (hasty, "is a `def` around an `async def`"),
        (lambda x: x, "is a lambda without a name"),
        (staticmethod(identity), "put @app.task below @staticmethod"),
        ("welcome", "say @app.task(name='welcome')"),
        (5, "is no function"),
        (None, "is no function"),
    ],
    ids=as_id,
)
def test_what_cannot_be_a_task_is_told_why(app: App, function: Any, problem: str) -> None:
    for define in (app.task, app.task(queue="mail")):
        with pytest.raises(InvalidTask) as refused:
            define(function)
        assert problem in str(refused.value)


def test_a_task_is_not_made_twice(app: App) -> None:
    task = app.task(identity)

    with pytest.raises(InvalidTask, match="is a task already"):
        app.task(task)
    with pytest.raises(InvalidTask, match="there is a task 'identity' already"):
        app.task(identity)


def test_functions_of_every_other_kind_are_tasks(app: App) -> None:
    assert app.task(Service.static).name == "static"
    assert app.task(name="bound")(Service().method).name == "bound"
    assert app.task(name="doubled")(lambda x: 2 * x)(4) == 8
    assert repr(app.task(identity)) == f"<task identity in {__name__}>"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"retries": 3}, "retries: is no setting of a task; did you mean retry?"),
        ({"bogus": 3}, "bogus: is no setting of a task; there are: name, aliases, queue"),
        ({"retry": 5}, "retry: must be a Retry, e.g. Retry(max_attempts=5), not 5"),
        ({"timeout": 0}, "timeout: must be longer than nothing, not 0"),
        ({"timeout": float("nan")}, "timeout: must be a number of seconds"),
        ({"timeout": float("inf")}, "timeout: must be a number of seconds"),
        ({"timeout": 1e300}, "timeout: must be a number of seconds"),
        ({"timeout": "30"}, "timeout: must be seconds or a timedelta, not '30'"),
        ({"ttl": 0}, "ttl: must be longer than nothing"),
        ({"lease_ttl": -1}, "lease_ttl: must not be negative, but is -1"),
        ({"lease_ttl": 3601}, "lease_ttl: must be 1 h at most, not 1 h 1 s"),
        ({"name": "perdure.bulk"}, "name: 'perdure.bulk' is the engine's own"),
        ({"aliases": ["perdure.x"]}, "aliases: 'perdure.x' is the engine's own"),
        ({"priority": 11}, "priority: must be a whole number from 0 to 10, not 11"),
        ({"version": "1"}, "version: must be a whole number from 0 on, not '1'"),
        ({"executor": "proces"}, "not 'proces'; did you mean process?"),
        ({"executor": "async"}, "async does not fit identity, which is `def`; use thread"),
        ({"on_lease_expired": "retri"}, "not 'retri'; did you mean retry?"),
        ({"record_heartbeats": "yes"}, "record_heartbeats: must be True or False"),
        ({"queue": ""}, "queue: must have 1 to 256 bytes, not 0"),
        ({"name": 7}, "name: must be text, not 7"),
    ],
    ids=as_id,
)
def test_a_bad_setting_is_named_where_it_is_written(
    app: App, settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        app.task(**settings)(identity)

    assert problem in str(refused.value)
    assert app.tasks == {}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"max_attempts": -1}, "retry.max_attempts: must be a whole number from 0 on, not -1"),
        ({"max_attempts": True}, "retry.max_attempts: must be a whole number"),
        ({"kind": "expo"}, "retry.kind: must be one of exponential, linear, fixed, list"),
        ({"kind": "list"}, "needs at least one delay"),
        ({"delays": 5}, "retry.delays: must be a list of seconds, not 5"),
        ({"delays": [1, "x"]}, "retry.delays: must be seconds or a timedelta, not 'x'"),
        ({"initial": -1}, "retry.initial: must not be negative"),
        (
            {"initial": 9000, "maximum": 60},
            "retry.initial: 2 h 30 min is longer than maximum, 1 min, so it would never be",
        ),
        ({"maximum": float("inf")}, "retry.maximum: must be a number of seconds"),
        ({"factor": 0.5}, "retry.factor: must be a number between 1 and 1000, not 0.5"),
        ({"jitter": "x"}, "retry.jitter: must be a number between 0 and 1, not 'x'"),
        ({"on_exhausted": "boom"}, "retry.on_exhausted: must be one of dead_letter, fail"),
        ({"poison_threshold": 0}, "retry.poison_threshold: must be a whole number from 1 on"),
    ],
    ids=as_id,
)
def test_a_bad_retry_is_named_at_once(words: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Retry(**words)

    assert problem in str(refused.value)


def test_what_a_retry_does_not_say_holds_as_configured(sqlite_storage_url: str) -> None:
    defaults = Defaults(
        max_attempts=7,
        backoff_initial=timedelta(seconds=4),
        backoff_jitter=0.0,
        idempotency_ttl=timedelta(hours=1),
    )
    app = App(sqlite_storage_url, defaults=defaults)

    plain = app.task(name="plain")(identity).settings.policy
    retry = Retry(maximum=60, kind="linear", on_exhausted="fail")
    said = app.task(name="said", retry=retry)(identity).settings.policy

    assert (plain.max_attempts, said.max_attempts) == (7, 7)
    assert plain.idempotency_ttl == timedelta(hours=1)
    assert said.on_exhausted is OnExhausted.FAIL
    assert said.backoff == Backoff(
        kind=BackoffKind.LINEAR,
        initial=timedelta(seconds=4),
        maximum=timedelta(seconds=60),
        spread=0.0,
    )


def test_a_first_delay_that_would_never_be_waited_for_is_refused(app: App) -> None:
    with pytest.raises(InvalidInput, match="2 h 30 min is longer than maximum, 1 h"):
        app.task(retry=Retry(initial=9000))(identity)

    listed = app.task(retry=Retry(initial=9000, delays=[1]))(identity)
    assert listed.settings.policy.backoff.delays == (timedelta(seconds=1),)


async def test_a_trigger_overrides_only_what_its_retry_says(app: App) -> None:
    task = app.task(retry=Retry(max_attempts=5, initial=2, on_exhausted="fail"))(identity)

    async with app:
        run = await (await task.options(retry=Retry(maximum=9)).trigger(1)).get()

    assert (run.policy.max_attempts, run.policy.on_exhausted) == (5, OnExhausted.FAIL)
    assert run.policy.backoff.initial == timedelta(seconds=2)
    assert run.policy.backoff.maximum == timedelta(seconds=9)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"dealy": 3}, "dealy: is no option of a trigger; did you mean delay?"),
        ({"run_at": "2024"}, "run_at: must be a datetime, not '2024'"),
        ({"run_at": datetime(2026, 1, 1)}, "must be an instant that says its time zone"),  # noqa: DTZ001  # the point
        ({"delay": float("nan")}, "delay: must be a number of seconds"),
        ({"tags": ["a"]}, "tags: must be a dict, e.g. {'team': 'red'}, not ['a']"),
        ({"tags": {"a": 1}}, "tags.a: must be text, not 1"),
        ({"meta": [1]}, "meta: must be a dict, not [1]"),
        ({"meta": {"a": object()}}, "meta: cannot be kept as JSON"),
        ({"priority": True}, "priority: must be a whole number from 0 to 10, not True"),
        ({"idempotency_key": 5}, "idempotency_key: must be text, not 5"),
        ({"singleton_key": ""}, "singleton_key: must have 1 to 256 bytes"),
        ({"debug": "yes"}, "debug: must be True or False, not 'yes'"),
        ({"retry": 5}, "retry: must be a Retry"),
        ({"timeout": 0}, "timeout: must be longer than nothing"),
        ({"parent_id": "x"}, "parent_id: 'x' is not the id of a run"),
        (
            {"run_at": datetime(2026, 1, 1, tzinfo=UTC), "delay": 1},
            "give run_at or delay, not both",
        ),
    ],
    ids=as_id,
)
def test_a_bad_option_is_named_where_it_is_written(
    app: App, options: dict[str, Any], problem: str
) -> None:
    task = app.task(identity)

    with pytest.raises(InvalidInput) as refused:
        task.options(**options)

    assert problem in str(refused.value)


async def test_options_add_up_and_the_later_word_counts(app: App) -> None:
    task = app.task(identity).options(priority=3, delay=60, tags={"a": "b"})

    async with app:
        run = await (await task.options(delay=None, priority=4).trigger(1)).get()
        moved = await (await task.options(run_at=datetime(2030, 1, 1, tzinfo=UTC)).trigger(1)).get()

    assert (run.priority, run.run_at, run.tags) == (4, None, {"a": "b"})
    assert (moved.priority, moved.run_at) == (3, datetime(2030, 1, 1, tzinfo=UTC))


async def test_a_parameter_may_be_called_self(app: App) -> None:
    @app.task
    def odd(self: int, app: int) -> int:
        return self + app

    async with app.run_all():
        assert await (await odd.trigger(self=1, app=2)).result(timedelta(seconds=10)) == 3
        with pytest.raises(InvalidInput, match="timeout: must be seconds or a timedelta, not '5'"):
            await (await odd.trigger(1, 2)).result("5")  # type: ignore[arg-type]  # the point


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"queues": "mail"}, "queues: must be a list of names, e.g. ['mail'], not 'mail'"),
        ({"queues": []}, "queues: name at least one, or leave it out to serve all"),
        ({"queues": [5]}, "queues: must be text, not 5"),
        ({"concurrency": 0}, "concurrency: must be a whole number from 1 on, not 0"),
        ({"drain": -1}, "drain: must not be negative"),
    ],
    ids=as_id,
)
async def test_a_bad_worker_is_refused(app: App, words: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        app.worker(**words)
    with pytest.raises(InvalidInput):
        async with app.run_all(**words):
            raise NotImplementedError

    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("url", "words", "problem"),
    [
        (5, {}, "url: must be a text or a path, not 5"),
        ("foo", {}, "url: 'foo' names no storage; use sqlite:///file.db"),
        ("sqlite:///x.db?mode=ro", {}, "takes nothing after a question mark"),
        ("sqlite:///x.db", {"enviroment": "p"}, "enviroment: is no option of an App here; did you"),
        ("sqlite:///x.db", {"max_connections": 5}, "max_connections: is no option of an App here"),
        ("sqlite:///x.db", {"environment": ""}, "environment: must have 1 to 256 bytes"),
    ],
    ids=as_id,
)
def test_a_bad_app_is_refused_at_once(url: Any, words: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        App(url, **words)

    assert problem in str(refused.value)


async def test_a_file_may_be_given_as_a_path(tmp_path: Path) -> None:
    async with App(tmp_path / "runs.db"):
        assert (tmp_path / "runs.db").exists()


async def test_a_tilde_is_ones_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    async with App("sqlite:///~/runs.db"):
        assert (tmp_path / "runs.db").exists()


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing/runs.db", "there is no directory {}/missing; make it first"),
        (".", "it is a directory; name a file in it"),
        ("text", "not a database"),
    ],
)
async def test_a_file_that_cannot_be_opened_is_named(
    tmp_path: Path, name: str, problem: str
) -> None:
    (tmp_path / "text").write_text("not a database, by far not, as anybody can see" * 100)
    app = App(tmp_path / name)

    with pytest.raises(StorageRefused) as refused:
        await app.__aenter__()

    assert f"SQLite cannot open {tmp_path / name}: " in str(refused.value)
    assert problem.format(tmp_path) in str(refused.value)


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "perdure.storage.postgres.storage", None)

    with pytest.raises(InvalidInput, match=r"pip install 'perdure\[postgres\]'"):
        open_storage("postgresql://u@h/x", SystemClock())


def keywords(function: Callable[..., Any]) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def test_type_checkers_know_the_same_words_as_we_do() -> None:
    assert set(get_type_hints(TaskKeywords)) == keywords(task_settings)
    assert set(get_type_hints(TriggerKeywords)) == set(TriggerOptions.__struct_fields__)
    assert set(options_of("sqlite:///x.db")) == keywords(SqliteStorage.__init__)
    assert set(options_of("postgresql://h/x")) == keywords(PostgresStorage.__init__)
