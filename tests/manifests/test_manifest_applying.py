"""Applying manifests: what is stored says what they say, whoever said otherwise before."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from fix_app import QUICK
from perdure import App, Manifest, Retry, cron, every
from perdure.app.manifests import make_entry
from perdure.core.run.run import Actor, ActorType, Policy
from perdure.core.schedule import DefinedBy, SkipReason, Verdict
from perdure.engine.manifests.apply import Action, Application
from perdure.engine.manifests.render import to_yaml
from perdure.engine.schedules.change import stored_schedule
from perdure.engine.tasks.catalogue import find_task, publish_tasks
from perdure.errors import InvalidManifest, ScheduleNotFound
from schedule_kit import rewound
from storage_kit import wait_until

NIGHTLY = """
name: nightly
task: digest
cron: 30 2 * * *
tz: Europe/Berlin
payload: {size: 3}
retry: {max_attempts: 5}
timeout: 10m
"""

PING = """
name: ping
every: 5m
target: {kind: http, url: https://shop.example/ping}
"""


@pytest.fixture
def app(storage_url: str) -> App:
    """An operator's: without code."""
    return App(storage_url, defaults=QUICK)


@pytest.fixture
def shop(storage_url: str) -> App:
    """Whose code it is."""
    made = App(storage_url, defaults=QUICK)

    @made.task(queue="mail", retry=Retry(max_attempts=7))
    async def digest(size: int = 1) -> int:
        return size

    return made


async def applied(app: App, text: str, by: str = "ann", **how: bool) -> Application:
    return await app.manifests.apply(Manifest.parse(text, "jobs.yaml"), by=by, **how)


def done(application: Application) -> dict[str, str]:
    return {f"{item.what} {item.name}": item.action.value for item in application.items}


def told(application: Application, name: str) -> list[str]:
    [item] = [it for it in application.items if it.name == name and it.what == "schedule"]
    return [str(field) for field in item.fields]


def because(application: Application, name: str) -> str | None:
    [item] = [it for it in application.items if it.name == name and it.what == "schedule"]
    return item.because


async def refusals(app: App, text: str) -> tuple[str, ...]:
    with pytest.raises(InvalidManifest) as refused:
        await applied(app, text)
    return refused.value.problems


# Applying


async def test_what_is_stated_is_stored_and_twice_is_once(app: App, shop: App) -> None:
    async with shop, app:
        first = await applied(app, NIGHTLY)
        made = await app.schedules.get("nightly")
        again = await applied(app, NIGHTLY, by="bob")
        after = await app.schedules.get("nightly")

    assert done(first) == {"schedule nightly": "add"}
    assert (again.differs, done(again)) == (False, {"schedule nightly": "keep"})
    assert made == after
    assert made.defined_by is DefinedBy.MANIFEST
    assert made.defined is not None
    assert made.defined.by == Actor(ActorType.OPERATOR, "ann")
    definition = made.definition
    assert definition.cadence == cron("30 2 * * *", tz="Europe/Berlin")
    assert definition.policy is not None
    assert (definition.policy.max_attempts, definition.policy.timeout) == (5, timedelta(minutes=10))
    assert bytes(definition.payload_json) == b'{"size":3}'


async def test_a_dry_run_tells_field_by_field_and_writes_nothing(app: App, shop: App) -> None:
    changed = NIGHTLY.replace("30 2", "0 3").replace("10m", "15m").replace("{size: 3}", "{size: 4}")
    async with shop, app:
        await applied(app, NIGHTLY)
        before = await app.schedules.get("nightly")
        found = await applied(app, f"{changed}overlap: skip\n---\n{PING}", dry_run=True)
        after = await app.schedules.get("nightly")
        with pytest.raises(ScheduleNotFound):
            await app.schedules.get("ping")

    assert (found.dry_run, found.differs, before) == (True, True, after)
    assert done(found) == {"task ping": "add", "schedule ping": "add", "schedule nightly": "change"}
    assert told(found, "nightly") == [
        "cron: 30 2 * * * → 0 3 * * *",
        "payload.size: 3 → 4",
        "timeout: 10m → 15m",
        "overlap: - → skip",
    ]


async def test_a_target_stands_in_the_catalogue_as_a_task(app: App) -> None:
    async with app:
        first = await applied(app, PING)
        entry = await find_task(app.storage, app.environment, "ping")
        changed = await applied(app, PING.replace("/ping}", "/pong}"))
        after = await find_task(app.storage, app.environment, "ping")

    assert entry.by_manifest
    assert (entry.executor, entry.policy.timeout) == ("http", QUICK.target_timeout)
    assert "ping is executed by workers with --targets http only" in first.notes
    assert done(changed) == {"task ping": "change", "schedule ping": "keep"}
    [field] = changed.items[0].fields
    assert str(field) == "target.url: https://shop.example/ping → https://shop.example/pong"
    assert after.target != entry.target


async def test_a_target_by_name_serves_several_schedules(app: App) -> None:
    text = """
    tasks:
      - name: bill
        target: {kind: shell, argv: [bill]}
        queue: billing
        on_lease_expired: fail
        retry: {max_attempts: 1}
        timeout: 1h
    schedules:
      - {name: daily, task: bill, cron: '@daily', payload: {all: false}}
      - {name: monthly, task: bill, cron: '@monthly'}
    """
    async with app:
        await applied(app, text)
        entry = await find_task(app.storage, app.environment, "bill")
        again = await applied(app, to_yaml(await app.manifests.export()))

    assert (entry.queue, entry.policy.on_lease_expired) == ("billing", "fail")
    assert (entry.policy.tries, entry.policy.timeout) == (1, timedelta(hours=1))
    assert not again.differs


async def test_half_an_application_is_mended_by_another(app: App, shop: App) -> None:
    """As if it had died after the targets, and after the first of the schedules."""
    whole = Manifest.parse(f"{PING}---{NIGHTLY}")
    async with shop, app:
        entry = make_entry(app, whole.tasks[0])
        await publish_tasks(app.storage, app.environment, [entry])
        await applied(app, NIGHTLY)
        found = await app.manifests.apply(whole, by="ann")
        again = await app.manifests.apply(whole, by="ann")

    assert done(found) == {"task ping": "keep", "schedule ping": "add", "schedule nightly": "keep"}
    assert not again.differs


# Checking


async def test_nothing_is_written_unless_all_of_it_can_be(app: App, shop: App) -> None:
    bad = NIGHTLY.replace("nightly", "other").replace("size: 3", "sise: 3")
    async with shop, app:
        [problem] = await refusals(app, f"{PING}---{NIGHTLY}---{bad}")
        assert await app.schedules.list() == []

    assert problem == (
        "jobs.yaml, line 18, payload.sise: there is no such argument; did you mean size?"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name: a:b\ntask: digest\nevery: 1m", "line 1, name: must not hold a colon"),
        ("name: a\ntask: digest\nevery: 1m\npriority: 99", "line 4, priority: must be a whole num"),
        (
            "name: a\ntask: digest\nevery: 1m\noverlap: maybe",
            "line 4, overlap: must be one of allow",
        ),
        (
            "name: a\ntask: digest\nevery: 1m\nmisfire_grace: 0",
            "line 4, misfire_grace: must be from",
        ),
        (
            "name: a\ntask: digest\nevery: 1m\nenabled: 'no'",
            "line 4, enabled: must be True or False",
        ),
        ("name: a\ntask: digest\nevery: 1m\npayload: 5", "line 4, payload: must be a dict of arg"),
        ("name: a\ntask: digest\nevery: 1m\npayload: {size: .inf}", "line 4, payload"),
        (
            "name: a\ntask: digest\nevery: 1m\npayload:\n  size: big",
            "line 5, payload.size: must be of",
        ),
        (
            "name: a\ntask: digest\nevery: 1m\ntimeout: 0",
            "line 4, timeout: must be longer than noth",
        ),
        ("name: a\ntask: digest\nevery: 1m\ntags: {a: 5}", "line 4, tags.a: must be text, not 5"),
        (
            "tasks:\n- name: x\n  target: {kind: shell, argv: [x]}\n  priority: 99",
            "line 4, tasks[0].pr",
        ),
        (
            "name: digest\nevery: 1m\ntarget: {kind: shell, argv: [x]}",
            "line 1, name: the task 'digest' is defined by code; say `task:` instead of `target:`",
        ),
    ],
)
async def test_what_only_a_database_can_tell_is_told_with_its_line(
    app: App, shop: App, text: str, problem: str
) -> None:
    async with shop, app:
        [found] = await refusals(app, text)

    assert problem in found


