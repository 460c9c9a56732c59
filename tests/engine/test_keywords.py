"""Keywords and settings that nobody knows are answered with what was perhaps meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import App, Defaults, Fail, Rate, Retry, RetryAfter
from perdure.app import configuration
from perdure.app.configuration import configured
from perdure.engine.rest.audit import RemoteAuditPages
from perdure.engine.rest.keys import RemoteKeys
from perdure.engine.rest.limits import RemoteLimits, RemoteQueues
from perdure.engine.rest.manifests import RemoteManifests
from perdure.engine.rest.runs import RemoteDeadLetters, RemoteRuns, RemoteWorkers
from perdure.engine.rest.schedules import RemoteSchedules
from perdure.engine.rest.webhooks import RemoteWebhooks
from perdure.errors import InvalidInput

Made = Callable[..., Any]

REMOTE_OPERATORS = [
    RemoteAuditPages,
    RemoteDeadLetters,
    RemoteKeys,
    RemoteLimits,
    RemoteManifests,
    RemoteQueues,
    RemoteRuns,
    RemoteSchedules,
    RemoteWebhooks,
    RemoteWorkers,
]


@pytest.mark.parametrize(
    ("call", "given", "meant"),
    [
        (Retry, "max_attempt", "max_attempts"),
        (Defaults, "lease_tll", "lease_ttl"),
        (Fail, "retriable", "retryable"),
        (lambda **how: RetryAfter(5, **how), "mesage", "message"),
        (lambda **how: App("sqlite:///x.db").queue("mail", **how), "concurency", "concurrency"),
        (lambda **how: App("sqlite:///x.db").worker(**how), "queue", "queues"),
        (lambda **how: App("sqlite:///x.db").run_all(**how), "concurrancy", "concurrency"),
    ],
)
def test_a_misspelt_keyword_is_answered_with_the_nearest(
    call: Made, given: str, meant: str
) -> None:
    with pytest.raises(InvalidInput, match=f"^{given}: is no argument of .*did you mean {meant}"):
        call(**{given: 1})


async def test_operators_keywords_are_explained_too(sqlite_storage_url: str) -> None:
    async with App(sqlite_storage_url) as app:
        wrong: dict[str, Any] = {"reasons": "x"}
        with pytest.raises(InvalidInput, match="did you mean concurrency"):
            await app.queues.set("mail", **{"concurency": 1})  # type: ignore[arg-type]  # the point
        with pytest.raises(InvalidInput, match=r"argument of Runs\.logs; did you mean limit"):
            await app.runs.logs("run_1", **{"limits": 5})  # type: ignore[arg-type]  # the point
        with pytest.raises(InvalidInput, match="did you mean reason"):
            await app.runs.cancel("run_1", **wrong)


@pytest.mark.parametrize("remote", REMOTE_OPERATORS, ids=lambda remote: remote.__name__)
async def test_operators_at_a_server_explain_keywords_in_the_same_words(
    remote: type[Any],
) -> None:
    [local] = remote.__bases__
    names = [name for name, it in vars(local).items() if _has_fixed_keywords(name, it)]
    assert names

    for name in names:
        assert await _refusal(getattr(remote, name)) == await _refusal(getattr(local, name))


def _has_fixed_keywords(name: str, member: object) -> bool:
    """Return whether `member` is a public method that checks no keywords itself."""
    if name.startswith("_") or not inspect.isfunction(member):
        return False
    kinds = [parameter.kind for parameter in inspect.signature(member).parameters.values()]
    return inspect.Parameter.VAR_KEYWORD not in kinds


async def _refusal(method: Made) -> str:
    with pytest.raises(InvalidInput) as refused:
        await _done(method)
    return str(refused.value)


async def _done(method: Made) -> None:
    made = method(None, zzz=1)
    if inspect.isawaitable(made):
        await made


def test_a_keyword_like_nothing_is_answered_with_all_there_are() -> None:
    with pytest.raises(InvalidInput, match="there are: max_attempts, initial"):
        Retry(zzz=1)  # type: ignore[call-arg]  # that is the point


def test_what_is_explained_keeps_its_signature() -> None:
    assert "concurrency" in inspect.signature(App.worker).parameters
    assert inspect.iscoroutinefunction(perdure.engine.operators.runs.Runs.cancel)


def test_defaults_take_seconds_and_timedeltas() -> None:
    given: Any = {"lease_ttl": 12, "poll": 0.5, "backoff_factor": 3}
    defaults = Defaults(**given, retention=timedelta(days=1))

    assert (defaults.lease_ttl, defaults.poll) == (timedelta(seconds=12), timedelta(seconds=0.5))
    assert defaults.backoff_factor == 3.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease_ttl", "30"),
        ("lease_ttl", 0),
        ("lease_ttl", -1),
        ("poll", True),
        ("retention", float("inf")),
        ("concurrency", 0),
        ("concurrency", 1.5),
        ("max_attempts", -1),
        ("backoff_factor", 0.5),
        ("backoff_jitter", float("nan")),
        ("environment", ""),
        ("queue", 5),
        ("url", None),
    ],
)
def test_a_default_that_makes_no_sense_is_refused_where_it_is_given(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"^{name}: "):
        Defaults(**{name: value})


def test_an_app_takes_no_other_defaults_and_no_empty_url() -> None:
    with pytest.raises(InvalidInput, match="defaults: must be a Defaults, not 5"):
        App("sqlite:///x.db", defaults=5)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(InvalidInput, match="url"):
        App("")


def test_a_misspelt_variable_is_warned_about_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(configuration, "_said_misspelt", set())
    variables = {"PERDURE_LEASE_TLL": "5", "PERDURE_API_KEY": "x", "PERDURE_OF_OURS": "y"}
    for _ in range(2):
        configured(variables, tmp_path / "none.toml")

    assert [record.getMessage() for record in caplog.records] == [
        "PERDURE_LEASE_TLL is no setting; did you mean PERDURE_LEASE_TTL?"
    ]


def test_a_rate_still_says_what_is_wrong_with_it() -> None:
    with pytest.raises(InvalidInput, match="burst"):
        Rate(1, burst=0)
