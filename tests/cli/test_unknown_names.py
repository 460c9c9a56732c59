"""Names that are not known: the advice is what a shell or an HTTP caller can do."""

from __future__ import annotations

import pytest

from command import Shell
from perdure import App
from web_kit import calling


async def know_invoice(url: str) -> None:
    """Make the task `invoice` known, without a run."""
    app = App(url)

    @app.task
    async def invoice() -> None: ...

    async with app, app.worker():
        pass


COMMANDS = [
    ("queues", "resume", "zzz"),
    ("queues", "reset", "zzz"),
    ("queues", "pause", "zzz", "--reason", "stop"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
async def test_a_shell_is_sent_to_the_command_that_lists(
    words: tuple[str, ...], shell: Shell
) -> None:
    await know_invoice(shell.url)

    answer = shell.perdure(*words)

    assert (answer.code, answer.err) == (
        1,
        "perdure: there is no queue 'zzz'; `perdure queues list` names them\n",
    )


LISTS = [("runs", "list"), ("dead-letters", "list")]


@pytest.mark.parametrize("words", LISTS, ids=" ".join)
async def test_an_empty_list_says_which_task_may_be_meant(
    words: tuple[str, ...], shell: Shell
) -> None:
    await know_invoice(shell.url)

    typo = shell.perdure(*words, "--task", "invocie")
    known = shell.perdure(*words, "--task", "invoice")
    unlike = shell.perdure(*words, "--task", "zzz")
    data = shell.perdure(*words, "--task", "invocie", "--json")

    hint = "There are none. No task 'invocie' is known; did you mean invoice?\n"
    assert (typo.code, typo.out) == (0, hint)
    assert (known.code, known.out) == (0, "There are none.\n")
    assert (unlike.code, unlike.out) == (0, "There are none. No task 'zzz' is known.\n")
    assert (data.code, list(data.json.values())) == (0, [[], None])


async def test_over_http_the_route_that_lists_is_named(storage_url: str) -> None:
    async with calling(storage_url) as client:
        refused = await client.post("/v1/queues/zzz/resume", json={})

    assert refused.json()["detail"] == "there is no queue 'zzz'; GET /v1/queues names them"
