"""The audit log: written together, verified page by page."""

from __future__ import annotations

import asyncio

import pytest

from perdure import App
from perdure.core.audit_chain import AuditEntry
from perdure.core.run.run import Actor, ActorType
from perdure.engine.operators import audit_log
from perdure.engine.operators.audit_log import AuditLog, Verification
from perdure.errors import InvalidInput, StorageUnavailable
from raw import execute


def entry(app: App, target: str) -> AuditEntry:
    ada = Actor(ActorType.OPERATOR, "ada")
    return AuditEntry(at=app.time(), actor=ada, action="cancel", target=target, outcome="done")


async def flaws(app: App, anchor: str | None = None) -> tuple[list[str], str | None]:
    verified = Verification(app.storage, "default", anchor)
    return [flaw async for flaw in verified.flaws()], verified.totals.head


async def test_two_logs_at_once_make_one_whole_trail(
    opened: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "PAGE", 7)
    logs = [AuditLog(opened.runtime), AuditLog(opened.runtime)]

    await asyncio.gather(*(logs[n % 2].write(entry(opened, f"run {n}")) for n in range(40)))
    found, head = await flaws(opened)

    assert found == []
    assert head is not None
    assert head.startswith("40:")
    told = {sealed.entry.target for sealed in await logs[0].read(limit=1000)}
    assert told == {f"run {n}" for n in range(40)}


async def test_who_cannot_write_is_told_and_the_next_one_writes(
    opened: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AuditLog(opened.runtime)

    async def away(_: str) -> None:
        raise StorageUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(opened.storage, "audit_head", away)
        with pytest.raises(StorageUnavailable):
            await log.write(entry(opened, "lost"))
    await log.write(entry(opened, "kept"))

    assert [sealed.entry.target for sealed in await log.read()] == ["kept"]


TAMPERING = {
    "change": "UPDATE perdure_audit SET body = replace(body, 'run 3', 'run 9') WHERE position = 4",
    "delete": "DELETE FROM perdure_audit WHERE position = 4",
    "insert": "INSERT INTO perdure_audit SELECT environment, 7, body, hash FROM perdure_audit "
    "WHERE position = 3",
    "reorder": "UPDATE perdure_audit SET body = (SELECT body FROM perdure_audit AS other WHERE "
    "other.position = 5) WHERE position = 4",
}


@pytest.mark.parametrize("how", TAMPERING)
async def test_whatever_is_done_to_the_trail_is_found(opened: App, how: str) -> None:
    log = AuditLog(opened.runtime)
    for number in range(6):
        await log.write(entry(opened, f"run {number}"))
    execute(opened.url, TAMPERING[how])

    found, _ = await flaws(opened)

    assert len(found) == 1


async def test_a_cut_tail_is_found_by_a_head_that_was_kept(opened: App) -> None:
    log = AuditLog(opened.runtime)
    for number in range(3):
        await log.write(entry(opened, f"run {number}"))
    _, kept = await flaws(opened)
    assert (await flaws(opened, kept))[0] == []
    execute(opened.url, "DELETE FROM perdure_audit WHERE position = 3")

    assert (await flaws(opened))[0] == []
    assert (await flaws(opened, kept))[0] == [
        "the head that was kept, entry 3, is not there any more"
    ]


async def test_what_is_no_head_is_refused(opened: App) -> None:
    with pytest.raises(InvalidInput, match="must be the head of a trail"):
        Verification(opened.storage, "default", "17")
