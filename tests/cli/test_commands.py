"""Every command that answers and ends, through the real executable."""

from __future__ import annotations

import resource
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest

from command import PERDURE, Shell
from perdure import App
from perdure.core.run.lifecycle import Status
from storage_kit import claim_one, new_run, stored
from waiting import MAX_WAIT_S


def cpu_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.timed
def test_help_is_quick_because_nothing_is_imported_for_it() -> None:
    assert min(cpu_seconds([*PERDURE, "--help"]) for _ in range(3)) < 0.2


def test_the_module_is_the_command() -> None:
    module = subprocess.run(
        [sys.executable, "-m", "perdure", "--help"], capture_output=True, text=True, check=True
    )
    command = subprocess.run([*PERDURE, "--help"], capture_output=True, text=True, check=True)

    assert module.stdout.splitlines()[1:] == command.stdout.splitlines()[1:]


@pytest.mark.parametrize(
    ("spec", "advice"),
    [
        ("shop", "APP must be module:attribute"),
        ("shop:", "APP must be module:attribute"),
        ("shp:app", "there is no module 'shp'"),
        ("shop:ap", "shop has no 'ap'; did you mean shop:app?"),
        ("shop:number", "shop:number is a int, not an App; did you mean shop:app?"),
        ("broken:app", "broken cannot be imported: No module named 'not_installed'"),
    ],
)
def test_a_bad_app_is_explained(spec: str, advice: str, shell: Shell) -> None:
    (shell.directory / "broken.py").write_text("import not_installed\n")

    for command in ("worker", "tick"):
        answer = shell.perdure(command, spec)
        assert answer.code == 2
        assert advice in answer.err
        assert "Traceback" not in answer.err


def test_errors_are_json_where_json_was_asked_for(shell: Shell) -> None:
    answer = shell.perdure("tick", "shop", "--json")

    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith('{"error": "APP must be')


def test_migrate_makes_the_schema_and_may_be_repeated(shell: Shell) -> None:
    first, again = shell.perdure("migrate"), shell.perdure("migrate", "--json")

    assert (first.code, again.code) == (0, 0)
    assert "The schema is at version" in first.out
    assert again.json["schema"] >= 1


def test_an_unknown_database_is_explained(shell: Shell) -> None:
    answer = shell.perdure("migrate", "--url", "mysql://here")

    assert answer.code == 2
    assert "names no storage; use sqlite:///file.db" in answer.err


@pytest.mark.system
def test_a_server_without_the_schema_says_what_to_do(tmp_path: Path, postgres_url: str) -> None:
    shell = Shell(tmp_path, postgres_url)

    for command in (["worker", "shop:app"], ["tick", "shop:app"], ["audit"]):
        answer = shell.perdure(*command)
        assert answer.code == 2
        assert "run `perdure migrate`" in answer.err

    assert shell.perdure("migrate").code == 0
    assert shell.perdure("audit").code == 0


async def test_tick_does_what_is_due(shell: Shell) -> None:
    app = App(shell.url)

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    async with app:
        run = await double.options(ttl=0.001).trigger(1)
        answer = shell.perdure("tick", "shop:app", "--json")

        assert (answer.code, answer.json) == (0, {"ticked": True})
        assert (await run.get()).status is Status.EXPIRED


@pytest.mark.parametrize(
    ("flags", "variables"), [(["--now"], {}), ([], {"PERDURE_LEASE_TTL": "0.3"})]
)
async def test_tick_recovers_at_once_or_after_it_has_watched(
    shell: Shell, flags: list[str], variables: dict[str, str]
) -> None:
    async with App(shell.url) as app:
        await stored(app.storage, new_run())
        run = await claim_one(app.storage, lease_ttl=timedelta(milliseconds=1))
        answer = shell.perdure("tick", "shop:app", *flags, **variables)

        assert answer.code == 0
        assert (await app.runs.get(run.id)).status is Status.QUEUED


async def some_runs(url: str) -> list[str]:
    app = App(url)

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    async with app, app.worker(concurrency=2):
        runs = [await double.trigger(number) for number in range(3)]
        for run in runs:
            await run.result(timeout=MAX_WAIT_S)
    return [run.id for run in runs]


async def test_audit_counts_what_it_has_replayed(shell: Shell) -> None:
    await some_runs(shell.url)

    answer, as_json = shell.perdure("audit"), shell.perdure("audit", "--json")

    assert (answer.code, as_json.code) == (0, 0)
    assert answer.out == "environment=default runs=3 events=12 mismatch=0\n"
    assert as_json.json == {
        "environment": "default",
        "runs": 3,
        "events": 12,
        "mismatches": 0,
        "counted": True,
    }


async def test_audit_finds_a_run_that_is_not_what_its_history_says(shell: Shell) -> None:
    [changed, cut, forgotten] = await some_runs(shell.url)
    with closing(sqlite3.connect(shell.directory / "runs.db")) as connection, connection:
        recounted = "replace(state, '\"attempts\":1', '\"attempts\":4')"
        for statement, run_id in (
            (f"UPDATE perdure_runs SET state = {recounted}", changed),
            ("DELETE FROM perdure_history WHERE first_sequence > 1", cut),
            ("DELETE FROM perdure_history", forgotten),
        ):
            column = "id" if statement.startswith("UPDATE") else "run_id"
            joint = " AND " if "WHERE" in statement else " WHERE "
            connection.execute(f"{statement}{joint}{column} = ?", (run_id,))

    answer = shell.perdure("audit")

    assert answer.code == 1
    assert f"{changed}: counters is" in answer.out
    assert f"{cut}: status is" in answer.out
    assert f"{forgotten}: the beginning of its history is not there" in answer.out
    assert "default: queue default: 3 runs are counted as succeeded, 2 are found" in answer.out
    assert answer.out.endswith("runs=2 events=5 mismatch=4\n")