async def test_an_apps_own_task_is_no_manifests(shop: App) -> None:
    async with shop:
        [problem] = await refusals(
            shop, "name: digest\nevery: 1m\ntarget: {kind: shell, argv: [x]}"
        )
        own = await applied(shop, NIGHTLY)

    assert "is defined by code" in problem
    assert own.notes == ()


async def test_code_that_takes_a_targets_name_is_not_overruled(storage_url: str, app: App) -> None:
    code = App(storage_url, defaults=QUICK)

    @code.task(name="ping")
    async def ping() -> None: ...

    async with app:
        await applied(app, PING)
        async with code:
            [problem] = await refusals(app, PING)

    assert "the task 'ping' is defined by code" in problem


# A task that nobody knows yet


async def test_a_task_that_nobody_knows_is_said_and_its_times_wait(app: App, shop: App) -> None:
    async with app:
        first = await applied(app, NIGHTLY)
        async with shop:
            again = await applied(app, NIGHTLY)
            once_more = await applied(app, NIGHTLY)

    assert [note.split(":")[0] for note in first.notes] == ["nightly waits"]
    assert "no app or worker has made the task 'digest' known yet" in first.notes[0]
    assert again.notes == ()
    assert not once_more.differs


async def test_a_misspelled_task_is_mended_by_another_application(app: App, shop: App) -> None:
    text = "name: quick\nevery: 1m\ntask: digset\nmisfire: catch_up"
    async with shop, app:
        first = await applied(app, text)
        await rewound(app, "quick", timedelta(minutes=3, seconds=10))
        await applied(app, text.replace("digset", "digest"))
        await app.tick(grace=0)
        runs = await app.runs.list(schedule_id="quick")

    assert first.notes[0].endswith("did you mean digest?")
    assert {run.task for run in runs.runs} == {"digest"}
    assert len(runs.runs) in (3, 4)


