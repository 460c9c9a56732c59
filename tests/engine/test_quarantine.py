"""Runs that cannot be processed are set aside: claims, maintenance and audits continue."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest

import perdure.engine.maintenance.maintenance as maintenance_module
import perdure.storage.sql.write.claim as claiming_module
import raw
from builders import TASK
from fix_app import QUICK
from perdure import App
from perdure.core.decide import decide_attention, decide_claim
from perdure.core.run.events import Event, RunCreated
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Policy, Run
from perdure.engine.inspection.verify import Audit, StoredRuns
from perdure.engine.maintenance.maintenance import Maintenance
from perdure.engine.tasks.catalogue import TASK as TASK_RECORD
from perdure.engine.tasks.catalogue import TaskEntry, known_tasks
from perdure.engine.tasks.options import Executor
from perdure.storage.contract.runs import Record
from perdure.telemetry.record import LogLimit
from storage_kit import claim, claim_one, create, new_run, stored, wait_until
from web_kit import calling

SHORT = timedelta(milliseconds=50)
NO_GRACE = timedelta(0)


def _strip_zones(url: str, *runs: Run) -> None:
    """Remove the time zone from every instant of these runs, as an attacker once could."""
    ids = ", ".join(f"'{_key(url, run.id)}'" for run in runs)
    raw.execute(
        url,
        f"UPDATE perdure_history SET events = replace(events, 'Z\"', '\"') WHERE run_id IN ({ids})",
        f"UPDATE perdure_runs SET state = replace(state, 'Z\"', '\"') WHERE id IN ({ids})",
    )


def _key(url: str, run_id: str) -> str:
    return run_id if url.startswith("sqlite") else run_id.removeprefix("run_")


async def _many(app: App, count: int, **fields: Any) -> list[Run]:
    return await stored(app.storage, *(new_run(**fields) for _ in range(count)))


def _lines(caplog: pytest.LogCaptureFixture, run: Run) -> int:
    return sum(run.id in record.getMessage() for record in caplog.records)


async def test_zoneless_runs_stop_no_claim(opened: App, storage_url: str) -> None:
    _strip_zones(storage_url, *await _many(opened, 5))
    good = await create(opened.storage)

    claimed = [*(await claim(opened.storage)).runs, *(await claim(opened.storage)).runs]

    assert [run.id for run in claimed] == [good.id]


async def test_zoneless_runs_of_another_tenant_hide_no_dead_workers_lease(
    opened: App, storage_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    count = QUICK.maintenance_batch + 100
    bad = await _many(opened, count, environment="evil", ttl=SHORT)
    _strip_zones(storage_url, *bad)
    await create(opened.storage)
    lost = await claim_one(opened.storage, lease_ttl=2 * SHORT)
    assert lost.lease is not None
    await wait_until(opened.storage, lost.lease.expires_at)
    caplog.set_level(logging.WARNING)
    maintenance = Maintenance(opened, opened.metrics, grace=NO_GRACE)

    for _ in range(3):
        await maintenance.run_once()

    assert (await opened.storage.get([lost.id]))[lost.id].status is Status.QUEUED
    assert {_lines(caplog, run) for run in bad} == {1}


async def test_a_run_that_cannot_be_decided_about_is_set_aside(
    opened: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = await _many(opened, 2, ttl=SHORT)
    assert bad.expires_at is not None
    await wait_until(opened.storage, bad.expires_at + SHORT)

    def fail_for_one(run: Run, now: datetime, jitter: float = 0.0) -> list[Event]:
        if run.id == bad.id:
            raise TypeError("can't compare offset-naive and offset-aware datetimes")
        return list(decide_attention(run, now, jitter))

    monkeypatch.setattr(maintenance_module, "decide_attention", fail_for_one)
    maintenance = Maintenance(opened, opened.metrics, grace=NO_GRACE)

    for _ in range(3):
        await maintenance.run_once()

    assert (await opened.storage.get([good.id]))[good.id].status is Status.EXPIRED
    assert await opened.storage.attention(10) == []
    assert _lines(caplog, bad) == 1


async def test_a_claim_refuses_only_the_run_whose_decision_fails(
    opened: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = await _many(opened, 2)

    def fail_for_one(run: Run, *offer: Any) -> list[Event]:
        if run.id == bad.id:
            raise TypeError("can't compare offset-naive and offset-aware datetimes")
        return list(decide_claim(run, *offer))

    monkeypatch.setattr(claiming_module, "decide_claim", fail_for_one)
    claimed = [*(await claim(opened.storage)).runs, *(await claim(opened.storage)).runs]

    assert [run.id for run in claimed] == [good.id]


async def test_an_audit_reports_a_zoneless_run_and_continues(opened: App, storage_url: str) -> None:
    bad, good = await _many(opened, 2)
    _strip_zones(storage_url, bad)
    audit = Audit(StoredRuns(opened.storage, opened.environment))

    findings = [finding async for finding in audit.findings()]

    assert findings
    assert good.id not in {finding.run_id for finding in findings}


@pytest.mark.parametrize("action", ["cancel", "pause"])
async def test_an_order_about_a_zoneless_run_is_refused_with_a_reason(
    opened: App, storage_url: str, action: str
) -> None:
    [bad] = await _many(opened, 1)
    _strip_zones(storage_url, bad)
    async with calling(storage_url) as client:
        answer = await client.post(f"/v1/runs/{bad.id}/{action}", json={})

    assert answer.status_code == httpx.codes.CONFLICT
    assert answer.json()["type"] == "urn:perdure:problem:unreadable-history"


def test_an_event_without_a_zone_is_not_decoded() -> None:
    created = new_run(task=TASK).events[0]
    text = msgspec.json.encode(created).decode()

    with pytest.raises(msgspec.ValidationError, match="timezone"):
        msgspec.json.decode(text.replace('Z"', '"'), type=RunCreated)


def test_a_repeated_problem_is_logged_once_an_hour_and_memory_stays_bounded() -> None:
    elapsed = 0.0
    limit = LogLimit(lambda: elapsed, interval_s=3600, capacity=2)

    first, again, other = limit.allows("a"), limit.allows("a"), limit.allows("b")
    elapsed = 3600.0
    later = limit.allows("a")
    full = limit.allows("c"), limit.allows("d")
    elapsed = 7200.0

    assert (first, again, other, later) == (True, False, True, True)
    assert full == (True, False)
    assert limit.allows("d")


async def test_an_unreadable_catalogue_entry_hides_no_other_task(
    opened: App, storage_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    entries = [_task_record(name) for name in ("bad", "good")]
    await opened.storage.put(entries)
    raw.execute(storage_url, "UPDATE perdure_records SET body = '{}' WHERE name = 'bad'")

    found = [await known_tasks(opened.storage, "default") for _ in range(3)]

    assert [[entry.name for entry in entries] for entries in found] == [["good"]] * 3
    assert sum("task bad" in record.getMessage() for record in caplog.records) == 1


def _task_record(name: str) -> Record:
    entry = TaskEntry(name=name, queue="default", executor=Executor.ASYNC, policy=Policy())
    body = msgspec.json.encode(entry).decode()
    return Record(environment="default", kind=TASK_RECORD, name=name, version=1, body=body)
