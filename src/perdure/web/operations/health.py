"""Over HTTP: whose key it is, the overview, the doctor, and the audit of histories."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec.structs import replace

from perdure.engine.inspection.doctor import Examination, examine_storage
from perdure.engine.inspection.overview import Overview
from perdure.engine.inspection.verify import ExaminedPage, Finding, RunCount, StoredRuns, TallyPage
from perdure.engine.protocol.scope import Scope
from perdure.engine.runtime.runtime import Runtime
from perdure.web.models.requests import IntegrityQuery, TallyQuery
from perdure.web.models.views import Items
from perdure.web.operations.operation import Call


class IdentityView(msgspec.Struct, frozen=True, kw_only=True):
    """The key that the request carries. Without one, at the server's own machine, it has no id."""

    key_id: str | None
    name: str
    environment: str
    scopes: tuple[Scope, ...]
    now: datetime


async def get_identity(call: Call) -> IdentityView:
    caller = call.caller
    return IdentityView(
        key_id=caller.id or None,
        name=caller.name,
        environment=caller.environment,
        scopes=tuple(scope for scope in Scope if scope in caller.scopes),
        now=await call.app.storage.now(),
    )


async def get_overview(call: Call) -> Overview:
    overview = replace(await call.app.overview(), server_started_at=call.api.started_at)
    return call.at.view.shown(overview)


async def get_doctor(call: Call) -> Examination:
    """The doctor may look twice, some seconds apart, so requests at the same time share it."""
    found = await call.at.recent.get("doctor", lambda: _examine(call.app.runtime))
    return call.at.view.shown(found)


async def _examine(runtime: Runtime) -> Examination:
    return await examine_storage(runtime, runtime.storage)


async def examine_integrity(call: Call, query: IntegrityQuery) -> ExaminedPage:
    page = await _runs(call).examine(query.cursor, query.limit)
    return replace(page, findings=tuple(_redact(call, it) for it in page.findings))


async def tally_integrity(call: Call, query: TallyQuery) -> TallyPage:
    return await _runs(call).tally(query.cursor, query.limit)


async def count_integrity(call: Call) -> Items[RunCount]:
    counts = await _runs(call).counts()
    return Items([RunCount(*key, runs) for key, runs in sorted(counts.items())])


async def list_strays(call: Call) -> Items[Finding]:
    return Items([_redact(call, it) for it in await _runs(call).strays()])


def _runs(call: Call) -> StoredRuns:
    return StoredRuns(call.app.storage, call.app.environment)


def _redact(call: Call, finding: Finding) -> Finding:
    return replace(finding, problem=call.at.view.text(finding.problem))
