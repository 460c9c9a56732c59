"""`perdure webhooks …`, as a shell would call it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from command import Answer, Shell
from endpoints import answering
from hook_kit import SECRET, Receiver
from perdure import App
from perdure.engine.operators.audit_log import AuditLog

URL = "https://example.com/hook"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    assert shell.perdure("migrate").code == 0
    return shell


def webhooks(shell: Shell, *words: str, **variables: str) -> Answer:
    return shell.perdure("webhooks", *words, **variables)


def created(shell: Shell, *words: str) -> Answer:
    return webhooks(shell, "create", "billing", URL, "--secret", "WEBHOOK_A", *words)


def test_a_webhook_is_made_shown_and_listed(shell: Shell) -> None:
    what = ("--event", "run.failed", "--task", "double", "--tag", "team=red",
            "--header", "x-auth=WEBHOOK_AUTH", "--with-payload")  # fmt: skip

    made = created(shell, *what, "--json")
    listed = webhooks(shell, "list")
    shown = webhooks(shell, "show", "billing", "--json")

    assert (made.code, made.json["tag"], made.json["with_payload"]) == (0, "team=red", True)
    assert made.json["headers"] == {"x-auth": "secret WEBHOOK_AUTH"}
    assert listed.out.splitlines()[1].split()[:3] == ["billing", "active", "run.failed"]
    assert shown.json == made.json | {"deliveries": []}
    assert "Nothing was posted yet." in webhooks(shell, "show", "billing").out


def test_it_is_paused_resumed_changed_replayed_and_deleted(shell: Shell) -> None:
    created(shell)

    assert webhooks(shell, "pause", "billing").out == "billing is paused.\n"
    assert webhooks(shell, "resume", "billing").out == "billing is active.\n"
    rotated = ("update", "billing", "--secret", "WEBHOOK_B", "--secret", "WEBHOOK_A", "--json")
    assert webhooks(shell, *rotated).json["signing_secrets"] == ["WEBHOOK_B", "WEBHOOK_A"]
    replayed = webhooks(shell, "replay", "billing", "--since", "2026-01-01", "--reason", "lost")
    assert (replayed.code, replayed.out) == (0, "billing goes on after 0.\n")
    assert webhooks(shell, "replay", "billing", "--since", "1h").code == 0
    assert webhooks(shell, "delete", "billing", "--json").json == {"deleted": "billing"}
    assert webhooks(shell, "list").out == "There are none.\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "nobody"), "there is no webhook 'nobody'"),
        (("replay", "billing"), "give either since or after"),
        (("update", "billing", "--header", "x"), "--header must be NAME=VARIABLE"),
        (("update", "billing", "--tag", "a=b", "--tag", "c=d"), "--tag can be given once"),
        (("update", "billing", "--to", "nowhere"), "must begin with https://"),
        (("update", "billing", "--event", "run.exploded"), "is no event"),
    ],
)
def test_what_cannot_be_is_said(shell: Shell, words: tuple[str, ...], said: str) -> None:
    created(shell)

    answer = webhooks(shell, *words)

    assert answer.code != 0
    assert said in answer.err
    assert "Traceback" not in answer.err


async def test_a_trial_exits_by_what_came_of_it(shell: Shell) -> None:
    async with Receiver() as receiver:
        words = ("create", "here", receiver.url, "--secret", "WEBHOOK_A")
        await asyncio.to_thread(webhooks, shell, *words)
        variables = {"WEBHOOK_A": SECRET, "PERDURE_HTTP_ALLOW": "loopback"}

        taken = await asyncio.to_thread(webhooks, shell, "test", "here", **variables)
        receiver.answer = answering(500)
        refused = await asyncio.to_thread(webhooks, shell, "test", "here", **variables)

    assert (taken.code, taken.out) == (0, "delivered: answered 200\n")
    assert (refused.code, refused.out.startswith("failed: ")) == (1, True)


async def test_orders_from_a_shell_are_in_the_audit_log(shell: Shell) -> None:
    for words in (("pause", "billing", "--reason", "they asked"), ("delete", "billing")):
        await asyncio.to_thread(created, shell)
        await asyncio.to_thread(webhooks, shell, *words, "--by", "ada")

    async with App(shell.url) as app:
        text = "".join(it.body for it in await AuditLog(app.runtime).read())
    for word in ("create_webhook", "pause_webhook", "delete_webhook", "they asked", "ada"):
        assert word in text
