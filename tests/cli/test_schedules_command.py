"""`perdure schedules …` and `perdure queues …`, from a shell, without anybody's code at hand."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest_asyncio

from command import Answer, Shell
from perdure import App, cron, every
from perdure.core.run.run import ActorType
from perdure.engine.operators.audit_log import AuditLog
from perdure.engine.tasks.catalogue import find_task
from schedule_kit import rewound

JOBS = """\
name: digest
task: send
cron: 0 9 * * MON-FRI
tz: Europe/Berlin
payload: {size: 3}
timeout: 10m
---
name: backup
cron: 0 3 * * *
target: {kind: shell, argv: [pg_dump, shop]}
"""


@pytest_asyncio.fixture
async def app(shell: Shell) -> App:
    """An app that has been here before: it has made its task known."""
    made = App(shell.url)

    @made.task(queue="mail")
    async def send(size: int = 1) -> int:
        return size

    async with made:
        return made


def applied(shell: Shell, text: str, *words: str) -> Answer:
    (shell.directory / "jobs.yaml").write_text(text)
    return shell.perdure("schedules", "apply", "-f", "jobs.yaml", *words)


# Files


async def test_a_manifest_is_shown_applied_and_found_as_it_should_be(
    app: App, shell: Shell
) -> None:
    shown = applied(shell, JOBS, "--dry-run")
    nothing = shell.perdure("schedules", "list")
    done = applied(shell, JOBS, "--by", "ann")
    again = applied(shell, JOBS, "--json")
    same = applied(shell, JOBS, "--dry-run")

    assert (shown.code, nothing.out) == (3, "There are none.\n")
    assert (done.code, again.code, same.code) == (0, 0, 0)
    assert shown.out == (
        "+ task backup\n"
        "    target.kind: shell\n"
        '    target.argv: ["pg_dump", "shop"]\n'
        "+ schedule digest\n"
        "    cron: 0 9 * * MON-FRI\n"
        "    tz: Europe/Berlin\n"
        "    task: send\n"
        "    payload.size: 3\n"
        "    timeout: 10m\n"
        "+ schedule backup\n"
        "    cron: 0 3 * * *\n"
        "    task: backup\n"
        "note: backup is executed by workers with --targets shell only\n"
        "3 added. This was a dry run: nothing was written.\n"
    )
    assert done.out.splitlines()[-1] == "3 added."
    assert (again.json["differs"], {item["action"] for item in again.json["items"]}) == (
        False,
        {"keep"},
    )
    async with app:
        digest = await app.schedules.get("digest")
        backup = await find_task(app.storage, app.environment, "backup")
    assert digest.defined is not None
    assert (digest.defined.by.type, digest.defined.by.id) == (ActorType.OPERATOR, "ann")
    assert backup.by_manifest


async def test_a_difference_is_told_field_by_field_and_who_is_overruled(
    app: App, shell: Shell
) -> None:
    applied(shell, JOBS)
    async with app:
        await app.schedules.update("digest", by="bob", priority=5, reason="urgent")
        await app.schedules.pause("backup", "disk full", by="eve")
    changed = JOBS.replace("0 9", "30 8").replace("{size: 3}", "{}").replace("shop]", "shop, -v]")

    answer = applied(shell, changed, "--dry-run")

    assert answer.code == 3
    assert re.sub(r"\d{4}-[^ ]*Z", "TIME", answer.out) == (
        "~ task backup\n"
        '    target.argv: ["pg_dump", "shop"] → ["pg_dump", "shop", "-v"]\n'
        "~ schedule digest\n"
        "    cron: 0 9 * * MON-FRI → 30 8 * * MON-FRI\n"
        "    payload.size: 3 → -\n"
        "    priority: 5 → -\n"
        "    an operator had changed it by bob at TIME (urgent); the manifest holds\n"
        "= schedule backup\n"
        "note: backup is executed by workers with --targets shell only\n"
        "note: backup is paused by eve at TIME (disk full), and stays so\n"
        "2 changed, 1 unchanged. This was a dry run: nothing was written.\n"
    )


async def test_a_manifest_that_is_wrong_is_refused_whole(app: App, shell: Shell) -> None:
    answer = applied(shell, f"{JOBS}---\nname: x\ntask: send\ncron: 99 9 * * *\n---\nnam: y\n")
    data = applied(shell, "name: x", "--json")
    missing = shell.perdure("schedules", "apply", "-f", "nowhere")

    assert answer.code == 2
    assert answer.err.splitlines()[0].startswith(
        "perdure: jobs.yaml, line 14, cron: '99 9 * * *': field 1 (minute): "
    )
    assert answer.err.splitlines()[1].startswith("jobs.yaml, line 16, nam: is no field of a sched")
    assert shell.perdure("schedules", "list").out == "There are none.\n"
    assert json.loads(data.err)["error"].startswith("jobs.yaml, line 1, cron: is missing")
    assert (missing.code, missing.err) == (
        2,
        "perdure: nowhere: cannot be read: No such file or directory\n",
    )


async def test_what_is_exported_is_applied_without_a_change(app: App, shell: Shell) -> None:
    applied(shell, JOBS)

    exported = shell.perdure("schedules", "export")
    data = shell.perdure("schedules", "export", "digest", "--json")
    unknown = shell.perdure("schedules", "export", "nobody")
    again = applied(shell, exported.out, "--dry-run")
    as_json = applied(shell, data.out, "--dry-run")

    assert "- name: digest\n  cron: 0 9 * * MON-FRI\n  tz: Europe/Berlin\n" in exported.out
    assert json.loads(data.out)["schedules"][0]["payload"] == {"size": 3}
    assert (again.code, as_json.code) == (0, 0)
    assert "left as they are: backup" in as_json.out
    assert unknown.code == 1


async def test_what_is_left_out_is_pruned_if_asked_for(app: App, shell: Shell) -> None:
    applied(shell, JOBS)

    answer = applied(shell, JOBS.split("---")[0], "--prune")

    assert answer.code == 0
    assert answer.out == (
        "= schedule digest\n"
        "- schedule backup\n"
        "    no manifest has it any more\n"
        "1 unchanged, 1 deleted.\n"
    )
    assert "backup" not in shell.perdure("schedules", "list").out


def test_the_schema_needs_no_database(shell: Shell) -> None:
    answer = shell.perdure("schedules", "schema")

    assert answer.code == 0
    assert json.loads(answer.out)["$defs"]["schedule"]["properties"]["cron"]["type"] == "string"


# Looking


async def test_schedules_are_listed(app: App, shell: Shell) -> None:
    async with app:
        await app.schedules.create("nightly", cron("0 3 * * *", tz="Asia/Tokyo"), "send")
        await app.schedules.create("held", every(60), "send")
        await app.schedules.pause("held")
        await app.schedules.create("off", every(60), "send", enabled=False)
        await app.schedules.create("gone", every(60), "send")
        await app.schedules.delete("gone")

    listed = shell.perdure("schedules", "list")
    data = shell.perdure("schedules", "list", "--json").json

    rows = [line.split() for line in listed.out.splitlines()[1:]]
    assert [(row[0], "live" in row, row[-1]) for row in rows] == [
        ("held", False, "operator"),
        ("nightly", True, "operator"),
        ("off", False, "operator"),
    ]
    assert "cron 0 3 * * * Asia/Tokyo" in listed.out
    assert {it["name"]: it["state"] for it in data} == {
        "held": "paused",
        "nightly": "live",
        "off": "disabled",
    }


async def test_one_is_shown_with_what_comes_and_what_became_of_the_rest(
    app: App, shell: Shell
) -> None:
    async with app:
        await app.schedules.create("quick", every(60), "send", by="ann", misfire="skip")
        await rewound(app, "quick", timedelta(minutes=150, seconds=30))
        await app.tick(grace=0)

    told = shell.perdure("schedules", "show", "quick").out
    data = shell.perdure("schedules", "show", "quick", "--json").json

    assert "every          1m\n" in told
    assert "defined        by operator, operator ann at " in told
    assert len(re.findall(r"^(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) ", told, re.MULTILINE)) == 5
    reasons = [run["reason"] for run in data["last_occurrences"]]
    assert reasons[:8] == ["misfired"] * 8  # the newest one or two were not too late
    assert len(re.findall(r" skipped +misfired$", told, re.MULTILINE)) == reasons.count("misfired")
    [span] = data["skipped_spans"]
    assert f"  {span['count']}" in told.splitlines()[-1]
    assert span["count"] in range(48, 52)  # the newest hundred have a run each
    assert [len(data["next_times"]), len(reasons)] == [5, 10]


async def test_a_preview_marks_where_clocks_are_turned(app: App, shell: Shell) -> None:
    async with app:
        berlin = cron("30 2 * * *", tz="Europe/Berlin", fold="both")
        await app.schedules.create("nightly", berlin, "send")

    spring = shell.perdure("schedules", "preview", "nightly", "-n", "3", "--after", "2026-03-27")
    autumn = shell.perdure("schedules", "preview", "nightly", "-n", "3", "--after", "2026-10-24")
    data = shell.perdure("schedules", "preview", "nightly", "-n", "1", "--json").json

    assert spring.out == (
        "EUROPE/BERLIN                  UTC\n"
        "Fri 2026-03-27 02:30:00 +0100  2026-03-27 01:30:00Z\n"
        "Sat 2026-03-28 02:30:00 +0100  2026-03-28 01:30:00Z\n"
        "Sun 2026-03-29 03:00:00 +0200  2026-03-29 01:00:00Z  "
        "clocks were turned forward by 1:00\n"
    )
    assert autumn.out.endswith(
        "Sun 2026-10-25 02:30:00 +0200  2026-10-25 00:30:00Z  first of two\n"
        "Sun 2026-10-25 02:30:00 +0100  2026-10-25 01:30:00Z  "
        "clocks were turned back by 1:00; second of two\n"
    )
    assert [time.keys() for time in data] == [{"time", "local", "note"}]


async def test_why_is_asked_in_the_zone_of_the_schedule(app: App, shell: Shell) -> None:
    async with app:
        await app.schedules.create("nine", cron("0 9 * * *", tz="Europe/Berlin"), "send")

    said = shell.perdure("schedules", "why", "nine", "2100-01-31T09:00")
    data = shell.perdure("schedules", "why", "nine", "2100-01-31T08:00Z", "--json").json
    wrong = shell.perdure("schedules", "why", "nine", "soon")

    assert said.out == (
        "nine at 2100-01-31 09:00 Europe/Berlin (2100-01-31T08:00:00Z): it is still to come.\n"
    )
    assert data["verdict"] == "still_to_come"
    assert (wrong.code, wrong.err) == (
        2,
        "perdure: AT must be like 2030-01-31T09:00:00Z, not 'soon'\n",
    )


async def test_a_time_that_did_not_exist_is_explained(app: App, shell: Shell) -> None:
    async with app:
        await app.schedules.create("night", cron("30 2 * * *", tz="Europe/Berlin"), "send")

    said = shell.perdure("schedules", "why", "night", "2026-03-29T02:30").out

    assert said.startswith(
        "night at 2026-03-29 03:00 Europe/Berlin (2026-03-29T01:00:00Z), for 02:30, which did not "
        "exist that night (clocks were turned from 02:00 to 03:00): "
    )


# Changing


async def test_one_is_held_run_by_hand_and_deleted(app: App, shell: Shell) -> None:
    async with app:
        await app.schedules.create("hourly", every(3600), "send", payload={"size": 2})
    said = shell.perdure("schedules", "pause", "hourly", "--reason", "look first", "--by", "ann")
    told = shell.perdure("schedules", "show", "hourly")
    resumed = shell.perdure("schedules", "resume", "hourly", "--json")
    run = shell.perdure(
        "schedules", "trigger", "hourly", "--reason", "asked", "--by", "bob", "--json"
    )
    silent = shell.perdure("schedules", "trigger", "hourly")
    shown = shell.perdure("schedules", "show", "hourly")
    deleted = shell.perdure("schedules", "delete", "hourly", "--reason", "no use")
    gone = shell.perdure("schedules", "pause", "hourly")
    story = shell.perdure("schedules", "show", "hourly").out
    listed = shell.perdure("schedules", "list", "--deleted").out
    story_of_run = shell.perdure("runs", "show", run.json["id"]).out
    events = shell.perdure("runs", "events", run.json["id"]).out
    why = shell.perdure("why", run.json["id"]).out

    assert said.out == "hourly is paused.\n"
    assert re.search(r"paused +operator ann at .*Z: look first", told.out)
    assert (resumed.json["state"], resumed.json["paused"]) == ("live", None)
    assert (silent.code, "--reason" in silent.err) == (2, True)
    assert re.search(r"Z by hand +run_\w+ +queued +by hand: asked \(bob\)", shown.out)
    assert deleted.out == "hourly is deleted.\n"
    assert (gone.code, gone.err) == (
        1,
        "perdure: there is no schedule 'hourly'; `perdure schedules list` names them all\n",
    )
    assert re.search(r"deleted +operator \w+ at .*Z: no use", story)
    assert listed.splitlines()[1].split()[0] == "hourly"
    assert listed.rstrip().endswith("no use")
    origin = "schedule hourly, by hand: asked (bob)"
    assert all(origin in told for told in (story_of_run, events, why))
    async with app:
        made = await app.runs.get(run.json["id"])
    assert (made.source.reason, made.payload, made.queue) == ("asked", {"size": 2}, "mail")


async def test_a_backfill_counts_first_and_goes_on_to_the_end(app: App, shell: Shell) -> None:
    async with app:
        await app.schedules.create("each", every(60), "send")
        schedule = await rewound(app, "each", timedelta(0))
    end = schedule.cursor.replace(second=0, microsecond=0)
    start = end - timedelta(minutes=1199)
    within = ("--from", start.isoformat(), "--to", end.isoformat())

    counted = shell.perdure("schedules", "backfill", "each", *within, "--dry-run")
    silent = shell.perdure("schedules", "backfill", "each", *within)
    done = shell.perdure("schedules", "backfill", "each", *within, "--reason", "lost", "--json")
    again = shell.perdure("schedules", "backfill", "each", *within, "--reason", "lost")

    assert counted.out == "1200 times would be run.\n"
    assert (silent.code, silent.err) == (2, "perdure: say why: --reason\n")
    assert done.json == {"times": 1200, "made": 1200}
    assert done.err == "1200 times are to be run.\n"
    assert (again.out, again.err) == ("0 runs were made.\n", "0 times are to be run.\n")


async def test_a_backfill_says_what_it_leaves_alone(app: App, shell: Shell) -> None:
    async with app:
        await app.schedules.create("each", every(60), "send", misfire="skip")
        old = await rewound(app, "each", timedelta(minutes=10))
        await app.scheduler().run_once()
    pruned = shell.perdure("prune", "--older-than", "0s", "--yes")
    within = ("--from", old.created_at.isoformat(), "--to", "2100-01-01")

    counted = shell.perdure("schedules", "backfill", "each", *within, "--dry-run")

    before = ("--from", (old.created_at - timedelta(minutes=3)).isoformat())
    until = ("--to", old.created_at.isoformat())
    backfill = ("schedules", "backfill", "each", *before, *until, "--reason", "lost")
    made = shell.perdure(*backfill)
    async with app:
        for run in (await app.runs.list(status="queued")).runs:
            await app.runs.cancel(run.id)
    shell.perdure("prune", "--older-than", "0s", "--yes")
    again = shell.perdure(*backfill)

    assert made.out == "3 runs were made.\n"
    assert again.out == "0 runs were made. 3 times had one already, which may be pruned.\n"
    assert pruned.out.endswith("runs are forgotten.\n")
    assert counted.out in ("0 times would be run.\n", "1 times would be run.\n")
    assert "may have been pruned; times that may have run are left alone" in counted.err


async def test_a_date_is_all_of_its_day_and_a_range_runs_forward(app: App, shell: Shell) -> None:
    async with app:
        await app.schedules.create("each", cron("0 * * * *", tz="Asia/Tokyo"), "send")

    def backfill(start: str, end: str, *words: str) -> Answer:
        within = ("--from", start, "--to", end, *words)
        return shell.perdure("schedules", "backfill", "each", *within)

    whole = backfill("2026-01-01", "2026-01-02", "--dry-run")
    until = backfill("2026-01-01", "2026-01-02T00:00", "--dry-run")
    backwards = backfill("2026-01-02", "2026-01-01", "--dry-run")
    coming = backfill("2100-01-01", "2100-01-02", "--dry-run")

    assert (whole.out, until.out) == (
        "48 times would be run.\n",
        "25 times would be run.\n",
    )
    assert (backwards.code, backwards.err) == (
        2,
        "perdure: --to must not lie before --from, 2026-01-02\n",
    )
    assert coming.out == "0 times would be run.\n"
    assert "what comes later is left to it" in coming.err


async def test_one_is_disabled_and_enabled_and_no_resume_does_that(app: App, shell: Shell) -> None:
    async with app:
        await app.schedules.create("hourly", every(3600), "send")

    disabled = shell.perdure("schedules", "disable", "hourly", "--reason", "loud", "--by", "ann")
    resumed = shell.perdure("schedules", "resume", "hourly")
    enabled = shell.perdure("schedules", "enable", "hourly")

    assert (disabled.out, enabled.out) == ("hourly is disabled.\n", "hourly is live.\n")
    assert (resumed.code, "`perdure schedules enable`" in resumed.err) == (2, True)
    async with app:
        entries = [it.entry for it in await AuditLog(app.runtime).read()]
    assert [(it.action, it.target, it.reason, it.details) for it in entries] == [
        ("patch_schedule", "hourly", "loud", {"enabled": False}),
        ("patch_schedule", "hourly", None, {"enabled": True}),
    ]


async def test_a_schedule_that_waits_for_its_task_says_so(shell: Shell) -> None:
    shell.perdure("migrate")
    applied(shell, "name: lost\ntask: nobody\nevery: 1s\n")

    async with App(shell.url) as app:
        await rewound(app, "lost", timedelta(minutes=5))
    ticked = shell.perdure("tick", "--now")
    listed = shell.perdure("schedules", "list").out
    shown = shell.perdure("schedules", "show", "lost").out

    assert (ticked.code, "Traceback" in ticked.err) == (0, False)
    assert "lost" in ticked.err
    assert re.search(r"waits for task nobody +due since \d{4}-", listed)
    assert re.search(r"state +waits for task nobody\n", shown)


async def test_in_utc_one_clock_is_enough(app: App, shell: Shell) -> None:
    async with app:
        await app.schedules.create("noon", cron("0 12 * * *"), "send")

    said = shell.perdure("schedules", "preview", "noon", "-n", "1", "--after", "2026-03-27")

    assert said.out == "UTC\nFri 2026-03-27 12:00:00\n"


# Queues


async def test_a_queue_is_paused_limited_and_given_back(app: App, shell: Shell) -> None:
    nothing = shell.perdure("queues", "set", "mail")
    limited = shell.perdure(
        *(
            "queues",
            "set",
            "mail",
            "--concurrency",
            "5",
            "--rate",
            "100/1m",
            "--fair",
            "--by",
            "ann",
        )
    )
    paused = shell.perdure("queues", "pause", "mail", "--reason", "spam", "--by", "bob")
    listed = shell.perdure("queues", "list")
    resumed = shell.perdure("queues", "resume", "mail", "--json").json
    unlimited = shell.perdure("queues", "set", "mail", "--concurrency", "none", "--rate", "none")
    reset = shell.perdure("queues", "reset", "mail")
    shown = shell.perdure("queues", "show", "mail", "--json").json
    wrong = shell.perdure("queues", "set", "mail", "--concurrency", "few")

    assert (nothing.code, "Say what" in nothing.err) == (2, True)
    assert "concurrency  5, as operator ann says\n" in limited.out
    assert "because      bob: spam\n" in paused.out
    assert listed.out.splitlines()[-1].split() == [
        "mail",
        "paused",
        "5",
        "100/1m",
        "yes",
        "bob:",
        "spam",
    ]
    assert (resumed["paused"], resumed["concurrency"]["value"]) == (None, 5)
    assert "concurrency  none, as operator " in unlimited.out
    assert "concurrency  none\n" in reset.out
    assert shown["rate"]["source"] == "nobody"
    assert "--concurrency must be a whole number or none, not 'few'" in wrong.err
