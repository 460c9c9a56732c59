"""`perdure runs logs|bundle|reschedule`: what one run said, all of it, and when it is to run."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
import pytest_asyncio

from command import Shell
from perdure import App, Context, Retry
from perdure.core.run.lifecycle import Status
from perdure.errors import RunFailed
from waiting import MAX_WAIT_S

SECRET = "hunter2-in-the-clear"


@pytest_asyncio.fixture
async def app(shell: Shell) -> App:
    made = App(shell.url)

    @made.task(retry=Retry(max_attempts=2, initial=0.01))
    async def talk(ctx: Context, words: int, password: str = "", fails: int = 0) -> int:
        for number in range(words):
            ctx.log.info("word %s", number, extra={"number": number})
        if ctx.attempt <= fails:
            raise ValueError(f"password={password}")
        ctx.log.info("password=%s", password)
        return words

    async with made:
        return made


async def talked(app: App, words: int, fails: int = 0) -> str:
    async with app.run_all():
        run = await app.tasks["talk"].trigger(words, password=SECRET, fails=fails)
        await run.result(MAX_WAIT_S)
    return run.id


async def test_what_a_run_said_is_told_in_order(app: App, shell: Shell) -> None:
    run_id = await talked(app, 3)

    told = shell.perdure("runs", "logs", run_id)
    lines = shell.perdure("runs", "logs", run_id, "--json").out.splitlines()
    data = [json.loads(line) for line in lines]
    rest = shell.perdure("runs", "logs", run_id, "--after", data[1]["cursor"], "--json")

    assert [line.split()[3:] for line in told.out.splitlines()[:2]] == [
        ["INFO", "word", "0", "number=0"],
        ["INFO", "word", "1", "number=1"],
    ]
    assert [line["message"] for line in data[:3]] == ["word 0", "word 1", "word 2"]
    assert json.loads(rest.out.splitlines()[0]) == data[2]


async def test_a_long_log_is_told_to_its_end(app: App, shell: Shell) -> None:
    run_id = await talked(app, 700, fails=1)  # more than fits on a page

    told = shell.perdure("runs", "logs", run_id)

    assert told.out.count(" word ") == 1400


async def test_following_a_log_ends_with_its_run(app: App, shell: Shell) -> None:
    async with app:
        run = await app.tasks["talk"].trigger(2)
    process = shell.start("runs", "logs", run.id, "--follow", log="follow.log")

    async with app.run_all():
        await run.result(MAX_WAIT_S)

    assert process.wait(timeout=MAX_WAIT_S) == 0
    assert (shell.directory / "follow.log").read_text().count(" word ") == 2


async def test_a_log_of_no_run_is_explained(app: App, shell: Shell) -> None:
    answer = shell.perdure("runs", "logs", "run_" + 32 * "0")

    assert answer.code == 1
    assert "Traceback" not in answer.err


async def test_a_bundle_holds_everything_but_secrets(app: App, shell: Shell) -> None:
    run_id = await talked(app, 2, fails=1)

    here = shell.perdure("runs", "bundle", run_id)
    there = shell.perdure("runs", "bundle", run_id, "--output", "bundle.json")

    written = (shell.directory / "bundle.json").read_text()
    bundle = json.loads(here.out)
    assert bundle == json.loads(written)
    assert set(bundle) == {"run", "events", "attempts", "logs", "progress"}
    assert bundle["run"]["id"] == run_id
    assert SECRET not in here.out
    assert "bundle.json" in there.out


async def test_a_bundle_that_cannot_be_written_is_explained(app: App, shell: Shell) -> None:
    run_id = await talked(app, 1)

    answer = shell.perdure("runs", "bundle", run_id, "-o", "nowhere/bundle.json")

    assert answer.code == 1
    assert "nowhere/bundle.json cannot be written: No such file" in answer.err


async def test_a_run_gets_another_time_priority_and_queue(app: App, shell: Shell) -> None:
    async with app:
        run = await app.tasks["talk"].options(delay=3600).trigger(1)

        later = shell.perdure("runs", "reschedule", run.id, "--run-at", "2040-01-31T09:00")
        told = await run.get()
        sooner = shell.perdure(
            *("runs", "reschedule", run.id, "--delay", "0", "--priority", "7", "--queue", "fast"),
            *("--reason", "they wait", "--json"),
        )
        after = await run.get()

    assert later.out == f"{run.id} is scheduled.\n"
    assert told.run_at is not None
    assert told.run_at.isoformat() == "2040-01-31T09:00:00+00:00"
    assert (sooner.json["status"], after.status) == ("queued", Status.QUEUED)
    assert (after.priority, after.queue) == (7, "fast")
    assert after.run_at is not None
    assert after.run_at - after.created_at < timedelta(minutes=10)


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ((), "Say what: --run-at, --delay, --priority or --queue."),
        (("--run-at", "2040-01-31", "--delay", "1"), "Give --run-at or --delay, not both."),
        (("--run-at", "soon"), "--run-at must be like 2030-01-31T09:00:00Z, not 'soon'"),
        (("--priority", "99"), "priority"),
    ],
)
async def test_a_bad_reschedule_is_explained(
    app: App, shell: Shell, words: tuple[str, ...], advice: str
) -> None:
    async with app:
        run = await app.tasks["talk"].options(delay=3600).trigger(1)

    answer = shell.perdure("runs", "reschedule", run.id, *words)

    assert answer.code != 0
    assert advice in answer.err
    assert "Traceback" not in answer.err


async def test_failures_are_shown_against_the_budget_and_releases_are_not(shell: Shell) -> None:
    app = App(shell.url)

    @app.task(retry=Retry(max_attempts=2, initial=0.01))
    def poll(ctx: Context) -> None:
        if ctx.run.counters.releases < 3:
            ctx.release(delay=0)
        raise ValueError("boom")

    async with app, app.run_all():
        run = await poll.trigger()
        with pytest.raises(RunFailed):
            await run.result(MAX_WAIT_S)

    lines = shell.perdure("runs", "show", run.id).out.split("\n\n")[0].splitlines()
    shown = dict(line.split(maxsplit=1) for line in lines)
    assert (shown["attempts"], shown["failures"]) == ("5", "2 of 2")
    assert "with failure 2 of 2, in attempt 5" in shell.perdure("why", run.id).out


async def test_a_run_is_shown_with_its_caller_and_what_the_trigger_has_set(
    app: App, shell: Shell
) -> None:
    asked = ("trigger", "talk", "--payload", '{"words": 1}', "--timeout", "90", "--debug")
    run_id = shell.perdure(*asked, "--by", "ann", "--json").json["id"]

    lines = shell.perdure("runs", "show", run_id).out.splitlines()

    shown = dict(line.split(maxsplit=1) for line in lines)
    assert shown["created_by"].startswith("client ann")
    assert (shown["timeout"], shown["debug"]) == ("90 s", "true")
