"""`perdure prune`: what ended long ago is forgotten, and nothing else. Bars of long work."""

from __future__ import annotations

import pytest
import pytest_asyncio

from command import PERDURE, Shell
from perdure import App, Fail, Retry
from perdure.engine.operators.audit_log import AuditLog
from perdure.errors import RunFailed
from terminal import Terminal
from waiting import MAX_WAIT_S


@pytest_asyncio.fixture
async def app(shell: Shell) -> App:
    """Three runs that succeeded, one that failed, one that is still to run."""
    made = App(shell.url)

    @made.task
    async def work() -> None: ...

    @made.task(retry=Retry(max_attempts=1))
    async def fail() -> None:
        raise Fail("no")

    async with made.run_all():
        for _ in range(3):
            await (await work.trigger()).result(MAX_WAIT_S)
        with pytest.raises(RunFailed):
            await (await fail.trigger()).result(MAX_WAIT_S)
        await work.options(delay=3600).trigger()
    return made


async def left(app: App) -> list[str]:
    async with app:
        return sorted(run.status for run in (await app.runs.list()).runs)


async def test_nothing_young_is_pruned_by_itself(app: App, shell: Shell) -> None:
    done = shell.perdure("prune")

    assert (done.code, done.out) == (0, "0 runs are forgotten.\n")
    assert len(await left(app)) == 5


async def test_retention_counts_for_each_status(app: App, shell: Shell) -> None:
    short = {"PERDURE_RETENTION": "0.001", "PERDURE_FAILURE_RETENTION": "3600"}

    counted = shell.perdure("prune", "--dry-run", "--json", **short)
    done = shell.perdure("prune", "--json", **short)

    assert counted.json == {"prunable": {"succeeded": 3}}
    assert done.json == {"pruned": {"succeeded": 3}}
    assert await left(app) == ["failed", "scheduled"]


async def test_an_age_is_asked_about_first(app: App, shell: Shell) -> None:
    counted = shell.perdure("prune", "--older-than", "0s", "--dry-run")
    refused = shell.perdure("prune", "--older-than", "0s")
    before = await left(app)
    done = shell.perdure(
        "prune", "--older-than", "0s", "--status", "failed", "--yes", "--by", "ada"
    )

    assert [line.split()[0::3] for line in counted.out.splitlines() if "succeeded" in line] == [
        ["succeeded", "3"]
    ]
    assert refused.code == 1
    assert "4 runs are old enough; say --yes to forget them" in refused.err
    assert len(before) == 5
    assert done.out == "1 runs are forgotten.\n"
    assert await left(app) == ["scheduled", "succeeded", "succeeded", "succeeded"]
    async with app:
        [entry] = [it.entry for it in await AuditLog(app.runtime).read()]
    assert (entry.action, entry.actor.id, entry.target) == ("prune", "ada", "0s")


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("--older-than", "old"), "--older-than must be like 90d, 12h or 30m, not 'old'"),
        (("--status", "queued"), "only what has ended is pruned"),
        (("--status", "dead"), "must be one of"),
    ],
)
async def test_a_bad_wish_to_prune_is_explained(
    app: App, shell: Shell, words: tuple[str, ...], advice: str
) -> None:
    answer = shell.perdure("prune", *words)

    assert answer.code != 0
    assert advice in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("command", "bar"),
    [
        (["prune", "--older-than", "0s", "--yes"], "forget runs  [####"),
        (["audit"], "audit  [####"),
    ],
)
async def test_whoever_sits_there_sees_how_far_it_is(
    app: App, shell: Shell, command: list[str], bar: str
) -> None:
    with Terminal([*PERDURE, *command], cwd=shell.directory, env=shell.environ()) as terminal:
        code = terminal.end()

    assert code == 0
    assert bar in terminal.text
    assert "100%" in terminal.text or "4/4" in terminal.text or "5/5" in terminal.text
