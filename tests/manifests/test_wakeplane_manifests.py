"""Wakeplane's manifests are taken as they are: every field its pages describe, in every kind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import Manifest, at, cron, every
from perdure.core.run.run import OnExhausted, Policy
from perdure.core.schedule import Misfire, Overlap
from perdure.engine.manifests.parse import StatedSchedule
from perdure.engine.tasks.target import HttpTarget, ShellTarget
from perdure.errors import InvalidManifest

COMMAND = """
name: archive
enabled: true
timezone: America/Denver

schedule:
  kind: cron
  expr: "15 4 * * *"

target:
  kind: shell
  command: /opt/archive/run
  args:
    - "--all"
    - "--to=/srv/archive"

policy:
  overlap: forbid
  misfire: run_once_if_late
  timeout_seconds: 1800
  max_concurrency: 1

retry:
  max_attempts: 4
  strategy: exponential
  initial_delay_seconds: 20
  max_delay_seconds: 300
"""

REQUEST = """
name: probe
enabled: true
timezone: UTC
schedule:
  kind: interval
  every_seconds: 120
  anchor_at: 2030-01-01T00:00:30Z
start_at: 2030-01-01T00:00:00Z
end_at: 2031-01-01T00:00:00Z
target:
  kind: http
  method: POST
  url: https://shop.example/probe
  headers:
    Content-Type: application/json
    X-From: perdure
  body:
    deep: true
policy:
  overlap: queue_latest
  misfire: skip
  max_concurrency: 3
"""

WORKFLOW = """
name: import-orders
enabled: true
timezone: Asia/Tokyo
schedule:
  kind: once
  at: "2030-06-01T09:00:00+09:00"
target:
  kind: workflow
  workflow_id: orders.import
  input:
    source: shop
policy:
  overlap: replace
  misfire: catch_up
retry:
  max_attempts: 0
