"""What a manifest states, and how each mistake in one is told: file, line, field, value, remedy."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import Manifest, at, cron, every
from perdure.core.schedule import Cadence
from perdure.engine.manifests.schema import (
    CONTAINER,
    RETRY,
    SCHEDULE,
    SETTINGS,
    TASK,
    json_schema,
    read_length,
    say_length,
)
from perdure.engine.runtime.secret import Secret
from perdure.engine.schedules.options import ScheduleKeywords
from perdure.engine.tasks.options import Retry, TargetKeywords
from perdure.engine.tasks.target import HttpTarget, ShellTarget
from perdure.errors import InvalidManifest

TEN = datetime(2030, 1, 31, 10, tzinfo=UTC)


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(InvalidManifest) as refused:
        Manifest.parse(text, "jobs.yaml")
    return refused.value.problems


def cadence(text: str) -> Cadence:
    return Manifest.parse(f"{{name: a, task: b, {text}}}").schedules[0].cadence


# What it says


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("cron: 0 9 * * MON-FRI, tz: Europe/Berlin", cron("0 9 * * MON-FRI", tz="Europe/Berlin")),
        ("cron: '@daily', gap: skip, fold: both", cron("@daily", gap="skip", fold="both")),
        ("cron: '@daily', jitter: 5m", cron("@daily", jitter=300)),
        ("every: 90", every(90)),
        ("every: 1h30m", every(minutes=90)),
        ("every: 1d, anchor: 2030-01-31T11:00:00+01:00", every(days=1, anchor=TEN)),
        ("every: 1d, start: 2030-01-31T10:00:00Z", every(days=1, start=TEN)),
        ("every: 1d, end: 2030-01-31T10:00:00Z, tz: null", every(days=1, end=TEN)),
        ("at: 2030-01-31T10:00:00Z", at(TEN)),
    ],
)
def test_a_cadence_is_read(text: str, made: Cadence) -> None:
    assert cadence(text) == made


def test_settings_are_read() -> None:
    text = """
    name: digest
    task: send
    every: 5m
    payload: {depth: 3, when: 2026-01-01}
    misfire: catch_up
    misfire_grace: 2m
    catch_up_age: 1w
    retry: {max_attempts: 5, initial: 1s, delays: [1m, 90]}
    timeout: 1m30s
    ttl: 0.5
    tags: {team: red}
    enabled: false
    """

    [schedule] = Manifest.parse(text).schedules

    assert schedule.settings == {
        "payload": {"depth": 3, "when": "2026-01-01"},
        "misfire": "catch_up",
        "misfire_grace": timedelta(minutes=2),
        "catch_up_age": timedelta(weeks=1),
        "retry": Retry(
            max_attempts=5, initial=timedelta(seconds=1), delays=[timedelta(minutes=1), 90]
        ),
        "timeout": timedelta(seconds=90),
        "ttl": 0.5,
        "tags": {"team": "red"},
        "enabled": False,
    }


def test_targets_have_a_name_of_their_own_or_their_schedules() -> None:
    text = """
    tasks:
      - name: invoice
        target: {kind: http, url: https://shop.example/bill, headers: {A: {secret: TOKEN}}}
        queue: billing
    schedules:
      - {name: monthly, task: invoice, cron: 0 6 1 * *}
      - {name: backup, target: {kind: shell, argv: [pg_dump, shop]}, cron: 0 3 * * *}
    """

    found = Manifest.parse(text)

    assert [(task.name, type(task.target)) for task in found.tasks] == [
        ("invoice", HttpTarget),
        ("backup", ShellTarget),
    ]
    assert found.tasks[0].settings == {"queue": "billing"}
    assert found.tasks[0].target.headers == {"A": Secret("TOKEN")}  # type: ignore[union-attr]
    assert [(schedule.name, schedule.task) for schedule in found.schedules] == [
        ("monthly", "invoice"),
        ("backup", "backup"),
    ]


def test_several_documents_and_files_are_one_manifest(tmp_path: Path) -> None:
    (tmp_path / "b.yml").write_text("name: b\ntask: x\nevery: 1m\n---\nname: c\ntask: x\nevery: 1m")
    (tmp_path / "a.json").write_text(json.dumps({"name": "a", "task": "x", "every": 60}))
    (tmp_path / "notes.txt").write_text("not ours")
    (tmp_path / "deeper").mkdir()

    found = Manifest.load(tmp_path)

    assert [schedule.name for schedule in found.schedules] == ["a", "b", "c"]
    assert str(found.schedules[0].where) == str(tmp_path / "a.json")


# What is wrong with it


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name: a\ncron: 0 9 * *\ntask: b", "line 2, cron: '0 9 * *': has 4 fields; it needs 5"),
        ("name: a\ntask: b\ncron: 61 * * * *", "line 3, cron: '61 * * * *': field 1 (minute)"),
        ("name: a\ntask: b\ncron: '@daily'\ntz: Mars/Base", "line 4, tz: 'Mars/Base' is not"),
        ("name: a\ntask: b\nevery: 5x", "line 3, every: must be seconds, or a length like 90s"),
        ("name: a\ntask: b\nevery: 0", "line 3, every: must be from 1 s to"),
        ("name: a\ntask: b\nevery: 99999999999w", "line 3, every: is longer than any calendar"),
        ("name: a\ntask: b\nat: soon", "line 3, at: must be an instant like 2030-01-31T09:00:00Z"),
        ("name: a\ntask: b\nat: 2030-01-01", "line 3, at: must be an instant"),
        ("name: a\ntask: b\nat: 2030-01-01T09:00", "does not say its offset from UTC"),
        ("name: a\ntask: b", "line 1, cron: is missing; say cron, every or at"),
        ("name: a\ntask: b\ncron: '@daily'\nevery: 5m", "line 3, cron: goes not with every"),
        ("name: a\ntask: b\nevery: 5m\ntz: UTC", "line 4, tz: does not fit every, only cron"),
        ("name: a\ntask: b\nat: 2030-01-01T09:00Z\nend: 2031-01-01T09:00Z", "line 4, end: does"),
        ("task: b\nevery: 5m", "line 1, name: is missing"),
        ("name: 7\ntask: b\nevery: 5m", "line 1, name: must be text, not 7"),
        ("name: a\nevery: 5m", "line 1, task: name the task, or give a target"),
        ("name: a\nevery: 5m\ntask: b\ntarget: {kind: shell, argv: [x]}", "line 3, task: name the"),
        ("name: a\nevery: 5m\ntask: 7", "line 3, task: must be text, not 7"),
        ("name: a\nevry: 5m\ntask: b", "line 2, evry: is no field of a schedule; did you mean ev"),
        ("name: a\nevery: 5m\ntarget: {kind: ftp}", "line 3, target.kind: must be http or shell"),
        ("name: a\nevery: 5m\ntarget:\n  kind: http\n  url: ftp://x", "line 5, target.url:"),
        ("name: a\nevery: 5m\ntask: b\nretry:\n  max_attempts: few", "line 5, retry.max_attempts"),
        ("name: a\nevery: 5m\ntask: b\nretry:\n  initial: few", "line 5, retry.initial: must be s"),
        ("name: a\nevery: 5m\ntask: b\nretry:\n  tries: 5", "line 5, retry.tries: is no field of"),
        ("name: a\nevery: 5m\ntask: b\nretry: 5", "line 4, retry: must be a mapping"),
        (
            "name: a\nevery: 5m\ntask: b\nretry:\n  delays: [1s,\n   x]",
            "line 6, retry.delays[1]: m",
        ),
        (
            "name: a\nevery: 5m\ntask: b\npolicy: {max_attempts: x}",
            "line 4, policy: Expected `int`",
        ),
        ("name: a\nevery: 5m\ntask: b\npolicy: {tries: 1}", "is no field of a policy"),
        ("name: a\nevery: 5m\ntask: b\npolicy: 1", "line 4, policy: must be a mapping"),
        (
            "name: a\nevery: 5m\ntask: b\npolicy: {max_attempts: -1}",
            "policy.max_attempts: must lie",
        ),
        ("name: a\nevery: 5m\ntask: b\ntimeout: 1\npolicy: {}", "line 5, policy: says all; leave"),
        ("schedules:\n- 5", "line 2, schedules[0]: must be a mapping"),
        ("schedules: 5", "line 1, schedules: must be a list, not 5"),
        ("schedules: []\nname: a", "line 2, name: is no field of a manifest"),
        ("schedules:\n- name: a\n  task: b\n  cron: x", "line 4, schedules[0].cron: 'x': has 1"),
        ("tasks:\n- name: a", "line 2, tasks[0].target: is missing; say what it does"),
        ("tasks:\n- name: a\n  target: 5", "line 3, tasks[0].target: must be a mapping"),
        ("[1, 2]", "line 1: must be a mapping, the schedule, not [1, 2]"),
        ("name: a\nname: b", "line 2: name: is given twice, first in line 1"),
        ("# nothing", ": there is no schedule in it"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_field(text: str, problem: str) -> None:
    found = next(it for it in problems(text) if problem in it)

    assert found.startswith("jobs.yaml")


EVERYTHING_WRONG = """\
name: [x]
task: b
cron: 99 9 * * *
tz: Mars/Phobos
end: soon
anchor: 2030-01-31T10:00:00Z
misfire: never
overlap: no
max_concurrency: 0
payload: [1]
retry: {max_attempts: x, factor: 0, speed: 1, delays: [5x]}
timeout: never
colour: red
---
tasks:
- target: {kind: http, url: "ftp://x", method: 5, speed: 1}
  queue: ""
- name: t
schedules: 5
other: 1
"""


def test_all_mistakes_of_all_fields_and_documents_are_told_at_once() -> None:
    told = [it.split(": ")[0].removeprefix("jobs.yaml, ") for it in problems(EVERYTHING_WRONG)]

    assert told == [
        "line 1, name",
        "line 3, cron",
        "line 4, tz",
        "line 5, end",
        "line 6, anchor",
        "line 7, misfire",
        "line 8, overlap",
        "line 9, max_concurrency",
        "line 10, payload",
        "line 11, retry.max_attempts",
        "line 11, retry.factor",
        "line 11, retry.speed",
        "line 11, retry.delays[0]",
        "line 12, timeout",
        "line 13, colour",
        "line 16, tasks[0].target.url",
        "line 16, tasks[0].target.method",
        "line 16, tasks[0].target.speed",
        "line 16, tasks[0].name",
        "line 18, tasks[1].target",
        "line 19, schedules",
        "line 20, other",
    ]


def test_all_mistakes_are_told_at_once() -> None:
    text = "name: a\ntask: b\n---\nname: c\nevery: 5x\ntask: d\n---\nschedules: 3\n"

    assert [problem.split(": ")[0] for problem in problems(text)] == [
        "jobs.yaml, line 1, cron",
        "jobs.yaml, line 5, every",
        "jobs.yaml, line 8, schedules",
    ]


def test_a_name_is_given_once(tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text("name: x\ntask: t\nevery: 1m\n")
    second.write_text(
        "schedules:\n- name: y\n  task: t\n  every: 1m\n- name: x\n  task: t\n  every: 1m\n"
    )

    with pytest.raises(InvalidManifest) as refused:
        Manifest.load(first, second)

    [problem] = refused.value.problems
    assert problem.startswith(
        f"{second}, line 5, schedules[1].name: there is a schedule 'x' already"
    )
    assert f"in {first}, line 1" in problem


def test_two_targets_of_one_name_are_refused() -> None:
    target = "target: {kind: shell, argv: [x]}"

    [problem] = problems(
        f"tasks:\n- {{name: a, {target}}}\nschedules:\n- {{name: a, every: 1m, {target}}}"
    )

    assert "there is a task 'a' already" in problem


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe4\n")
    (tmp_path / "empty").mkdir()

    for path, problem in (
        (tmp_path / "nowhere.yaml", "cannot be read: No such file"),
        (tmp_path / "latin.yaml", "is not UTF-8"),
        (tmp_path / "empty", "has no file that ends in .yaml, .yml, .json"),
    ):
        with pytest.raises(InvalidManifest, match=problem):
            Manifest.load(path)
    with pytest.raises(InvalidManifest) as refused:
        Manifest.load(tmp_path / "nowhere.yaml", tmp_path / "latin.yaml", tmp_path / "empty")
    assert len(refused.value.problems) == 3


# Lengths, and the table of fields


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=3650)))
def test_a_length_is_read_as_it_is_said(length: timedelta) -> None:
    assert read_length(say_length(length), "field") == length


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0s"), (90, "1m30s"), (3600, "1h"), (0.25, "0.25s"), (90061, "1d1h1m1s")],
)
def test_a_length_is_said_briefly(seconds: float, said: str) -> None:
    assert say_length(timedelta(seconds=seconds)) == said


def test_the_table_has_what_schedules_tasks_and_retries_take() -> None:
    whole = {"policy"}
    assert SETTINGS.keys() - whole == ScheduleKeywords.__annotations__.keys()
    assert TASK.keys() - whole - {"name", "target"} <= TargetKeywords.__annotations__.keys()
    assert RETRY.keys() == set(Retry.__struct_fields__)


def test_the_schema_has_every_field_and_says_what_it_is() -> None:
    parts = json_schema()["$defs"]

    for name, fields in (("schedule", SCHEDULE), ("task", TASK), ("retry", RETRY)):
        assert parts[name]["properties"].keys() == fields.keys()
        assert all(field["description"] for field in parts[name]["properties"].values())
    assert parts["several"]["properties"].keys() == CONTAINER.keys()


def test_the_schemas_references_lead_somewhere() -> None:
    schema = json_schema()

    def references(value: Any) -> list[str]:
        if isinstance(value, list):
            return [found for inner in value for found in references(inner)]
        if not isinstance(value, dict):
            return []
        own = [value["$ref"]] if "$ref" in value else []
        return own + [found for inner in value.values() for found in references(inner)]

    assert {found.removeprefix("#/$defs/") for found in references(schema)} == set(schema["$defs"])
