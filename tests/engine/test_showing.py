"""What may be shown of what is stored: all of it, but for secrets and tokens."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from builders import a_failure, a_policy, created, dead_lettered, history, lease_claimed, started
from perdure import Redaction, secret
from perdure.core.invariants import check_history
from perdure.core.json_text import encode_value
from perdure.core.run.attempts import derive_attempts
from perdure.core.run.events import Event
from perdure.core.run.lifecycle import Status
from perdure.core.run.reducer import replay
from perdure.engine.observability.record_redaction import Showing
from perdure.engine.tasks.target import HttpTarget, ShellTarget
from perdure.telemetry.redactor import HIDDEN, Redactor

CANARY = "hunter2-canary-9a11"
SAID = f"their password={CANARY}"
SHOWING = Showing(Redactor(Redaction()))
LEAKY: dict[str, Any] = {
    "payload_json": encode_value({"password": CANARY, "note": SAID, "n": 2**70}),
    "tags": {"api_key": CANARY},
    "meta": {"deep": [{"token": CANARY}]},
}


def leaky(status: Status) -> list[Event]:
    """A history that ends so, with a secret wherever there is room for one."""
    events = history(status, **LEAKY)
    said = {"reason": SAID, "failure": a_failure(SAID, traceback=SAID, details={"secret": CANARY})}
    return [
        msgspec.structs.replace(
            event, **{k: v for k, v in said.items() if getattr(event, k, None) is not None}
        )
        for event in events
    ]


@pytest.mark.parametrize("status", Status)
def test_a_history_leads_to_what_is_shown_of_its_run(status: Status) -> None:
    events = leaky(status)

    shown = SHOWING.shown(events)
    run = SHOWING.shown(replay(events))

    assert CANARY.encode() in msgspec.json.encode(events)
    assert CANARY.encode() not in msgspec.json.encode([shown, run])
    assert check_history(run, shown) == []


def test_shown_twice_is_shown_once() -> None:
    run = replay(leaky(Status.RUNNING))

    once = SHOWING.shown(run)

    assert SHOWING.shown(once) == once
    assert once.lease is not None
    assert once.lease.token == HIDDEN


def test_what_holds_no_secret_is_shown_as_it_is() -> None:
    run = replay(history(Status.SUCCEEDED, payload_json=msgspec.Raw(b'{ "a" : 1e2 }')))

    assert SHOWING.shown(run) is run


def test_an_attempt_is_shown_without_what_it_printed_of_secrets() -> None:
    output = {"stdout": SAID, "headers": {"set-cookie": CANARY}}
    ended = dead_lettered(failure=a_failure(SAID), attempt=1, output=output)
    [attempt] = derive_attempts([created(policy=a_policy()), lease_claimed(), started(), ended])

    shown = SHOWING.shown(attempt)

    assert CANARY.encode() not in msgspec.json.encode(shown)
    assert shown.failure is not None
    assert shown.failure.message == f"their password={HIDDEN}"


def test_targets_are_shown_with_the_names_of_their_secrets() -> None:
    http = HttpTarget(
        url=f"https://example.com/hook?k={CANARY}",
        headers={"Authorization": secret("API_AUTH"), "x-token": CANARY, "accept": "text/plain"},
    )
    shell = ShellTarget(
        argv=("backup", f"--password={CANARY}"), env={"PGPASSWORD": CANARY, "HOME": "/tmp"}
    )

    shown = SHOWING.shown(http)
    assert shown.url == f"https://example.com/hook?{HIDDEN}"
    names = {"Authorization": secret("API_AUTH"), "x-token": HIDDEN, "accept": "text/plain"}
    assert shown.headers == names
    assert SHOWING.shown(shell).argv == ("backup", f"--password={HIDDEN}")
    assert SHOWING.shown(shell).env == {"PGPASSWORD": HIDDEN, "HOME": "/tmp"}