async def test_times_of_an_unknown_task_are_on_record_if_the_cadence_changes(
    app: App, shop: App
) -> None:
    async with shop, app:
        await applied(app, "name: quick\nevery: 1m\ntask: digset")
        since = (await rewound(app, "quick", timedelta(minutes=3))).cursor
        await applied(app, "name: quick\nevery: 1h\ntask: digest")
        schedule = await app.schedules.get("quick")
        [span] = (await app.schedules.last("quick")).spans
        why = await app.schedules.why("quick", span.first)

    assert schedule.paused is None
    assert since < span.first
    assert (span.count in (2, 3), span.reason) == (True, SkipReason.CHANGED)
    assert why.verdict is Verdict.SKIPPED
    assert "while nobody knew its task digset, and the cadence was changed" in why.sentence


# Who wins


async def test_a_manifest_holds_over_code_which_is_not_heard_any_more(
    storage_url: str, app: App
) -> None:
    def code() -> App:
        made = App(storage_url, defaults=QUICK)

        @made.schedule(every(hours=1), name="nightly")
        @made.task
        async def digest(size: int = 1) -> int:
            return size

        return made

    async with code(), app:
        found = await applied(app, NIGHTLY)
        async with code():
            after = await app.schedules.get("nightly")

    assert because(found, "nightly") == (
        "it was defined by code; the manifest holds, and code is not heard any more"
    )
    assert after.defined_by is DefinedBy.MANIFEST
    assert after.cadence == cron("30 2 * * *", tz="Europe/Berlin")


