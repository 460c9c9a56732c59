"""What operators do from a shell, without anybody's code at hand."""

from __future__ import annotations

import getpass
from typing import Any

import pytest
import pytest_asyncio

from command import Shell
from fix_app import QUICK
from perdure import App, Retry
from perdure.core.run.lifecycle import Status
from perdure.engine.worker.record import Registration
from perdure.errors import RunFailed
from storage_kit import claim_one, new_run, stored, wait_until
from waiting import MAX_WAIT_S


@pytest_asyncio.fixture
async def app(shell: Shell) -> App:
    """An app that has been here before: it has made its tasks known."""
    made = App(shell.url)

    @made.task(queue="numbers")
    async def double(number: int, *, loud: bool = False) -> int:
        return 2 * number

    @made.task(retry=Retry(max_attempts=1, on_exhausted="dead_letter"))
    async def fragile() -> None:
        raise ValueError("broken")

    async with made:
        return made


async def dead_letter(app: App) -> str:
    async with app.run_all():
        run = await app.tasks["fragile"].trigger()
        with pytest.raises(RunFailed):
            await run.result(MAX_WAIT_S)
    return run.id


async def test_a_known_task_is_triggered_without_its_code(app: App, shell: Shell) -> None:
    words = ("--tag", "team=red", "--priority", "3", "--idempotency-key", "k")

    asked = shell.perdure("trigger", "double", "--payload", '{"number": 4}', *words, "--json")
    again = shell.perdure("trigger", "double", "--payload", '{"number": 4}', *words)
    async with app.run_all():
        handle = app.runs.handle(asked.json["id"])
        assert await handle.result(MAX_WAIT_S) == 8
        run = await handle.get()

    assert (asked.code, asked.json["outcome"]) == (0, "created")
    assert again.out == f"{run.id} asked for double before, under the same key.\n"
    assert (run.queue, run.priority, run.tags) == ("numbers", 3, {"team": "red"})


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (
            ("doubl",),
            "no task 'doubl' is known; did you mean double? If not, start an app",
        ),
        (("double", "--payload", '{"nmber": 1}'), "argument nmber: there is no such argument; did"),
        (("double",), "argument number: is missing"),
        (("double", "--payload", '{"number": "1"}'), "must be of type integer, not '1'"),
        (("double", "--payload", "5"), "--payload must be a JSON object"),
        (("double", "--payload", "{"), "--payload is not JSON"),
        (("double", "--tag", "red"), "--tag must be KEY=VALUE, not 'red'"),
        (("double", "--run-at", "soon"), "--run-at must be like 2030-01-31T09:00:00Z, not 'soon'"),
        (("double", "--priority", "11"), "priority: must be a whole number from 0 to 10, not 11"),
    ],
)
async def test_a_bad_trigger_is_explained(
    app: App, shell: Shell, arguments: tuple[str, ...], advice: str
) -> None:
    answer = shell.perdure("trigger", *arguments)

    assert answer.code != 0
    assert advice in answer.err
    assert "Traceback" not in answer.err


async def test_a_run_is_listed_shown_steered_and_made_again(app: App, shell: Shell) -> None:
    async with app:
        run = await app.tasks["double"].options(delay=3600, tags={"a": "b"}).trigger(1)

    listed = shell.perdure("runs", "list", "--task", "double", "--tag", "a=b")
    paused = shell.perdure("runs", "pause", run.id, "--reason", "look first")
    resumed = shell.perdure("runs", "resume", run.id, "--by", "alice", "--json")
    cancelled = shell.perdure("runs", "cancel", run.id)
    rerun = shell.perdure("runs", "rerun", run.id, "--payload", '{"number": 2}', "--json")
    shown = shell.perdure("runs", "show", run.id)
    told = shell.perdure("runs", "events", run.id)

    assert [line.split()[0] for line in listed.out.splitlines()] == ["RUN", run.id]
    assert paused.out == f"{run.id} is paused.\n"
    assert resumed.json["status"] == "scheduled"
    assert cancelled.out == f"{run.id} is cancelled.\n"
    assert "status" in shown.out
    assert '{"number": 1}' in shown.out
    assert "operator alice" in told.out
    assert f"operator {getpass.getuser()}" in told.out
    assert "look first" in told.out
    async with app:
        made = await app.runs.get(rerun.json["id"])
    assert (made.source.run_id, made.payload) == (run.id, {"number": 2})


async def test_a_failed_run_tells_its_story(app: App, shell: Shell) -> None:
    run_id = await dead_letter(app)

    shown = shell.perdure("runs", "show", run_id)
    data = shell.perdure("runs", "show", run_id, "--json").json
    tries = shell.perdure("runs", "attempts", run_id)
    watched = shell.perdure("runs", "watch", run_id)

    assert "ValueError: broken" in shown.out
    assert 'raise ValueError("broken")' in shown.out
    assert (data["status"], data["failure"]["type"]) == ("dead_lettered", "ValueError")
    assert "ValueError: broken" in tries.out
    assert watched.code == 1
    assert "run.dead_lettered" in watched.out


