"""The overview, the doctor, the integrity audit and the audit log through the API of a server."""

from __future__ import annotations

from collections import Counter

from perdure.core.audit_chain import SealedEntry
from perdure.core.explain.health import Code, find_clock_offset, unusable
from perdure.engine.inspection.doctor import Examination
from perdure.engine.inspection.verify import Counts, ExaminedPage, Finding, RunCount, TallyPage
from perdure.engine.operators.filters import MOST_ON_A_PAGE
from perdure.engine.rest.client import Items, RestClient
from perdure.errors import AccessRefused, SchemaMismatch, StorageError
from perdure.storage.contract.runs import Clock


async def examine_remotely(rest: RestClient, clock: Clock) -> Examination:
    """What the server's doctor finds, and whether this machine's clock agrees with the server's."""
    try:
        before = clock.now()
        now = await rest.now()
        ahead = before + (clock.now() - before) / 2 - now
        examination = await rest.get(Examination, "doctor")
    except SchemaMismatch as error:
        return Examination((unusable(error, Code.SCHEMA),))
    except AccessRefused:
        raise  # a missing scope says nothing about the database
    except StorageError as error:
        return Examination((unusable(error, Code.UNREACHABLE),))
    known = {finding.code for finding in examination.findings}
    offset = [it for it in find_clock_offset(ahead) if it.code not in known]
    findings = sorted((*offset, *examination.findings), key=lambda it: not it.is_problem)
    return Examination(tuple(findings), examination.vitals)


class RemoteIntegrity:
    """What the integrity audit reads; see `IntegritySource`. The server examines the runs."""

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest

    async def examine(self, cursor: str | None, limit: int) -> ExaminedPage:
        return await self._rest.get(ExaminedPage, "integrity", cursor=cursor, limit=limit)

    async def tally(self, cursor: str | None, limit: int) -> TallyPage:
        path = ("integrity", "tally")
        return await self._rest.get(TallyPage, *path, cursor=cursor, limit=limit)

    async def counts(self) -> Counts:
        page = await self._rest.get(Items[RunCount], "integrity", "counts")
        return Counter({(count.queue, count.status): count.runs for count in page.items})

    async def strays(self) -> list[Finding]:
        return (await self._rest.get(Items[Finding], "integrity", "strays")).items


class RemoteAuditLog:
    """What a verification of the audit log reads; see `AuditEntries`."""

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest

    async def audit_entries(
        self, environment: str, *, after: int = 0, limit: int = 100
    ) -> list[SealedEntry]:
        page = await self._rest.get(
            Items[SealedEntry], "audit:sealed", after=after, limit=min(limit, MOST_ON_A_PAGE)
        )
        return page.items
