"""Orders about many runs from a shell: counted, confirmed, carried out by a durable run."""

from __future__ import annotations

import pytest
import pytest_asyncio

from command import PERDURE, Shell
from perdure import App, Retry, RunHandle
from perdure.core.run.lifecycle import Status
from perdure.engine.operators.audit_log import AuditLog
from perdure.errors import RunFailed
from perdure.web.operations.table import ROUTES
from terminal import Terminal
from waiting import MAX_WAIT_S


@pytest_asyncio.fixture
async def app(shell: Shell) -> App:
    made = App(shell.url)

    @made.task(queue="numbers")
    async def double(number: int) -> int:
        return 2 * number

    @made.task(retry=Retry(max_attempts=1, on_exhausted="dead_letter"))
    async def fragile() -> None:
        raise ValueError("broken")

    async with made:
        return made


async def triggered(app: App, count: int) -> list[str]:
    async with app:
        items = [{"number": number} for number in range(count)]
        made = await app.tasks["double"].options(delay=3600).trigger_many(items)
    return [run.id for run in made if isinstance(run, RunHandle)]


async def dead_letters(app: App, count: int) -> list[str]:
    async with app.run_all():
        runs = [await app.tasks["fragile"].trigger() for _ in range(count)]
        for run in runs:
            with pytest.raises(RunFailed):
                await run.result(MAX_WAIT_S)
    return [run.id for run in runs]


async def statuses(app: App, run_ids: list[str]) -> set[Status]:
    async with app:
        return {run.status for run in (await app.storage.get(run_ids)).values()}


async def test_a_dry_run_only_counts(app: App, shell: Shell) -> None:
    runs = await triggered(app, 3)

    counted = shell.perdure("runs", "cancel", "--task", "double", "--dry-run")
    data = shell.perdure("runs", "cancel", "--task", "nothing", "--dry-run", "--json")

    assert counted.out == "3 runs fit.\n"
    assert data.json == {"matched": 0}
    assert await statuses(app, runs) == {Status.SCHEDULED}


async def test_without_a_terminal_many_are_changed_only_if_told_so(app: App, shell: Shell) -> None:
    runs = await triggered(app, 2)

    refused = shell.perdure("runs", "cancel", "--queue", "numbers")

    assert refused.code == 1
    assert "2 runs fit; say --yes to cancel them, or --dry-run to only count" in refused.err
    assert await statuses(app, runs) == {Status.SCHEDULED}


async def test_all_that_fit_are_cancelled_by_a_durable_run(app: App, shell: Shell) -> None:
    runs = await triggered(app, 250)

    words = ("--task", "double", "--yes", "--reason", "wrong list", "--by", "ada", "--json")
    done = shell.perdure("runs", "cancel", *words).json

    assert (done["matched"], done["done"], done["refused"]) == (250, 250, {})
    assert await statuses(app, runs) == {Status.CANCELLED}
    async with app:
        order = await app.runs.get(done["run_id"])
        one = await app.runs.get(runs[0])
        [entry] = [it.entry for it in await AuditLog(app.runtime).read()]
    assert (order.task, order.status) == ("perdure.bulk", Status.SUCCEEDED)
    assert one.reason == "wrong list"
    assert (entry.action, entry.actor.id, entry.details) == (
        "bulk_cancel",
        "ada",
        {"task": "double"},
    )


async def test_what_is_refused_is_counted_and_why_it_was(app: App, shell: Shell) -> None:
    await dead_letters(app, 2)
    await triggered(app, 1)
    shell.perdure("dead-letters", "discard", "--all", "--yes")

    done = shell.perdure("runs", "retry", "--all", "--yes")

    assert done.out == "retry: 0 of 2 done, 2 were refused (NotAllowed).\n"
    assert done.code == 1


