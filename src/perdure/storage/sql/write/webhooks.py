"""The storage half of webhooks: compare-and-set, the latest posts, places in the change feed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

from msgspec.structs import asdict

from perdure.storage.contract.webhooks import StoredDelivery, StoredWebhook
from perdure.storage.sql import rows
from perdure.storage.sql.rows import Dialect
from perdure.storage.sql.statements import Many, Operation, Rows, Step, last_trip, trip
from perdure.storage.sql.write.webhook_checks import check_deliveries, check_webhook

T = TypeVar("T")
Make = Callable[[], Operation[T]]

LAST = 2**62
"""Beyond every number."""


class SqlWebhooks:
    """See `webhook_protocol.WebhookStorage` for what each method promises."""

    dialect: Dialect

    @abstractmethod
    async def _write(self, make: Make[T]) -> T: ...

    @abstractmethod
    async def _read(self, make: Make[T]) -> T: ...

    async def put_webhook(
        self, webhook: StoredWebhook, posted: Sequence[StoredDelivery] = (), *, keep: int = 100
    ) -> bool:
        check_webhook(webhook, self.dialect)
        check_deliveries(posted, keep)
        if webhook.version == 1:
            return await self._write(lambda: insert_webhook(webhook))
        return await self._write(lambda: update_webhook(webhook, posted, keep))

    async def webhooks(self, environment: str | None) -> list[StoredWebhook]:
        return await self._read(lambda: read_webhooks(environment))

    async def delete_webhook(self, webhook_id: str) -> bool:
        return await self._write(lambda: delete_webhook(webhook_id))

    async def deliveries(
        self, webhook_id: str, *, limit: int, before: int | None = None
    ) -> list[StoredDelivery]:
        return await self._read(lambda: read_deliveries(webhook_id, limit, before))

    async def pruned_to(self) -> str | None:
        return await self._read(read_pruned)

    async def cursor_before(self, instant: datetime) -> str:
        return await self._read(lambda: find_cursor(instant, self.dialect))


def insert_webhook(webhook: StoredWebhook) -> Operation[bool]:
    """What stands in the way may be an earlier try of ours, whose answer was lost."""
    place = {"environment": webhook.environment, "name": webhook.name}
    _, found = yield last_trip(
        Step("insert_webhook", asdict(webhook)), Step("read_webhook_owner", place)
    )
    return [tuple(row) for row in found] == [(webhook.id, webhook.version)]


def update_webhook(
    webhook: StoredWebhook, posted: Sequence[StoredDelivery], keep: int
) -> Operation[bool]:
    changes = {"id": webhook.id, "version": webhook.version, "body": webhook.body}
    [updated] = yield trip(Step("update_webhook", changes))
    if not updated or not posted:
        yield last_trip()
        return bool(updated)
    mine = [{"webhook_id": webhook.id, **asdict(delivery)} for delivery in posted]
    old = {"webhook_id": webhook.id, "number": posted[-1].number - keep}
    yield last_trip(Many("insert_deliveries", mine), Step("trim_deliveries", old))
    return True


def read_webhooks(environment: str | None) -> Operation[list[StoredWebhook]]:
    [found] = yield last_trip(Step("read_webhooks", {"environment": environment}))
    names = StoredWebhook.__struct_fields__
    return [StoredWebhook(**dict(zip(names, row, strict=True))) for row in found]


def delete_webhook(webhook_id: str) -> Operation[bool]:
    gone = {"webhook_id": webhook_id, "number": LAST}
    deleted, _ = yield last_trip(
        Step("delete_webhook", {"id": webhook_id}), Step("trim_deliveries", gone)
    )
    return bool(deleted)


def read_deliveries(
    webhook_id: str, limit: int, before: int | None
) -> Operation[list[StoredDelivery]]:
    wanted = {"webhook_id": webhook_id, "before": before or LAST, "limit": limit}
    [found] = yield last_trip(Step("read_deliveries", wanted))
    return [StoredDelivery(*row) for row in found]


def read_pruned() -> Operation[str | None]:
    [found] = yield last_trip(Step("read_pruned"))
    return str(found[0][0]) if found else None


def find_cursor(instant: datetime, dialect: Dialect) -> Operation[str]:
    """By halving: the feed has no index by time, but it has come about in its order."""
    [[[latest]]] = yield trip(Step("latest_change"))
    first, last = 0, int(latest.partition(".")[0])
    while first < last:
        middle = (first + last) // 2
        [found] = yield trip(Step("read_changes", {"cursor": _at(middle, dialect), "limit": 1}))
        if found and _occurred(found) < instant:
            first = middle + 1
        else:
            last = middle
    yield last_trip()
    return _at(first, dialect)


def _at(place: int, dialect: Dialect) -> str:
    """The first cursor begins with a zero: the place before all changes."""
    return f"{place}{dialect.first_cursor[1:]}"


def _occurred(found: Rows) -> datetime:
    [(_, _, first, events)] = found
    return rows.recorded([(first, events)])[-1].occurred_at
