"""A trigger takes the same options in Python, in a shell and over HTTP, and they mean the same."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from command import Shell
from perdure import App, Retry
from perdure.core.run.run import Run
from perdure.engine.tasks.options import TriggerOptions
from perdure.web.models.trigger_requests import TriggerBody
from web_kit import serving

OPTIONS: dict[str, Any] = {
    "queue": "elsewhere",
    "priority": 7,
    "run_at": "2100-01-31T09:00:00Z",
    "delay": 3600.0,
    "ttl": 7200.0,
    "idempotency_key": "once",
    "idempotency_ttl": 60.0,
    "singleton_key": "alone",
    "concurrency_key": "acme",
    "tags": {"team": "red"},
    "meta": {"order": 7, "note": "by hand", "lines": [1, {"a": None}]},
    "debug": True,
    "retry": {"max_attempts": 9, "delays": [1.5, 30], "on_exhausted": "fail"},
    "timeout": 12.5,
    "continuation_of": "RUN",
}
"""A value of every option, as JSON has it. RUN stands for a run's id."""

BODY = {"task": "double", "payload": {"number": 1}}

FROM_HANDLERS_ONLY = {"parent_id", "root_id"}
"""The parent of a run is the run whose handler triggers it. Only Python code may name another."""

REPEATED = {"tags": "--tag", "meta": "--meta", "retry": "--retry"}
"""Flags that take KEY=VALUE, once for each key."""


def test_every_option_of_a_trigger_is_compared() -> None:
    assert set(OPTIONS) == set(TriggerOptions.__struct_fields__) - FROM_HANDLERS_ONLY
    assert set(OPTIONS) == set(TriggerBody.__struct_fields__) - {"task", "payload"}


@pytest.mark.parametrize("name", OPTIONS)
async def test_an_option_means_the_same_in_every_interface(
    shop_app: App, client: httpx.AsyncClient, shell: Shell, name: str
) -> None:
    first = await shop_app.tasks["double"].trigger(1)
    given = {name: first.id if OPTIONS[name] == "RUN" else OPTIONS[name]}

    made = [
        await _trigger_in_python(shop_app, given),
        await _trigger_in_shell(shop_app.url, shell, given),
        await _trigger_over_http(client, given),
        await _trigger_in_batch(client, given),
    ]
    runs = [await shop_app.runs.get(run_id) for run_id in made]

    plain = await shop_app.runs.get(first)
    assert _settings(runs[0]) != _settings(plain), f"{name} changes nothing"
    assert [_settings(run) for run in runs] == [_settings(runs[0])] * len(runs)


async def test_a_shell_sends_every_option_to_a_server(
    shop_app: App, shell: Shell, tmp_path: Path
) -> None:
    run = await shop_app.tasks["double"].trigger(1)
    given = {name: value for name, value in OPTIONS.items() if name != "run_at"}
    given["continuation_of"] = run.id

    with serving(shop_app.url, tmp_path) as server:
        afar = await _trigger_in_shell(server.address, shell, given)
    await shop_app.runs.cancel(afar)  # frees the singleton key
    await shop_app.runs.reset_idempotency_key(afar)
    beside = await _trigger_in_python(shop_app, given)

    assert afar != beside
    runs = [await shop_app.runs.get(run_id) for run_id in (afar, beside)]
    assert _settings(runs[0]) == _settings(runs[1])


async def test_a_run_that_does_not_exist_cannot_be_continued(
    shop_app: App, client: httpx.AsyncClient, shell: Shell
) -> None:
    missing = f"run_{0:032x}"
    body = BODY | {"continuation_of": missing}

    alone = await client.post("/v1/runs", json=body)
    batch = await client.post("/v1/runs:batch", json={"runs": [body, BODY]})
    told = await asyncio.to_thread(
        shell.perdure,
        *("trigger", "double", "--payload", '{"number": 1}', "--continuation-of", missing),
        PERDURE_URL=shop_app.url,
    )

    assert (alone.status_code, alone.json()["type"]) == (404, "urn:perdure:problem:run-not-found")
    assert [item.get("created", False) for item in batch.json()["items"]] == [False, True]
    assert (told.code, missing in told.err) == (1, True)


@pytest.mark.parametrize(
    ("flags", "advice"),
    [
        (("--retry", "attempts=5"), "attempts"),
        (("--retry", "max_attempts"), "--retry must be KEY=VALUE, not 'max_attempts'"),
        (("--retry", "max_attempts=many"), "retry.max_attempts"),
        (("--meta", "a=1", "--meta", "a=2"), "--meta a may be given only once"),
        (("--tag", "a=1", "--tag", "a=2"), "--tag a may be given only once"),
        (("--timeout", "0"), "timeout: must be"),
        (("--continuation-of", "it"), "continuation_of: 'it' is not the id of a run"),
    ],
    ids=str,
)
async def test_a_wrong_option_is_explained(
    shop_app: App, shell: Shell, flags: tuple[str, ...], advice: str
) -> None:
    answer = await asyncio.to_thread(
        shell.perdure,
        *("trigger", "double", "--payload", '{"number": 1}', *flags),
        PERDURE_URL=shop_app.url,
    )

    assert answer.code == 2
    assert advice in answer.err


async def _trigger_in_python(app: App, given: dict[str, Any]) -> str:
    options = dict(given)
    if "run_at" in options:
        options["run_at"] = datetime.fromisoformat(options["run_at"])
    if "retry" in options:
        options["retry"] = Retry(**options["retry"])
    return (await app.tasks["double"].options(**options).trigger(1)).id


async def _trigger_in_shell(url: str, shell: Shell, given: dict[str, Any]) -> str:
    flags = [word for name, value in given.items() for word in _flags(name, value)]
    answer = await asyncio.to_thread(
        shell.perdure,
        *("trigger", "double", "--payload", '{"number": 1}', *flags, "--json"),
        PERDURE_URL=url,
    )
    assert answer.code == 0, answer.err
    run_id: str = answer.json["id"]
    return run_id


def _flags(name: str, value: Any) -> list[str]:
    if name in REPEATED:
        pairs = [f"{key}={_word(it)}" for key, it in value.items()]
        return [word for pair in pairs for word in (REPEATED[name], pair)]
    flag = f"--{name.replace('_', '-')}"
    return [flag] if value is True else [flag, _word(value)]


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


async def _trigger_over_http(client: httpx.AsyncClient, given: dict[str, Any]) -> str:
    answer = await client.post("/v1/runs", json=BODY | given)
    assert answer.status_code in (200, 201), answer.text
    run_id: str = answer.json()["id"]
    return run_id


async def _trigger_in_batch(client: httpx.AsyncClient, given: dict[str, Any]) -> str:
    [item] = (await client.post("/v1/runs:batch", json={"runs": [BODY | given]})).json()["items"]
    run_id: str = item["id"]
    return run_id


def _settings(run: Run) -> dict[str, Any]:
    """What the options of a trigger decide. Times are relative to the run's creation."""
    names = (
        "queue priority policy idempotency_key singleton_key concurrency_key tags meta debug "
        "continuation_of root_id"
    )
    settings = {name: getattr(run, name) for name in names.split()}
    if run.continuation_of is None:
        settings["root_id"] = None
    for name in ("run_at", "expires_at"):
        at = getattr(run, name)
        is_fixed = at is None or at.year == 2100
        settings[name] = at if is_fixed else at - run.created_at
    return settings