async def test_a_dead_letter_is_replayed_once_and_another_discarded(app: App, shell: Shell) -> None:
    first, second = await dead_letter(app), await dead_letter(app)

    page = shell.perdure("dead-letters", "list", "--limit", "1", "--json").json
    hint = shell.perdure("dead-letters", "list", "--limit", "1").out
    rest = shell.perdure("dead-letters", "list", "--cursor", page["cursor"], "--json").json
    replayed = shell.perdure("dead-letters", "replay", first, "--json")
    refused = shell.perdure("dead-letters", "replay", first)
    discarded = shell.perdure("dead-letters", "discard", second)
    left = shell.perdure("dead-letters", "list")

    listed = [letter["run_id"] for letter in page["dead_letters"] + rest["dead_letters"]]
    assert listed == [second, first]
    assert hint.endswith(f"There are more: --cursor {page['cursor']}\n")
    assert rest["cursor"] is None
    assert refused.code == 1
    assert replayed.json["id"] in refused.err
    assert discarded.code == 0
    assert left.out == "There are none.\n"


async def test_workers_are_listed(app: App, shell: Shell) -> None:
    async with app.worker(concurrency=7, queues=["mail"]) as worker:
        await app.tasks["double"].options(queue="mail").run(1)
        listed = shell.perdure("workers", "list").out
        data: list[dict[str, Any]] = shell.perdure("workers", "list", "--json").json

    assert "0/7" in listed
    assert worker.id in {entry["id"] for entry in data}


async def test_a_misspelt_queue_is_refused_and_not_created(app: App, shell: Shell) -> None:
    refused = shell.perdure("queues", "pause", "number", "--reason", "moving")
    listed = shell.perdure("queues", "list", "--json").json
    created = shell.perdure("queues", "pause", "number", "--reason", "moving", "--create")

    assert (refused.code, created.code) == (1, 0)
    assert "there is no queue 'number'; did you mean numbers?" in refused.err
    assert [queue["name"] for queue in listed] == ["default", "numbers"]


async def test_lists_and_top_agree_about_a_dead_worker(app: App, shell: Shell) -> None:
    """Its last heartbeat was sent before it claimed a run, and longer ago than a lease."""
    app = App(shell.url, defaults=QUICK)
    async with app:
        line = Registration(app.clock, app.backend, "worker_dead")
        await line.beat(
            concurrency=4, running=0, tasks=app.served_tasks, queues=None, stopping=False
        )
        await stored(app.storage, new_run())
        await claim_one(app.storage, worker_id="worker_dead")
        await wait_until(app.storage, await app.storage.now() + QUICK.lease_ttl)

        [listed] = await app.workers.list()
        [viewed] = (await app.overview()).workers
    [told] = shell.perdure("workers", "list", "--json").json
    [topped] = shell.perdure("top", "--json").json["workers"]

    assert (listed.state, listed.running) == (viewed.state, viewed.running) == ("silent", 1)
    assert (told["state"], told["running"]) == (topped["state"], topped["running"])
    assert told["running"] == 1


async def test_maintenance_needs_nobodys_code(app: App, shell: Shell) -> None:
    async with app:
        run = await app.tasks["double"].options(ttl=0.001).trigger(1)
        answer = shell.perdure("tick", "--url", shell.url, PERDURE_URL="sqlite:///other.db")

        assert answer.code == 0
        assert (await run.get()).status is Status.EXPIRED


@pytest.mark.parametrize(
    "command", [("tick",), ("runs", "list"), ("workers", "list"), ("trigger", "double")]
)
def test_no_database_is_made_by_asking_for_one(command: tuple[str, ...], shell: Shell) -> None:
    answer = shell.perdure(*command)

    assert answer.code == 1
    assert "there is no database" in answer.err
    assert not (shell.directory / "runs.db").exists()


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_module_that_raises_is_not_started_again_and_again(shell: Shell, processes: str) -> None:
    (shell.directory / "sick.py").write_text("app = 1 / 0\n")

    answer = shell.perdure("worker", "sick:app", "--processes", processes)

    assert answer.code == 2
    assert "sick cannot be imported: ZeroDivisionError: division by zero" in answer.err
    assert "sick.py, line 1" in answer.err
    assert "another takes its place" not in answer.err


def test_an_unknown_log_level_is_explained(shell: Shell) -> None:
    answer = shell.perdure("worker", "shop:app", PERDURE_LOG_LEVEL="foo")

    assert answer.code == 2
    assert "PERDURE_LOG_LEVEL must be one of CRITICAL" in answer.err


async def test_a_run_says_why_it_does_not_run(app: App, shell: Shell) -> None:
    async with app:
        run = await app.tasks["double"].trigger(1)
        await app.queues.pause("numbers", "counting again")

    said, data = shell.perdure("why", run.id), shell.perdure("why", run.id, "--json")
    unknown = shell.perdure("why", "run_" + 32 * "0")

    first, *reasons = said.out.splitlines()
    assert (said.code, first) == (0, f"{run.id} is queued.")
    assert [line.strip() for line in reasons] == [it["sentence"] for it in data.json["reasons"]]
    assert [it["code"] for it in data.json["reasons"]] == ["queue_paused", "no_worker"]
    assert data.json["reasons"][0]["reason"] == "counting again"
    assert unknown.code == 1
