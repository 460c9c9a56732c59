"""`perdure schedules update` changes what it names, and nothing else."""

from __future__ import annotations

from datetime import timedelta

import pytest
import pytest_asyncio

from command import Shell
from perdure import App, Retry, cron, every
from perdure.core.schedule import Cron, Definition
from perdure.engine.operators.audit_log import AuditLog


@pytest_asyncio.fixture
async def app(shell: Shell) -> App:
    """An app with the schedule `daily`, which sets everything that a test changes."""
    app = App(shell.url)

    @app.task(queue="mail", retry=Retry(max_attempts=9), timeout=60)
    async def send(size: int = 1) -> None: ...

    async with app:
        await app.schedules.create(
            "daily",
            cron("0 9 * * *", tz="Europe/Berlin"),
            send,
            payload={"size": 3},
            retry=Retry(max_attempts=4, delays=[1, 30]),
            timeout=30,
            queue="slow",
            tags={"team": "red"},
        )
    return app


async def stored(app: App) -> Definition:
    async with app:
        return (await app.schedules.get("daily")).definition


async def test_a_new_timeout_leaves_the_rest_as_it_is(app: App, shell: Shell) -> None:
    before = await stored(app)

    changed = shell.perdure(
        "schedules", "update", "daily", "--timeout", "5", "--by", "ann", "--reason", "slow"
    )

    after = await stored(app)
    assert (changed.code, changed.out) == (0, "daily is changed, and live.\n"), changed.err
    assert before.policy is not None
    assert after.policy is not None
    assert after.policy.timeout == timedelta(seconds=5)
    assert after.policy.max_attempts == before.policy.max_attempts == 4
    assert after.policy.backoff == before.policy.backoff
    assert (after.cadence, after.payload_json) == (before.cadence, before.payload_json)
    assert (after.queue, after.tags) == ("slow", {"team": "red"})
    async with app:
        [sealed] = await AuditLog(app.runtime).read()
    entry = sealed.entry
    assert (entry.action, entry.actor.id, entry.reason) == ("patch_schedule", "ann", "slow")
    assert entry.details == {"fields": ["timeout"]}


async def test_settings_are_read_as_a_shell_gives_them(app: App, shell: Shell) -> None:
    changed = shell.perdure(
        *("schedules", "update", "daily", "--json", "--cron", "30 8 * * *", "--queue", "none"),
        *("--retry", "max_attempts=6", "--ttl", "1h30m", "--priority", "7", "--tag", "a=b"),
        *("--payload", '{"size": 8}', "--overlap", "skip", "--catch-up-limit", "2"),
    )

    after = await stored(app)
    assert changed.code == 0, changed.err
    assert changed.json["name"] == "daily"
    assert isinstance(after.cadence, Cron)
    assert (after.cadence.expression, after.cadence.tz) == ("30 8 * * *", "Europe/Berlin")
    assert after.policy is not None
    assert (after.policy.max_attempts, after.policy.timeout) == (6, timedelta(seconds=30))
    assert (after.queue, after.priority, after.tags) == (None, 7, {"a": "b"})
    assert (after.ttl, after.catch_up_limit) == (timedelta(minutes=90), 2)
    assert (after.overlap, bytes(after.payload_json)) == ("skip", b'{"size":8}')


async def test_a_cadence_of_another_kind_replaces_the_first(app: App, shell: Shell) -> None:
    changed = shell.perdure("schedules", "update", "daily", "--every", "15m")

    assert changed.code == 0, changed.err
    assert (await stored(app)).cadence == every(minutes=15)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("", "Name a setting to change"),
        ("--tz UTC", "--tz is for --cron"),
        ("--every 5 --at 2030-01-01T00:00:00Z", "give one of --cron, --every and --at"),
        ("--priority high", "--priority must be a whole number, not 'high'"),
        ("--timeout soon", "timeout: must be seconds, or a length"),
    ],
)
async def test_what_cannot_be_meant_changes_nothing(
    app: App, shell: Shell, words: str, problem: str
) -> None:
    before = await stored(app)
    refused = shell.perdure("schedules", "update", "daily", *words.split())

    assert (refused.code, problem in refused.err) == (2, True), refused.err
    assert await stored(app) == before


async def test_a_missing_schedule_is_named(app: App, shell: Shell) -> None:
    refused = shell.perdure("schedules", "update", "dayly", "--timeout", "5")

    assert (refused.code, "dayly" in refused.err) == (1, True)
