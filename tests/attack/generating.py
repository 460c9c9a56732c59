"""Generates values of a message's type from its type information, with a seeded generator."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import msgspec
from msgspec import inspect

from attack.knowledge import Knowledge

MAX_ITEMS = 3
MAX_DEPTH = 8
OPTIONAL_FIELDS = 0.3
"""The share of fields with a default that a request gives."""
KNOWN_LEASES = 0.7
"""The share of leases in requests that were once held; the others are guessed."""
_KEPT_NAMES = {"id": "worker_id", "name": "task", "trigger_task": "task"}


class Generator:
    """Builds JSON values. Fields whose names the attacker knows a value for get it."""

    def __init__(self, rng: Random, knowledge: Knowledge) -> None:
        self._rng = rng
        self._knowledge = knowledge

    def value_of(self, type_: Any) -> Any:
        """Return a value that the type accepts, as far as its information tells."""
        return self._make(inspect.type_info(type_), "", 0)

    def _make(self, info: inspect.Type, field: str, depth: int) -> Any:
        if isinstance(info, inspect.Metadata):
            if (info.extra_json_schema or {}).get("type") == "object":
                return {"label": self._word(), "number": self._rng.randrange(9)}
            return self._make(info.type, field, depth)
        if isinstance(info, inspect.UnionType):
            return self._make(self._rng.choice(self._fitting(info, depth)), field, depth)
        known = self._knowledge.value(_KEPT_NAMES.get(field, field))
        if known is not None and not isinstance(info, inspect.CollectionType | inspect.StructType):
            return known
        if isinstance(info, inspect.StructType):
            return self._struct(info, depth)
        if isinstance(info, inspect.CollectionType | inspect.DictType):
            return self._several(info, field, depth)
        return self._plain(info)

    def _fitting(self, info: inspect.UnionType, depth: int) -> list[inspect.Type]:
        """Deep in a message, the members that end it."""
        ends: list[inspect.Type] = [it for it in info.types if isinstance(it, inspect.NoneType)]
        return ends if ends and depth > MAX_DEPTH else list(info.types)

    def _struct(self, info: inspect.StructType, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        if info.tag_field is not None:
            made[info.tag_field] = info.tag
        for field in info.fields:
            if field.required or self._rng.random() < OPTIONAL_FIELDS:
                made[field.encode_name] = self._make(field.type, field.encode_name, depth + 1)
        if {"run_id", "token"} <= made.keys() and self._rng.random() < KNOWN_LEASES:
            self._put_lease(made)
        return made

    def _put_lease(self, made: dict[str, Any]) -> None:
        lease = self._knowledge.lease()
        if lease is not None:
            made |= {"run_id": lease[0], "token": lease[1]}
            made |= {"attempt": lease[2]} if "attempt" in made else {}

    def _several(self, info: Any, field: str, depth: int) -> Any:
        if isinstance(info, inspect.DictType):
            return {self._word(): self._make(info.value_type, "", depth + 1)}
        if isinstance(info, inspect.TupleType):
            return [self._make(it, field, depth + 1) for it in info.item_types]
        most = min(MAX_ITEMS, info.max_length if info.max_length is not None else MAX_ITEMS)
        count = self._rng.randint(info.min_length or 0, max(most, info.min_length or 0))
        return [self._make(info.item_type, field, depth + 1) for _ in range(count)]

    def _plain(self, info: inspect.Type) -> Any:
        rng = self._rng
        match info:
            case inspect.StrType():
                return self._text(info)
            case inspect.BoolType():
                return rng.random() < 0.5
            case inspect.IntType() | inspect.FloatType():
                return self._number(info)
            case inspect.DateTimeType():
                return self._instant()
            case inspect.TimeDeltaType():
                return rng.choice(["PT0S", "PT1S", "P1D", "PT0.000001S", "P3650D"])
            case inspect.EnumType():
                return msgspec.to_builtins(rng.choice(list(info.cls)))
            case inspect.LiteralType():
                return rng.choice(info.values)
            case inspect.NoneType():
                return None
            case _:
                return rng.choice([None, 1, "text", {"a": 1}, [1, 2]])

    def _text(self, info: inspect.StrType) -> str:
        if info.pattern and "32" in info.pattern:
            return f"{'run_' if 'run_' in info.pattern else ''}{self._rng.getrandbits(128):032x}"
        return self._word()

    def _number(self, info: inspect.IntType | inspect.FloatType) -> float:
        low = info.ge if info.ge is not None else (info.gt if info.gt is not None else -5)
        high = info.le if info.le is not None else (info.lt if info.lt is not None else low + 100)
        picked = self._rng.choice([low, high, min(low + 1, high), min(low + 7, high)])
        return int(picked) if isinstance(info, inspect.IntType) else float(picked)

    def _instant(self) -> str:
        away = self._rng.choice([-86400, -1, 0, 1, 60, 86400, 10**8])
        at = datetime.now(UTC) + timedelta(seconds=away)
        return at.isoformat().replace("+00:00", "Z")

    def _word(self) -> str:
        return self._rng.choice(["a", "evil", "label", "ümlaut", "x-1", "0 * * * *", "a b", "1h"])