async def test_each_order_beside_the_database_is_in_the_audit_log(app: App, shell: Shell) -> None:
    [run], letters = await triggered(app, 1), await dead_letters(app, 3)
    orders = [
        ("runs", "pause", run),
        ("runs", "resume", run),
        ("runs", "reschedule", run, "--delay", "60"),
        ("runs", "cancel", run),
        ("runs", "rerun", run),
        ("runs", "retry", letters[0]),
        ("dead-letters", "replay", letters[1]),
        ("dead-letters", "discard", letters[2]),
        ("queues", "pause", "numbers", "--reason", "upgrade"),
        ("queues", "set", "numbers", "--concurrency", "3"),
        ("queues", "reset", "numbers"),
        ("queues", "resume", "numbers"),
    ]

    for order in orders:
        assert shell.perdure(*order, "--by", "ada").code == 0
    async with app:
        entries = [it.entry for it in await AuditLog(app.runtime).read()]

    routes = {route.name for route in ROUTES if route.is_audited}
    assert [(it.target, it.actor.id) for it in entries] == [(it[2], "ada") for it in orders]
    assert [it.action for it in entries if it.action not in routes] == []


async def test_runs_are_paused_and_resumed_by_filter(app: App, shell: Shell) -> None:
    runs = await triggered(app, 2)

    shell.perdure("runs", "pause", "--queue", "numbers", "--yes")
    held = await statuses(app, runs)
    shell.perdure("runs", "resume", "--status", "paused", "--yes")

    assert held == {Status.PAUSED}
    assert await statuses(app, runs) == {Status.SCHEDULED}


async def test_dead_letters_are_replayed_and_discarded_by_filter(app: App, shell: Shell) -> None:
    await dead_letters(app, 3)

    replayed = shell.perdure("dead-letters", "replay", "--task", "fragile", "--yes", "--json").json
    async with app.run_all():
        for run in (await app.runs.list(task="fragile", status="queued")).runs:
            with pytest.raises(RunFailed):
                await app.runs.handle(run).result(MAX_WAIT_S)
    discarded = shell.perdure("dead-letters", "discard", "--all", "--yes", "--json").json

    assert (replayed["done"], discarded["done"]) == (3, 3)
    assert shell.perdure("dead-letters", "list").out == "There are none.\n"


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ((), "Name a RUN, or say which: --task, --queue, …, or --all."),
        (("run_1", "--task", "double"), "Name one RUN, or say which by options; not both."),
        (("run_1", "--dry-run"), "Name one RUN, or say which by options; not both."),
        (("--all", "--task", "double"), "--all is everything"),
        (("--task", "double", "--payload", "{}"), "--payload is for one RUN."),
        (("--created-after", "soon"), "created_after: must be like"),
        (("--status", "quued", "--dry-run"), "'quued' is not a status; there are: scheduled,"),
    ],
)
async def test_an_order_that_makes_no_sense_is_explained(
    app: App, shell: Shell, words: tuple[str, ...], advice: str
) -> None:
    answer = shell.perdure("runs", "rerun", *words)

    assert answer.code != 0
    assert advice in answer.err
    assert "Traceback" not in answer.err


async def test_at_a_terminal_one_is_asked_and_sees_how_far_it_is(app: App, shell: Shell) -> None:
    runs = await triggered(app, 30)
    command = [*PERDURE, "runs", "cancel", "--task", "double"]

    with Terminal(command, cwd=shell.directory, env=shell.environ()) as terminal:
        terminal.wait_for("30 runs fit. Go on and cancel them? [y/N]:")
        terminal.type("y\n")
        code = terminal.end()

    assert code == 0
    assert "cancel 30 runs  [" in terminal.text
    assert "cancel: 30 of 30 done." in terminal.text
    assert await statuses(app, runs) == {Status.CANCELLED}


async def test_whoever_says_no_changes_nothing(app: App, shell: Shell) -> None:
    runs = await triggered(app, 2)
    command = [*PERDURE, "runs", "cancel", "--task", "double"]

    with Terminal(command, cwd=shell.directory, env=shell.environ()) as terminal:
        terminal.wait_for("[y/N]:")
        terminal.type("n\n")
        code = terminal.end()

    assert code == 1
    assert await statuses(app, runs) == {Status.SCHEDULED}
