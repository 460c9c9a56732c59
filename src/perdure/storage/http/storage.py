"""The HTTP adapter: every method of the contract asked of a server, which has the database."""

from __future__ import annotations

import functools
import inspect
import secrets
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec.structs import replace

from perdure.core.commit import Commit
from perdure.core.lifecycle import Status
from perdure.core.run import Run
from perdure.errors import StorageRefused
from perdure.storage.http.client import RETRIES, TIMEOUT, open_client
from perdure.storage.http.hints import HttpHints
from perdure.storage.http.no_transactions import NoTransactions
from perdure.storage.http.tokens import Tokens
from perdure.storage.operations import NOT_OVER_HTTP, OPERATIONS, Hello
from perdure.storage.protocol import (
    Claimed,
    ClaimRequest,
    Clock,
    Outcome,
    Renewal,
    Renewed,
    Storage,
)
from perdure.storage.topics import HintTransport
from perdure.storage.transacting import Transactions
from perdure.storage.wire import PROTOCOL, in_parts

P = ParamSpec("P")
T = TypeVar("T")

MOST_BYTES = 4 * 1024 * 1024
"""Of commits in one request: half of what a server takes."""


def _asked(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """The same method, over HTTP."""
    operation, signature = OPERATIONS[method.__name__], inspect.signature(method)

    @functools.wraps(method)
    async def ask(storage: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        given = signature.bind(storage, *arguments, **options).arguments
        del given["self"]
        answer: T = await storage.client.ask(operation, given)
        return answer

    return ask


def _refused(name: str) -> StorageRefused:
    return StorageRefused(f"not over HTTP: {NOT_OVER_HTTP[name]}")


class HttpStorage:
    """Runs at the other end of a URL. What it can be asked is a matter of the scopes of `api_key`,
    by default `PERDURE_API_KEY`. `hints=False` does without wake-ups; `because` is the reason of
    orders that have none of their own."""

    loop_bound = True
    local_clock: Clock | None = None

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        api_key: str | None = None,
        max_connections: int = 16,
        retries: int = RETRIES,
        timeout: timedelta = TIMEOUT,
        hints: bool = True,
        because: str | None = None,
    ) -> None:
        self.client = open_client(
            url,
            clock,
            api_key=api_key,
            max_connections=max_connections,
            retries=retries,
            timeout=timeout,
            because=because,
        )
        self._tokens = Tokens()
        self._hints = HttpHints(self.client, secrets.token_hex(16)) if hints else None

    # Opening and closing

    async def check_schema(self) -> None:
        """Raises AccessRefused without a good key, StorageRefused for a server of another
        version."""
        hello = await self.hello()
        if hello.protocol != PROTOCOL:
            problem = f"the server speaks protocol {hello.protocol}, this code {PROTOCOL}"
            raise StorageRefused(f"{problem}; bring both to the same version of Perdure")

    async def hello(self) -> Hello:
        """Whose the key is."""
        answer: Hello = await self.client.ask(OPERATIONS["hello"], {})
        return answer

    async def migrate(self) -> int:
        raise _refused("migrate")

    def transactions(self) -> Transactions:
        return NoTransactions()

    def hint_transport(self) -> HintTransport | None:
        return self._hints

    async def close(self) -> None:
        self.client.close()

    # Owning runs

    async def commit(
        self, batch: Sequence[Commit], *, telling: frozenset[str] = frozenset()
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for part in in_parts(batch, MOST_BYTES) if batch else ():
            outcomes += await self._commit(part)
        return outcomes

    async def _commit(self, part: Sequence[Commit]) -> list[Outcome]:
        """What no server would take, because it is too large, is refused by itself."""
        try:
            answer: list[Outcome] = await self.client.ask(OPERATIONS["commit"], {"batch": part})
        except StorageRefused as refusal:
            if len(part) > 1:
                return [outcome for commit in part for outcome in await self._commit([commit])]
            return [refusal]
        return answer

    async def claim(self, request: ClaimRequest, outcomes: Sequence[Commit] = ()) -> Claimed:
        *first, last = in_parts(outcomes, MOST_BYTES)
        settled = [outcome for part in first for outcome in await self._commit(part)]
        asked = {"request": request, "outcomes": last}
        try:
            claimed: Claimed = await self.client.ask(OPERATIONS["claim"], asked)
        except BaseException:
            self._tokens.learn(request.tokens)  # some of them may have become leases
            raise
        self._tokens.learn(run.lease.token for run in claimed.runs if run.lease is not None)
        return replace(claimed, outcomes=(*settled, *claimed.outcomes))

    async def renew(self, renewals: Sequence[Renewal]) -> Renewed:
        self._tokens.learn(renewal.token for renewal in renewals)
        answer: Renewed = await self.client.ask(OPERATIONS["renew"], {"renewals": renewals})
        return answer

    async def leases(self, worker_id: str) -> list[Run]:
        found = await self.client.ask(OPERATIONS["leases"], {"worker_id": worker_id})
        runs: list[Run] = self._tokens.unmask(found)
        return runs

    async def get(self, run_ids: Sequence[str]) -> dict[str, Run]:
        found = await self.client.ask(OPERATIONS["get"], {"run_ids": run_ids})
        runs: dict[str, Run] = self._tokens.unmask(found)
        return runs

    reserve = _asked(Storage.reserve)
    was_stored = _asked(Storage.was_stored)
    write_logs = _asked(Storage.write_logs)
    attention = _asked(Storage.attention)
    open_gates = _asked(Storage.open_gates)
    free_keys = _asked(Storage.free_keys)
    prune_keys = _asked(Storage.prune_keys)

    # Reading

    ended = _asked(Storage.ended)
    find = _asked(Storage.find)
    events = _asked(Storage.events)
    counts = _asked(Storage.counts)
    count = _asked(Storage.count)
    backlog = _asked(Storage.backlog)
    throughput = _asked(Storage.throughput)
    pace = _asked(Storage.pace)
    held = _asked(Storage.held)
    latest_ended = _asked(Storage.latest_ended)
    logs = _asked(Storage.logs)
    progress = _asked(Storage.progress)
    changes = _asked(Storage.changes)
    latest_change = _asked(Storage.latest_change)
    started_at = _asked(Storage.started_at)
    now = _asked(Storage.now)
    vitals = _asked(Storage.vitals)
    neglect = _asked(Storage.neglect)
    drift = _asked(Storage.drift)
    strays = _asked(Storage.strays)

    # Limits and gates

    put_limits = _asked(Storage.put_limits)
    limits = _asked(Storage.limits)
    standing = _asked(Storage.standing)
    gates = _asked(Storage.gates)
    parking = _asked(Storage.parking)
    holders = _asked(Storage.holders)
    parked = _asked(Storage.parked)
    ahead = _asked(Storage.ahead)

    # Records, dead letters, the audit trail

    put = _asked(Storage.put)
    records = _asked(Storage.records)
    forget = _asked(Storage.forget)
    find_dead_letters = _asked(Storage.find_dead_letters)
    dead_letter = _asked(Storage.dead_letter)
    close_dead_letter = _asked(Storage.close_dead_letter)
    audit_head = _asked(Storage.audit_head)
    audit_entries = _asked(Storage.audit_entries)

    # Schedules

    put_schedules = _asked(Storage.put_schedules)
    due_schedules = _asked(Storage.due_schedules)
    get_schedules = _asked(Storage.get_schedules)
    list_schedules = _asked(Storage.list_schedules)
    unended = _asked(Storage.unended)
    occurrences = _asked(Storage.occurrences)
    spans = _asked(Storage.spans)

    # Webhooks

    put_webhook = _asked(Storage.put_webhook)
    webhooks = _asked(Storage.webhooks)
    delete_webhook = _asked(Storage.delete_webhook)
    deliveries = _asked(Storage.deliveries)
    pruned_to = _asked(Storage.pruned_to)
    cursor_before = _asked(Storage.cursor_before)

    # What only the server does

    async def append_audit(self, entries: Sequence[Any]) -> bool:
        raise _refused("append_audit")

    async def outbox(self, *, limit: int) -> list[Any]:
        raise _refused("outbox")

    async def delivered(self, positions: Sequence[int]) -> None:
        raise _refused("delivered")

    async def prune(self, status: Status, before: datetime, limit: int) -> int:
        raise _refused("prune")

    async def prunable(self, status: Status, before: datetime, *, most: int) -> int:
        raise _refused("prunable")

    async def forget_runs(self, run_ids: Sequence[str]) -> int:
        raise _refused("forget_runs")

    async def prune_spans(self, before: datetime, limit: int) -> int:
        raise _refused("prune_spans")
