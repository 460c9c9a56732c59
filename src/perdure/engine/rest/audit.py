"""`app.audit_log` of an app at a server's address."""

from __future__ import annotations

from perdure.engine.operators.audit_pages import AuditFilter, AuditPage, AuditPages, AuditView
from perdure.engine.operators.filters import page_limit
from perdure.engine.rest.client import Items, RestClient
from perdure.engine.runtime.keywords import explain_methods


@explain_methods
class RemoteAuditPages(AuditPages):
    def __init__(self, rest: RestClient) -> None:
        self._rest = rest

    async def page(
        self,
        *,
        action: str | None = None,
        actor: str | None = None,
        target: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AuditPage:
        AuditFilter(action=action, actor=actor, target=target)
        query = {"action": action, "actor": actor, "target": target, "cursor": cursor}
        found = await self._rest.get(Items[AuditView], "audit", limit=page_limit(limit), **query)
        return AuditPage(found.items, found.cursor)