"""


def read(text: str) -> StatedSchedule:
    [schedule] = Manifest.parse(text, "wakeplane.yaml").schedules
    return schedule


def policy_of(schedule: StatedSchedule) -> Policy:
    made: Policy = schedule.settings["retry"].applied_to(Policy())
    return made


def test_a_command_by_the_clock() -> None:
    schedule = read(COMMAND)
    policy = policy_of(schedule)

    assert schedule.cadence == cron("15 4 * * *", tz="America/Denver", gap="skip")
    assert schedule.own is not None
    assert schedule.own.name == schedule.task == "archive"
    assert schedule.own.target == ShellTarget(
        argv=("/opt/archive/run", "--all", "--to=/srv/archive")
    )
    assert schedule.settings["overlap"] is Overlap.FORBID
    assert schedule.settings["misfire"] is Misfire.RUN_ONCE
    assert (schedule.settings["timeout"], schedule.settings["max_concurrency"]) == (1800, 1)
    assert (policy.max_attempts, policy.exhausted_to) == (4, OnExhausted.DEAD_LETTER)
    assert (policy.backoff.initial, policy.backoff.maximum) == (
        timedelta(seconds=20),
        timedelta(seconds=300),
    )
    assert (policy.backoff.factor, policy.backoff.spread) == (2, 0)


def test_a_request_by_elapsed_time() -> None:
    schedule = read(REQUEST)
    new_year = datetime(2030, 1, 1, tzinfo=UTC)

    assert schedule.cadence == every(
        120,
        anchor=new_year + timedelta(seconds=30),
        start=new_year,
        end=new_year.replace(year=2031),
    )
    assert schedule.own is not None
    assert schedule.own.target == HttpTarget(
        url="https://shop.example/probe",
        headers={"Content-Type": "application/json", "X-From": "perdure"},
    )
    assert schedule.settings["payload"] == {"deep": True}
    assert schedule.settings["misfire"] is Misfire.SKIP
    assert (schedule.settings["max_concurrency"], schedule.settings["timeout"]) == (3, 300)


def test_a_workflow_once() -> None:
    schedule = read(WORKFLOW)

    assert schedule.cadence == at(datetime(2030, 6, 1, tzinfo=UTC))
    assert (schedule.task, schedule.own) == ("orders.import", None)
    assert schedule.settings["payload"] == {"source": "shop"}
    assert schedule.settings["catch_up_limit"] == 10_000
    assert (policy_of(schedule).tries, policy_of(schedule).exhausted_to) == (1, "dead_letter")


def test_without_policies_wakeplanes_defaults_hold() -> None:
    schedule = read(
        "{name: a, enabled: true, timezone: UTC, schedule: {kind: interval, every_seconds: 5}, "
        "target: {kind: workflow, workflow_id: x}}"
    )
    policy = policy_of(schedule)

    assert schedule.settings["overlap"] is Overlap.FORBID
    assert schedule.settings["misfire"] is Misfire.RUN_ONCE
    assert (schedule.settings["timeout"], schedule.settings["max_concurrency"]) == (300, 1)
    assert (policy.max_attempts, policy.backoff.initial.seconds) == (1, 30)
    assert policy.backoff.maximum == timedelta(minutes=15)


def test_a_strategy_of_none_is_one_try() -> None:
    text = COMMAND.replace("strategy: exponential", "strategy: none")

    assert policy_of(read(text)).tries == 1


def test_one_that_does_not_say_enabled_is_not_as_with_wakeplane() -> None:
    silent = read(COMMAND.replace("enabled: true\n", ""))
    plain = read(COMMAND)

    assert (silent.settings["enabled"], plain.settings["enabled"]) == (False, True)
    assert "does not say `enabled`" in silent.notes[0]
    assert plain.notes == ()


def test_its_list_of_schedules_is_taken_beside_ours() -> None:
    def indented(text: str) -> str:
        first, *rest = text.strip().splitlines()
        return "\n".join([f"  - {first}", *(f"    {line}" for line in rest)])

    text = "\n".join(
        ["schedules:", indented(COMMAND), indented(WORKFLOW), "  - {name: a, task: b, every: 5m}"]
    )

    found = Manifest.parse(text).schedules

    assert [schedule.name for schedule in found] == ["archive", "import-orders", "a"]


def test_what_its_server_added_is_left_out() -> None:
    record = "id: sch_1\ncreated_at: 2030-01-01T00:00:00Z\npaused_at: null\nnext_run_at: x\n"

    assert read(record + COMMAND).cadence == read(COMMAND).cadence


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            changed(COMMAND, "America/Denver", "Local"),
            "line 4, timezone: 'Local' is not a time zone",
        ),
        (changed(COMMAND, "timezone: America/Denver\n", ""), "line 2, timezone: is missing"),
        (changed(COMMAND, '"15 4 * * *"', "15 4"), "line 8, schedule.expr: '15 4': has 2 fields"),
        (changed(COMMAND, 'expr: "15 4 * * *"', "at: x"), "line 6, schedule.expr: is missing"),
        (
            changed(COMMAND, "kind: cron", "kind: moon"),
            "line 7, schedule.kind: must be cron, inter",
        ),
        (changed(COMMAND, "expr:", "expression:"), "line 8, schedule.expression: is no field of"),
        (changed(COMMAND, "/opt/archive/run", "7"), "line 12, target.command: must be text, not 7"),
        (
            changed(COMMAND, "/opt/archive/run", "''"),
            "line 12, target.command: must name a program",
        ),
        (changed(COMMAND, '- "--all"', "- 7"), "line 14, target.args[0]: must be text, not 7; put"),
        (changed(COMMAND, 'args:\n    - "--all"\n', "args: x\n#"), "target.args: must be a list"),
        (
            changed(COMMAND, "command: /opt/archive/run", "cwd: /"),
            "target.cwd: is no field of Wake",
        ),
        (
            changed(COMMAND, "kind: shell", "kind: email"),
            "line 11, target.kind: must be http, shell",
        ),
        (
            changed(COMMAND, "overlap: forbid", "overlap: skip"),
            "line 18, policy.overlap: must be one",
        ),
        (changed(COMMAND, "run_once_if_late", "never"), "line 19, policy.misfire: must be one of"),
        (
            changed(COMMAND, "_seconds: 1800", "_seconds: 0"),
            "line 20, policy.timeout_seconds: must",
        ),
        (
            changed(COMMAND, "max_attempts: 4", "max_attempts: -1"),
            "line 24, retry.max_attempts: must",
        ),
        (
            changed(COMMAND, "strategy: exp", "strategy: lin"),
            "line 25, retry.strategy: must be none",
        ),
        (
            changed(COMMAND, "y_seconds: 300", "y_seconds: 3"),
            "line 27, retry.max_delay_seconds: must",
        ),
        (
            changed(COMMAND, "y_seconds: 20", "y_seconds: x"),
            "line 26, retry.initial_delay_seconds: m",
        ),
        (
            changed(COMMAND, "enabled: true", "enabled: maybe"),
            "line 3, enabled: must be True or Fal",
        ),
        (
            changed(COMMAND, "name: archive", "nam: archive"),
            "line 2, nam: is no field of Wakeplane's",
        ),
        (
            changed(REQUEST, "every_seconds: 120", "every_seconds: 0"),
            "schedule.every_seconds: must be",
        ),
        (
            changed(REQUEST, "00:00:30Z", "00:00:30"),
            "line 8, schedule.anchor_at: must be an instant",
        ),
        (
            changed(REQUEST, "2031-01-01T", "2029-01-01T"),
            "line 10, end_at: must not lie before start",
        ),
        (
            changed(REQUEST, "method: POST", "method: SEND"),
            "line 13, target.method: must be one of",
        ),
        (changed(REQUEST, "X-From: perdure", "Host: x"), "line 17, target.headers.Host: is set by"),
        (
            changed(REQUEST, "  body:", "  http_job: {}\n  body:"),
            "target.http_job: is refused: Perdure ends",
        ),
        (
            changed(REQUEST, "method: POST", "args: x"),
            "target.args: is no field of Wakeplane's targ",
        ),
        (changed(WORKFLOW, "+09:00", ""), "line 7, schedule.at: must be an instant like"),
        (
            changed(WORKFLOW, "policy:", "end_at: 2030-01-01T00:00Z\npolicy:"),
            "lies outside of start",
        ),
        (
            changed(WORKFLOW, "workflow_id: orders.import", "id: x"),
            "target.id: is no field of Wakep",
        ),
        (
            changed(WORKFLOW, "orders.import", "7"),
            "line 10, target.workflow_id: must be text, not 7",
        ),
        (
            changed(WORKFLOW, "max_attempts: 0", "- x"),
            "line 16, retry: must be a mapping, not ['x']",
        ),
    ],
)
def test_what_wakeplane_would_refuse_is_told_in_its_words(text: str, problem: str) -> None:
    with pytest.raises(InvalidManifest) as refused:
        read(text)

    assert any(problem in found for found in refused.value.problems)


ALL_WRONG = """\
name: 5
colour: red
enabled: maybe
timezone: Mars/Phobos
start_at: soon
schedule: {kind: cron, expr: 99 9 * * *, expression: x}
target: {kind: shell, command: 5, args: [7], cwd: /}
policy: {overlap: perhaps, misfire: never, timeout_seconds: 0, max_concurrency: 0}
retry: {strategy: linear, initial_delay_seconds: x, max_delay_seconds: 0, max_attempts: -1}
"""


def test_all_that_wakeplane_would_refuse_is_told_at_once() -> None:
    with pytest.raises(InvalidManifest) as refused:
        read(ALL_WRONG)

    fields = [problem.split(": ")[0].split(", ")[-1] for problem in refused.value.problems]
    assert sorted(fields) == [
        "colour",
        "enabled",
        "name",
        "policy.max_concurrency",
        "policy.misfire",
        "policy.overlap",
        "policy.timeout_seconds",
        "retry.initial_delay_seconds",
        "retry.max_attempts",
        "retry.max_delay_seconds",
        "retry.strategy",
        "schedule.expr",
        "schedule.expression",
        "start_at",
        "target.args[0]",
        "target.command",
        "target.cwd",
        "timezone",
    ]


def test_a_target_and_a_schedule_are_needed() -> None:
    for text, problem in (
        ("{name: a, timezone: UTC}", "target: is missing"),
        ("{name: a, timezone: UTC, target: {kind: workflow, workflow_id: x}}", "schedule: is mi"),
        ("{timezone: UTC}", "name: is missing"),
        ("{name: a, timezone: UTC, target: 5}", "target.kind: must be http"),
        ("{name: a, timezone: UTC, target: {kind: http, url: 'https://x.example'}}", "target.meth"),
    ):
        with pytest.raises(InvalidManifest, match=problem):
            read(text)


def test_a_header_may_name_a_secret_which_wakeplane_has_not() -> None:
    text = changed(REQUEST, "X-From: perdure", "X-From: {secret: TOKEN}")
    made: Any = read(text).own

    assert made.target.headers["X-From"].name == "TOKEN"