async def test_audit_misses_a_run_of_which_only_the_history_is_left(shell: Shell) -> None:
    [lost, *_] = await some_runs(shell.url)
    with closing(sqlite3.connect(shell.directory / "runs.db")) as connection, connection:
        connection.execute("DELETE FROM perdure_runs WHERE id = ?", (lost,))

    answer = shell.perdure("audit")

    assert answer.code == 1
    assert answer.out == (
        f"{lost}: its history is there, the run itself is not\n"
        "environment=default runs=2 events=8 mismatch=1\n"
    )


def test_audit_of_nothing_makes_no_file(shell: Shell) -> None:
    answer = shell.perdure("audit")

    assert answer.code == 1
    assert "there is no database" in answer.err
    assert not (shell.directory / "runs.db").exists()


async def test_audit_keeps_to_its_environment(shell: Shell) -> None:
    await some_runs(shell.url)

    assert shell.perdure("audit", "--environment", "another", "--json").json["runs"] == 0


def test_config_says_what_holds_and_why(shell: Shell) -> None:
    (shell.directory / "pyproject.toml").write_text("[tool.perdure]\nlease_ttl = 9\npoll = 2\n")

    answer = shell.perdure("config", "--json", PERDURE_LEASE_TTL="7.5")
    table = shell.perdure("config", PERDURE_LEASE_TTL="7.5")

    assert answer.json["lease_ttl"] == {"value": 7.5, "source": "PERDURE_LEASE_TTL"}
    assert answer.json["poll"] == {"value": 2.0, "source": "[tool.perdure] in pyproject.toml"}
    assert answer.json["max_attempts"] == {"value": 3, "source": "default"}
    assert answer.json["backoff_maximum"] == {"value": 3600.0, "source": "default"}
    assert answer.json["misfire"] == {"value": "run_once", "source": "default"}
    assert answer.json["overlap"] == {"value": "forbid", "source": "default"}
    assert [line.split() for line in table.out.splitlines() if line.startswith("lease_ttl")] == [
        ["lease_ttl", "7.5", "PERDURE_LEASE_TTL"]
    ]
    assert len({line.rindex("  ") for line in table.out.splitlines()}) == 1  # one column each


def test_config_hides_passwords(shell: Shell) -> None:
    answer = shell.perdure("config", PERDURE_URL="postgresql://me:hunter2@host/db")

    assert "postgresql://me:***@host/db" in answer.out
    assert "hunter2" not in answer.out


@pytest.mark.parametrize(
    ("command", "scheme"),
    [
        *product(("doctor", "migrate", "runs list", "tick"), ("mysql", "http", "https")),
        ("doctor", "postgresql"),
    ],
)
def test_no_mistake_shows_the_password_of_a_url(shell: Shell, command: str, scheme: str) -> None:
    url = f"{scheme}://ada:hunter2@127.0.0.1:9/runs"

    answer = shell.perdure(*command.split(), PERDURE_URL=url)

    assert answer.code != 0
    assert "hunter2" not in answer.out + answer.err


@pytest.mark.parametrize(
    ("toml", "advice"),
    [
        ("lease_tl = 9", "there is no setting 'lease_tl'; did you mean lease_ttl?"),
        ("lease_ttl = 'x'", "lease_ttl must be a number of seconds, not 'x'"),
        ("concurrency = 0", "concurrency must be more than nothing"),
        ("concurrency = 3.5", "concurrency must be a whole number, not 3.5"),
        ("backoff_factor = 0.5", "backoff_factor must lie between 1 and 1000, not 0.5"),
        ("backoff_jitter = true", "backoff_jitter must be a number, not True"),
        ("queue = 3", "queue must be a text"),
        ("= 3", "cannot be read"),
        ("misfire = 'never'", "misfire must be one of skip, run_once, catch_up, not 'never'"),
        ("misfire_grace = 0.5", "misfire_grace must be from 1 s to"),
        ("overlap = 'forbids'", "not 'forbids'; did you mean forbid?"),
        ("max_concurrency = 20000", "max_concurrency must be a whole number from 1 to 10000"),
        ("http_allow = 'nowhere'", "http_allow "),
    ],
)
def test_bad_settings_are_named(toml: str, advice: str, shell: Shell) -> None:
    (shell.directory / "pyproject.toml").write_text(f"[tool.perdure]\n{toml}\n")

    answer = shell.perdure("config")

    assert answer.code == 2
    assert advice in answer.err
    assert "pyproject.toml" in answer.err


async def test_doctor_finds_nothing_wrong_or_says_what_is(shell: Shell) -> None:
    assert shell.perdure("migrate").code == 0
    well = shell.perdure("doctor")
    assert (well.code, well.out.splitlines()[-1]) == (0, "No problems.")
    async with App(shell.url) as app:
        await stored(app.storage, new_run(queue="mail"))

    ill, as_json = shell.perdure("doctor"), shell.perdure("doctor", "--json")

    assert ill.code == as_json.code == 1
    assert "problem: Runs are due in queues that no live worker serves: mail." in ill.out
    assert as_json.json["healthy"] is False
    assert as_json.json["findings"][0]["code"] == "unserved_queues"
    assert as_json.json["vitals"]["bytes"] > 0


def test_doctor_of_a_file_that_is_not_there_makes_none(shell: Shell) -> None:
    answer = shell.perdure("doctor")

    assert answer.code != 0
    assert not (shell.directory / "runs.db").exists()
