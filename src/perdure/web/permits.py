"""Which scopes open which operation of a storage. Where a route does the same, it is the route's.

What an operation answers without `work` is what the routes would show: without secrets, and
without tokens. So nobody without `work` may write back what was read; operators' orders have
routes of their own, at which the server decides what follows from them.
"""

from __future__ import annotations

from perdure.engine.keys import Scope

Permit = tuple[frozenset[Scope], ...]
"""Alternatives: a key needs all scopes of one of them."""

_READ, _TRIGGER, _ADMIN, _WORK = (
    frozenset({scope}) for scope in (Scope.READ, Scope.TRIGGER, Scope.ADMIN, Scope.WORK)
)

ANYBODY: Permit = tuple(frozenset({scope}) for scope in Scope)
READERS: Permit = (_READ, _WORK)
WRITERS: Permit = (_WORK, _TRIGGER)
"""What each of them may write is judged one by one, in `projecting`."""
WORKERS: Permit = (_WORK,)
AUDITORS: Permit = (_ADMIN,)
KEEPERS: Permit = (_WORK | _ADMIN,)
"""Whoever looks after a storage, all of it, as if it were beside them."""

_BY_PERMIT: dict[Permit, tuple[str, ...]] = {
    ANYBODY: ("hello", "now"),
    READERS: (
        *("get", "find", "events", "ended", "logs", "progress", "leases", "hear"),
        *("count", "counts", "backlog", "throughput", "pace", "held", "latest_ended", "drift"),
        *("strays", "changes", "latest_change"),
        *("limits", "standing", "gates", "parking", "holders", "parked", "ahead", "records"),
        *("find_dead_letters", "dead_letter", "vitals", "neglect", "started_at"),
        *("get_schedules", "list_schedules", "unended", "occurrences", "spans"),
        *("webhooks", "deliveries", "pruned_to", "cursor_before"),
    ),
    WRITERS: ("commit", "was_stored", "notify"),
    WORKERS: ("claim", "renew", "write_logs", "put", "forget"),
    AUDITORS: ("audit_head", "audit_entries"),
    KEEPERS: (
        *("attention", "open_gates", "free_keys", "prune_keys", "reserve", "put_limits"),
        *("close_dead_letter", "due_schedules", "put_schedules"),
        *("put_webhook", "delete_webhook"),
    ),
}

PERMITS: dict[str, Permit] = {
    operation: permit for permit, operations in _BY_PERMIT.items() for operation in operations
}

ORDERS = frozenset(
    {
        "close_dead_letter",
        "delete_webhook",
        "free_keys",
        "put_limits",
        "put_schedules",
        "put_webhook",
        "reserve",
    }
)
"""What is written into the audit log, also if it was refused."""


def opens(permit: Permit, scopes: frozenset[Scope]) -> bool:
    return any(needed <= scopes for needed in permit)


def in_words(permit: Permit) -> str:
    """`work`, or `read` or `work`, or `work` and `admin`."""
    alternatives = [[scope for scope in reversed(Scope) if scope in it] for it in permit]
    return " or ".join(" and ".join(needed) for needed in alternatives)