async def test_a_manifest_holds_over_operators_and_says_so(app: App, shop: App) -> None:
    async with shop, app:
        await app.schedules.create("nightly", every(hours=1), "digest")
        by_hand = await applied(app, NIGHTLY)
        await app.schedules.update("nightly", by="bob", priority=3, reason="urgent")
        touched = await applied(app, NIGHTLY)
        await app.schedules.delete("nightly", "no use", by="bob")
        deleted = await applied(app, NIGHTLY)
        after = await app.schedules.get("nightly")

    assert because(by_hand, "nightly") == "an operator had made it by hand; the manifest holds"
    said = because(touched, "nightly") or ""
    assert said.startswith("an operator had changed it by bob at ")
    assert said.endswith("(urgent); the manifest holds")
    assert told(touched, "nightly") == ["priority: 3 → -"]
    assert "it begins anew, with its history" in (because(deleted, "nightly") or "")
    assert after.deleted is None


async def test_one_that_says_the_same_already_stays_whose_it_is(app: App, shop: App) -> None:
    async with shop, app:
        await app.schedules.create("hourly", every(hours=1), "digest")
        found = await applied(app, "name: hourly\ntask: digest\nevery: 1h")
        after = await app.schedules.get("hourly")

    assert done(found) == {"schedule hourly": "keep"}
    assert because(found, "hourly") == "it says so already, and stays defined by operator"
    assert after.defined_by is DefinedBy.OPERATOR


async def test_a_payload_spelled_otherwise_is_the_same(app: App, shop: App) -> None:
    text = "name: a\ntask: unknown\nevery: 1h\npayload: {x: 1.0e16, y: [true, null]}"
    other = "name: a\ntask: unknown\nevery: 1h\npayload: {y: [true, null], x: 1e16}"
    async with shop, app:
        await applied(app, text)
        same = await applied(app, other)
        different = await applied(app, other.replace("true", "1"), dry_run=True)

    assert not same.differs
    assert told(different, "a") == ["payload.y: [true, null] → [1, null]"]


async def test_a_paused_schedule_stays_paused_but_a_deleted_one_begins_anew(
    app: App, shop: App
) -> None:
    async with shop, app:
        await applied(app, NIGHTLY)
        await app.schedules.pause("nightly", "holidays", by="bob")
        found = await applied(app, NIGHTLY.replace("30 2", "0 3"))
        paused = await app.schedules.get("nightly")
        await app.schedules.delete("nightly")
        await applied(app, NIGHTLY)
        anew = await app.schedules.get("nightly")

    assert paused.paused is not None
    assert any("nightly is paused by bob at" in note for note in found.notes)
    assert (anew.paused, anew.is_live) == (None, True)


# What is left out


async def test_one_that_is_left_out_goes_on_unless_it_is_pruned(app: App, shop: App) -> None:
    async with shop, app:
        await app.schedules.create("by hand", every(hours=1), "digest")
        await applied(app, f"{NIGHTLY}---{PING}")
        left = await applied(app, PING)
        kept = await app.schedules.get("nightly")
        dry = await applied(app, PING, prune=True, dry_run=True)
        still = await app.schedules.get("nightly")
        pruned = await applied(app, PING, prune=True)
        gone = await stored_schedule(app.runtime, "nightly")
        names = [schedule.id for schedule in await app.schedules.list()]
        again = await applied(app, PING, prune=True)

    assert kept == still
    assert any(note.endswith("left as they are: nightly") for note in left.notes)
    assert done(dry) == done(pruned)
    assert done(pruned)["schedule nightly"] == "delete"
    assert gone.deleted is not None
    assert (gone.deleted.by.id, gone.deleted.reason) == ("ann", "no manifest has it any more")
    assert names == ["by hand", "ping"]
    assert not again.differs


