"""What a storage can be asked over HTTP: the contract's own methods, one operation each.

Names, arguments and answers are read from the protocol, so that neither side can say anything
else. Who may ask for what is the server's business.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
from typing import Any, Protocol, get_args, get_origin, get_type_hints

import msgspec

from perdure.core.doctor import Neglect, Vitals
from perdure.core.schedule.definition import DefinedBy, Schedule, SkippedSpan
from perdure.core.schedule.step import ScheduleStep
from perdure.storage.oversight import Oversight
from perdure.storage.protocol import Outcome, RunFilter, Storage
from perdure.storage.questions import Questions
from perdure.storage.schedule_protocol import ScheduleStorage
from perdure.storage.webhook_protocol import WebhookStorage
from perdure.storage.wire import TRAVELS

NOT_OVER_HTTP = {
    "migrate": "the schema is brought up to date beside the database: `perdure migrate`",
    "check_schema": "the server has the database's schema; `hello` checks that both understand",
    "transactions": "a worker without a connection cannot hold a transaction open in the database",
    "hint_transport": "hints have operations of their own: `hear` and `notify`",
    "close": "it closes what this process holds",
    "append_audit": "whoever could write the audit log could forge it",
    "outbox": "pushing is for those who hold all environments' runs: the server",
    "delivered": "pushing is for those who hold all environments' runs: the server",
    "prune": "it forgets runs of every environment; the server's maintenance prunes",
    "prunable": "it counts runs of every environment; the server's maintenance prunes",
    "forget_runs": "it forgets without leaving word; measure beside the database",
    "prune_spans": "it forgets spans of every environment; the server's maintenance prunes",
}
"""Methods of the contract that have no operation, and why."""

_STAYS = {"telling": "hints have operations of their own: `hear` and `notify`"}
"""Arguments that do not travel, and why."""

_NAMES = {
    "Neglect": Neglect,
    "Vitals": Vitals,
    "DefinedBy": DefinedBy,
    "Schedule": Schedule,
    "SkippedSpan": SkippedSpan,
    "ScheduleStep": ScheduleStep,
    "Outcome": Outcome,
    "RunFilter": RunFilter,
}
"""What the protocol only names while types are checked."""


class Operation(msgspec.Struct, frozen=True):
    """One method of the contract. `repeats`: it may be asked again if an answer was lost."""

    name: str
    arguments: type[msgspec.Struct]
    answer: Any
    repeats: bool = True


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a key belongs to, and what it may do."""

    protocol: int
    environment: str
    scopes: tuple[str, ...]


class Hints(msgspec.Struct, frozen=True):
    """What may have changed since the last time; none: anything."""

    topics: frozenset[str] | None


class Additional(Protocol):
    """Operations besides the contract's."""

    async def hello(self) -> Hello: ...

    async def hear(self, session: str, wait: float) -> Hints:
        """Wait so many seconds for hints. What comes between two calls of a session is kept."""
        ...

    async def notify(self, topics: frozenset[str]) -> None: ...


def _travelling(hint: Any) -> Any:
    if hint in TRAVELS:
        return TRAVELS[hint]
    origin, arguments = get_origin(hint), tuple(map(_travelling, get_args(hint)))
    if origin is None or not arguments:
        return hint
    if origin is types.UnionType:
        return functools.reduce(operator.or_, arguments)
    return origin[arguments]


_ONLY_ONCE = frozenset({"claim", "reserve"})
"""Their second answer would not tell what the first one handed over."""


def _operation(method: Any) -> Operation:
    hints = get_type_hints(method, localns=_NAMES)
    answer = _travelling(hints.pop("return"))
    fields: list[Any] = []
    for name, parameter in inspect.signature(method).parameters.items():
        if name in hints and name not in _STAYS:
            field = (name, _travelling(hints[name]))
            has_default = parameter.default is not parameter.empty
            fields.append((*field, parameter.default) if has_default else field)
    arguments = msgspec.defstruct(
        f"{method.__name__}_arguments", fields, kw_only=True, forbid_unknown_fields=True
    )
    return Operation(method.__name__, arguments, answer, method.__name__ not in _ONLY_ONCE)


def _methods() -> dict[str, Any]:
    kinds = (Additional, Questions, ScheduleStorage, WebhookStorage, Oversight, Storage)
    return {
        name: method
        for kind in kinds
        for name, method in vars(kind).items()
        if inspect.isfunction(method) and not name.startswith("_") and name not in NOT_OVER_HTTP
    }


OPERATIONS: dict[str, Operation] = {name: _operation(method) for name, method in _methods().items()}
