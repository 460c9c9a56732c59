"""The command line as a process, at a server that is one too: it says what it would say beside
the database, as far as its key goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from command import Answer, Shell
from perdure import App, Context, every, secret
from perdure.engine.operators.keys import Keys
from perdure.engine.protocol.scope import Scope
from perdure.errors import RunFailed
from waiting import MAX_WAIT_S
from web_kit import ADA, serving, shop

SECRET = "hunter2-over-http"


class Office:
    """A served database, and shells with a key each. What it holds is made once, for all tests
    that only look."""

    def __init__(self, shell: Shell, address: str, ids: dict[str, str]) -> None:
        self.shell = shell
        self.address = address
        self.ids = ids
        self.keys: dict[tuple[str, ...], str] = {}

    def beside(self, *arguments: str) -> Answer:
        return self.shell.perdure(*arguments)

    def afar(self, *arguments: str, scopes: tuple[str, ...] = ("read",)) -> Answer:
        """The same command, where there is only an address and a key."""
        key = self.keys.get(scopes) or asyncio.run(self._make(scopes))
        self.keys[scopes] = key
        return self.shell.perdure(*arguments, PERDURE_URL=self.address, PERDURE_API_KEY=key)

    def get(self, path: str) -> Any:
        """What the API itself answers a reader."""
        self.afar("runs", "list")
        bearer = {"authorization": f"Bearer {self.keys['read',]}"}
        return httpx.get(self.address + path, headers=bearer).json()

    def both(self, *arguments: str) -> tuple[Answer, Answer]:
        """From afar as a reader, and beside the database, at the same time."""
        with ThreadPoolExecutor(2) as pool:
            afar, beside = (pool.submit(ask, *arguments) for ask in (self.afar, self.beside))
            return afar.result(), beside.result()

    async def _make(self, scopes: tuple[str, ...]) -> str:
        async with App(self.shell.url) as app:
            return (await Keys(app.runtime).create("-".join(scopes), scopes, by=ADA)).text


async def furnish(url: str) -> dict[str, str]:
    app = shop(url)

    @app.task
    async def talk(ctx: Context) -> None:
        ctx.log.info("hello", password=SECRET, number=1)

    async with app, app.worker(concurrency=1):
        double, fragile = app.tasks["double"], app.tasks["fragile"]
        done = await double.trigger(1, password=SECRET)
        await done.result(MAX_WAIT_S)
        dead = await fragile.trigger(f"password={SECRET}")
        with pytest.raises(RunFailed):
            await dead.result(MAX_WAIT_S)
        waiting = await double.options(delay=3600, tags={"a": "b"}).trigger(2)
        await app.schedules.create("nightly", every(86400), "double", payload={"number": 1})
        await app.queues.pause("numbers", "flooded")
        await app.webhooks.create(
            "told", f"http://192.0.2.1/?k={SECRET}", signing_secret=secret("WEBHOOK_X")
        )
        await app.webhooks.pause("told")
        said = await talk.trigger()
        await said.result(MAX_WAIT_S)
        return {"SAID": said.id, "DONE": done.id, "DEAD": dead.id, "WAITING": waiting.id}


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    directory: Path = tmp_path_factory.mktemp("office")
    shell = Shell(directory)
    ids = asyncio.run(furnish(shell.url))
    with serving(shell.url, directory, "--require-keys", "--no-webhooks") as server:
        yield Office(shell, server.address, ids)


# Looking

VOLATILE = {"at", "bytes", "log_bytes", "free_bytes", "seen_at", "ticked_at", "server_started_at"}
"""What is different a moment later."""

LOOKS = [
    "runs list",
    "runs list --task double --limit 1",
    "runs list --status dead_lettered --tag a=b",
    "runs show DONE",
    "runs show DEAD",
    "runs events DEAD",
    "runs attempts DEAD",
    "runs watch DONE",
    "runs logs SAID",
    "runs progress SAID",
    "runs bundle DEAD",
    "why DEAD",
    "why WAITING",
    "schedules list",
    "schedules show nightly",
    "schedules preview nightly --after 2030-01-01T00:00:00Z",
    "schedules why nightly 2020-01-01T00:00:00Z",
    "schedules export",
    "queues list",
    "queues show numbers",
    "dead-letters list",
    "dead-letters list --task fragile --failure-kind error",
    "dead-letters show DEAD",
    "tasks list",
    "tasks show double",
    "limits list",
    "limits show double",
    "workers list",
    "webhooks list",
    "webhooks show told",
    "doctor",
    "audit",
    "top",
    "status",
]


def lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: lasting(it) for name, it in value.items() if name not in VOLATILE}
    return [lasting(it) for it in value] if isinstance(value, list) else value


def told(answer: Answer) -> Any:
    """Everything it said, as data."""
    try:
        return lasting(json.loads(answer.out))
    except ValueError:
        return [lasting(json.loads(line)) for line in answer.out.splitlines()]


@pytest.mark.parametrize("command", LOOKS)
def test_a_reader_is_told_what_the_database_would_tell(office: Office, command: str) -> None:
    words = [office.ids.get(word, word) for word in command.split()]

    afar, beside = office.both(*words, "--json")

    assert (afar.code, afar.err) == (beside.code, beside.err)
    assert told(afar) == told(beside)
    assert told(afar) != []
    assert SECRET not in afar.out + beside.out


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("runs show DEAD", "/v1/runs/DEAD"),
        ("runs events DEAD", "/v1/runs/DEAD/events"),
        ("runs attempts DEAD", "/v1/runs/DEAD/attempts"),
        ("why WAITING", "/v1/runs/WAITING/why"),
    ],
)
def test_json_is_what_the_api_answers(office: Office, command: str, path: str) -> None:
    words = [office.ids.get(word, word) for word in command.split()]
    where = "/".join(office.ids.get(part, part) for part in path.split("/"))

    answered = office.get(where)

    assert told(office.beside(*words, "--json")) == lasting(answered.get("items", answered))


def test_a_line_of_json_is_a_line_the_api_answers(office: Office) -> None:
    lines = office.beside("runs", "logs", office.ids["SAID"], "--json").out.splitlines()

    answered = office.get(f"/v1/runs/{office.ids['SAID']}/logs")["items"]
    assert [json.loads(line) for line in lines] == answered


def test_a_table_is_the_same_too(office: Office) -> None:
    assert office.afar("runs", "list").out == office.beside("runs", "list").out
    shown = office.afar("runs", "show", office.ids["DEAD"]).out
    assert shown == office.beside("runs", "show", office.ids["DEAD"]).out
    assert "password=[redacted]" in shown


def test_the_audit_log_is_verified_from_afar_by_who_may_read_it(office: Office) -> None:
    made = office.beside("keys", "create", "one", "--scope", "read")
    words = ("audit", "--log", "--json")

    afar, beside = office.afar(*words, scopes=("admin",)), office.beside(*words)
    refused = office.afar(*words, scopes=("read", "operate", "work"))

    assert made.code == 0
    assert afar.json["entries"] > 0
    assert afar.json == beside.json
    assert refused.code == 1
    assert "needs the scope admin" in refused.err


def test_the_entries_of_the_audit_log_are_the_same_from_afar(office: Office) -> None:
    made = office.beside("keys", "create", "two", "--scope", "read", "--by", "ann")
    words = ("audit", "--entries", "--actor", "ann", "--json")

    afar, beside = office.afar(*words, scopes=("admin",)), office.beside(*words)

    assert made.code == 0
    assert afar.json["actor"]["id"] == "ann"
    assert (afar.code, afar.out) == (0, beside.out)


# Ordering

OPERATOR = ("read", "operate")


def test_orders_are_carried_out_and_told_as_they_are_stored(office: Office) -> None:
    made = office.afar("trigger", "double", "--payload", '{"number": 3}', "--delay", "3600",
                       "--json", scopes=("trigger",))  # fmt: skip
    run_id = made.json["id"]

    def order(*words: str) -> Answer:
        return office.afar("runs", *words, run_id, "--json", scopes=OPERATOR)

    paused = order("pause", "--reason", "look first")
    assert paused.json == office.beside("runs", "show", run_id, "--json").json
    assert order("resume").json["status"] == "scheduled"
    cancelled = order("cancel", "--reason", "enough")
    assert cancelled.json == office.beside("runs", "show", run_id, "--json").json
    moved = office.afar("runs", "reschedule", made.json["id"], "--priority", "9", scopes=OPERATOR)
    assert (moved.code, "cancelled" in moved.err) == (1, True)
    again = order("rerun", "--payload", '{"number": 4}')
    assert office.beside("runs", "show", again.json["id"], "--json").json["payload"] == {
        "number": 4
    }
    events = office.afar("runs", "events", run_id, "--json").json
    actors = {it["actor"]["id"].split(" ")[0] for it in events[2:]}
    assert (made.json["outcome"], actors) == ("created", {"read-operate"})


def test_many_are_ordered_about_by_a_run_at_the_server(office: Office) -> None:
    for number in range(3):
        made = office.beside("trigger", "double", "--payload", f'{{"number": {number}}}',
                             "--delay", "3600", "--tag", "batch=one")  # fmt: skip
        assert made.code == 0
    words = ("runs", "cancel", "--tag", "batch=one", "--reason", "all of them", "--json")

    counted = office.afar(*words, "--dry-run", scopes=OPERATOR)
    done = office.afar(*words, "--yes", scopes=OPERATOR)

    assert (counted.code, counted.json) == (0, {"matched": 3})
    assert done.code == 0, done.err
    assert (done.json["matched"], done.json["done"], done.json["refused"]) == (3, 3, {})
    order = office.beside("runs", "show", done.json["run_id"], "--json").json
    assert (order["task"], order["status"]) == ("perdure.bulk", "succeeded")
    listed = office.beside("runs", "list", "--tag", "batch=one", "--json").json["runs"]
    assert {(it["status"], it["reason"]) for it in listed} == {("cancelled", "all of them")}


def test_a_dead_letter_is_decided_from_afar(office: Office) -> None:
    replayed = office.afar("dead-letters", "replay", office.ids["DEAD"], "--json", scopes=OPERATOR)
    twice = office.afar("runs", "retry", office.ids["DEAD"], scopes=OPERATOR)

    assert (replayed.code, replayed.json["outcome"]) == (0, "created")
    assert (twice.code, replayed.json["id"] in twice.err) == (1, True)


@pytest.mark.parametrize(
    ("words", "beside"),
    [
        ("queues set mail --create --concurrency 3 --rate 10/1m", "queues show mail"),
        ("queues pause mail --create --reason why", "queues show mail"),
        ("queues resume default", "queues show default"),
        ("queues reset default", "queues show default"),
    ],
)
def test_queues_are_ruled_from_afar(office: Office, words: str, beside: str) -> None:
    afar = office.afar(*words.split(), "--json", scopes=OPERATOR)

    assert (afar.code, afar.err) == (0, "")
    assert afar.json == office.beside(*beside.split(), "--json").json


def test_schedules_live_from_afar(office: Office) -> None:
    manifest = office.shell.directory / "a.yaml"
    manifest.write_text("{name: hourly, every: 1h, task: double, payload: {number: 1}}")
    words = ("schedules", "apply", "-f", str(manifest))

    def order(*words: str) -> Answer:
        return office.afar("schedules", *words, "--json", scopes=OPERATOR)

    dry = office.afar(*words, "--dry-run", "--json", scopes=OPERATOR)
    assert dry.json == office.beside(*words, "--dry-run", "--json").json
    assert (dry.code, office.afar(*words, scopes=OPERATOR).code) == (3, 0)
    shown = ("schedules", "list", "--json")
    paused = order("pause", "hourly", "--reason", "not now")
    assert paused.json in office.beside(*shown).json
    assert order("resume", "hourly").json in office.beside(*shown).json
    disabled = order("disable", "hourly", "--reason", "summer")
    assert disabled.json in office.beside(*shown).json
    assert order("enable", "hourly", "--reason", "autumn").json in office.beside(*shown).json
    assert order("trigger", "hourly", "--reason", "now").json["outcome"] == "created"
    filled = order("backfill", "hourly", "--from", "2024-01-01T00:00", "--to", "2024-01-01T05:00",
                   "--reason", "missed")  # fmt: skip
    assert (filled.json, filled.code) == ({"times": 6, "made": 6}, 0)
    assert order("delete", "hourly", "--reason", "gone").json["deleted"]["reason"] == "gone"


def test_webhooks_and_keys_live_from_afar(office: Office) -> None:
    admin = ("admin", "operate", "read")
    hook = ("http://192.0.2.1/", "--secret", "WEBHOOK_Y", "--event", "run.failed")

    made = office.afar("webhooks", "create", "mine", *hook, "--json", scopes=admin)
    assert made.json == told(office.beside("webhooks", "list", "--json"))[0]
    paused = office.afar(
        "webhooks", "pause", "mine", "--reason", "quiet", "--json", scopes=OPERATOR
    )
    assert paused.json["state"] == "paused"
    assert office.afar("webhooks", "delete", "mine", scopes=admin).code == 0
    key = office.afar("keys", "create", "ci", "--scope", "read", "--json", scopes=admin).json
    assert office.shell.perdure("runs", "list", PERDURE_URL=office.address,
                                PERDURE_API_KEY=key["key"]).code == 0  # fmt: skip
    assert office.afar("keys", "revoke", key["id"], "--reason", "left", scopes=admin).code == 0
    listed = office.afar("keys", "list", "--json", scopes=admin)
    beside = office.beside("keys", "list", "--json")
    assert [it["id"] for it in told(listed)] == [it["id"] for it in told(beside)]
    log = asyncio.run(_log(office.shell.url))
    assert ("pause_webhook", "mine", "quiet") in log
    assert ("revoke_key", key["id"], "left") in log


async def _log(url: str) -> list[tuple[str, str | None, str | None]]:
    async with App(url) as app:
        entries = [it.entry for it in await app.storage.audit_entries("default")]
        return [(it.action, it.target, it.reason) for it in entries]


def test_the_command_line_rotates_no_key_that_may_do_more(office: Office) -> None:
    wide = office.beside("keys", "create", "wide", "--scope", "operate", "--json").json
    narrow = office.beside("keys", "create", "narrow", "--scope", "admin", "--json").json

    refused = office.afar("keys", "rotate", wide["id"], scopes=("admin",))
    rotated = office.afar("keys", "rotate", narrow["id"], "--json", scopes=("admin",))
    beside = office.beside("keys", "rotate", wide["id"], "--by", "grace")
    listed = {it["id"]: it for it in told(office.beside("keys", "list", "--json"))}

    assert refused.code == 1
    assert "no key that may do more than itself: operate" in refused.err
    assert (rotated.code, beside.code) == (0, 0)
    assert listed[narrow["id"]]["rotated_by"]["id"].startswith("admin (")
    assert listed[wide["id"]]["rotated_by"]["id"] == "grace"
    assert "by grace" in office.beside("keys", "list").out


# What a key does not open

NEEDED = {
    ("runs", "list"): {"read"},
    ("trigger", "double", "--payload", '{"number": 1}'): {"trigger"},
    ("keys", "list"): {"admin"},
    ("audit", "--log"): {"admin"},
    ("audit", "--entries"): {"admin"},
    ("queues", "list"): {"read"},
    ("audit",): {"read"},
    ("top", "--once", "--json"): {"read"},
}


@pytest.mark.parametrize("words", NEEDED, ids=" ".join)
def test_each_command_takes_a_key_that_may(office: Office, words: tuple[str, ...]) -> None:
    answers = {scope: office.afar(*words, scopes=(scope.value,)) for scope in Scope}

    assert {scope for scope, it in answers.items() if it.code == 0} == NEEDED[words]
    for refused in (it for it in answers.values() if it.code):
        assert "scope" in refused.err
        assert "Traceback" not in refused.err


@pytest.mark.parametrize("scopes", [("read",), ("admin",), ("trigger", "work")])
def test_an_order_without_the_scopes_changes_nothing(
    office: Office, scopes: tuple[str, ...]
) -> None:
    before = office.beside("runs", "show", office.ids["WAITING"], "--json").json

    refused = office.afar("runs", "cancel", office.ids["WAITING"], scopes=scopes)

    assert (refused.code, "scope" in refused.err) == (1, True)
    assert office.beside("runs", "show", office.ids["WAITING"], "--json").json == before


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("migrate", "where the database is, with its own URL as --url"),
        ("prune", "where the database is, with its own URL as --url"),
        ("bench", "where the database is, with its own URL as --url"),
        ("tick", "where the database is, with its own URL as --url"),
        ("scheduler", "where the database is, with its own URL as --url"),
        ("server", "where the database is, with its own URL as --url"),
        ("runs cancel WAITING --by ada", "the key says who asks: leave out --by"),
        ("runs list --environment elsewhere", "this key is for 'default', not 'elsewhere'"),
    ],
)
def test_what_cannot_be_had_from_afar_is_said_and_where_to_go(
    office: Office, words: str, advice: str
) -> None:
    named = [office.ids.get(word, word) for word in words.split()]

    refused = office.afar(*named, scopes=OPERATOR)

    assert refused.code in (1, 2)
    assert advice in refused.err


def test_without_a_key_it_is_said_where_to_put_one(office: Office) -> None:
    refused = office.shell.perdure("runs", "list", PERDURE_URL=office.address)

    assert refused.code == 1
    assert "PERDURE_API_KEY" in refused.err


def test_a_key_of_another_environment_needs_no_flag(office: Office) -> None:
    async def prepare() -> str:
        async with shop(office.shell.url, "staging") as app:
            await app.tasks["double"].trigger(7)
            return (await Keys(app.runtime).create("staging", ["read"], by=ADA)).text

    key = asyncio.run(prepare())
    listed = office.shell.perdure(
        "runs", "list", "--json", PERDURE_URL=office.address, PERDURE_API_KEY=key
    )
    counted = office.shell.perdure(
        "audit", "--json", PERDURE_URL=office.address, PERDURE_API_KEY=key
    )

    assert [it["environment"] for it in listed.json["runs"]] == ["staging"]
    assert (counted.json["environment"], counted.json["runs"]) == ("staging", 1)


def test_what_would_lose_a_secret_is_not_exported_from_afar(office: Office) -> None:
    async def prepare() -> None:
        async with shop(office.shell.url) as app:
            secretive = {"number": 1, "password": SECRET}
            await app.schedules.create("secretive", every(86400), "double", payload=secretive)

    asyncio.run(prepare())
    refused = office.afar("schedules", "export", "secretive")

    assert refused.code == 1
    assert "export beside the database" in refused.err
    assert office.beside("schedules", "delete", "secretive").code == 0


def test_no_command_at_a_server_uses_the_storage_contract(office: Office) -> None:
    """The server logs the route of every request, also of the commands in the tests above."""
    completing = {"_PERDURE_COMPLETE": "bash_complete", "COMP_CWORD": "3"}
    office.afar("runs", "list")  # makes the key
    known = {"runs": office.ids["DONE"], "queues": "numbers", "schedules": "nightly",
             "webhooks": "told", "workers": ""}  # fmt: skip
    for group, name in known.items():
        kind = f"{group} {'drain' if group == 'workers' else 'show'}"
        names = office.shell.perdure(
            COMP_WORDS=f"perdure {kind} ", PERDURE_URL=office.address,
            PERDURE_API_KEY=office.keys["read",], **completing,
        )  # fmt: skip
        assert (names.code, names.err, name in names.out) == (0, "", True)
    assert office.afar("runs", "logs", office.ids["SAID"], "--follow").code == 0
    assert office.afar("top", "--once", "--json").code == 0

    log = (office.shell.directory / "server.log").read_text().splitlines()
    routes = {record["route"] for line in log if "route" in (record := json.loads(line))}
    assert {"/v1/runs/{run_id}", "/v1/overview", "/v1/identity", "/v1/workers"} <= routes
    assert [route for route in routes if "storage" in route] == []