# Many at once


async def test_many_who_apply_the_same_at_once_agree(app: App, shop: App) -> None:
    text = f"{PING}---" + "---\n".join(NIGHTLY.replace("nightly", f"n{i}") for i in range(5))
    async with shop, app:
        found = await asyncio.gather(*(applied(app, text, by=f"op{i}") for i in range(4)))
        after = await applied(app, text)
        schedules = await app.schedules.list()

    assert all(item.action in (Action.ADD, Action.KEEP) for one in found for item in one.items)
    assert not after.differs
    assert [schedule.version for schedule in schedules] == [1] * 6


# Exporting


async def test_what_is_exported_is_a_manifest_in_few_words(app: App, shop: App) -> None:
    async with shop, app:
        await applied(app, f"{NIGHTLY}---{PING}")
        await app.schedules.create("by hand", every(hours=1), "digest", overlap="skip")
        text = to_yaml(await app.manifests.export())
        one = await app.manifests.export(["by hand"])
        with pytest.raises(ScheduleNotFound):
            await app.manifests.export(["nightly", "nobody"])
        await app.schedules.delete("ping")
        with pytest.raises(ScheduleNotFound):
            await app.manifests.export(["ping"])

    assert text == (
        "tasks:\n"
        "- name: ping\n"
        "  target:\n"
        "    kind: http\n"
        "    url: https://shop.example/ping\n"
        "schedules:\n"
        "- name: by hand\n"
        "  every: 1h\n"
        "  task: digest\n"
        "  overlap: skip\n"
        "- name: nightly\n"
        "  cron: 30 2 * * *\n"
        "  tz: Europe/Berlin\n"
        "  task: digest\n"
        "  payload:\n"
        "    size: 3\n"
        "  retry:\n"
        "    max_attempts: 5\n"
        "  timeout: 10m\n"
        "- name: ping\n"
        "  every: 5m\n"
        "  task: ping\n"
    )
    assert one == {
        "schedules": [{"name": "by hand", "every": "1h", "task": "digest", "overlap": "skip"}]
    }


async def test_rules_that_retry_cannot_say_are_exported_whole(storage_url: str, app: App) -> None:
    """A timeout that the task got after the schedule was made: no `timeout` says "none"."""
    async with app:
        await applied(app, "name: a\nevery: 1h\ntask: digest\nretry: {max_attempts: 5}")
        code = App(storage_url, defaults=QUICK)

        @code.task(timeout=60)
        async def digest() -> None: ...

        async with code:
            before = (await app.schedules.get("a")).definition
            [said] = (await app.manifests.export())["schedules"]
            again = await applied(app, to_yaml({"schedules": [said]}))

    assert isinstance(before.policy, Policy)
    assert said["policy"]["max_attempts"] == 5
    assert not again.differs


async def test_a_time_that_has_passed_is_refused_unless_it_was_applied_before(app: App) -> None:
    soon = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    async with app:
        await applied(app, f"{{name: once, task: digest, at: '{soon}'}}")
        await wait_until(app.storage, datetime.fromisoformat(soon) + timedelta(milliseconds=1))
        again = await applied(app, f"{{name: once, task: digest, at: '{soon}'}}")
        with pytest.raises(InvalidManifest) as refused:
            await applied(app, "name: late\ntask: digest\nat: '2020-01-01T00:00:00Z'\n")

    assert not again.differs
    assert refused.value.problems == (
        (
            "jobs.yaml, line 3, at: 2020-01-01T00:00:00Z has passed; name an instant to come, or "
            "trigger a run by hand"
        ),
    )
