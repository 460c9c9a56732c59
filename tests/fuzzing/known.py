"""What exists at the server, learnt from its answers, so that calls pass the first checks."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

import msgspec

from perdure.web.operations.operation import Route

MAX_NAMES = 200
"""Names of one kind that are remembered, the latest ones."""
MAX_READ_BYTES = 200_000
"""Answers that are larger are not searched for names."""

_RUN_ID = re.compile(r"run_[0-9a-f]{32}")
_FIELDS = ("batch_id", "fingerprint")
_GROUPS = {"schedules": "schedule", "webhooks": "webhook", "workers": "worker"}
"""The kind of the names in answers about these."""


class Held(msgspec.Struct, frozen=True):
    """A lease that a claim's answer showed."""

    run_id: str
    token: str
    attempt: int
    worker_id: str


class Known:
    """Names by kind. A kind is the name of a parameter in a path, or of a field."""

    def __init__(self, names: dict[str, Iterable[str]]) -> None:
        self._names: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=MAX_NAMES))
        self._leases: dict[str, deque[Held]] = defaultdict(lambda: deque(maxlen=MAX_NAMES))
        self.kept_keys: set[str] = set()
        """Ids of keys that no call may revoke or rotate."""
        for kind, given in names.items():
            self._names[kind].extend(given)

    def pick(self, random: Random, kind: str) -> str | None:
        """A name of this kind; None if there is none yet."""
        there = self._names.get(kind)
        return random.choice(there) if there else None

    def lease(self, random: Random, key: str) -> Held | None:
        """A lease that this key has, or had."""
        there = self._leases.get(key)
        return random.choice(there) if there else None

    def learn(self, route: Route, key: str, status: int, body: bytes) -> None:
        """Remember the names in an answer."""
        if status >= 300 or len(body) > MAX_READ_BYTES:
            return
        run_ids = _RUN_ID.findall(body.decode("utf-8", "replace"))[:20]
        self._add("letter" if route.name == "list_dead_letters" else "run_id", run_ids)
        try:
            answer = msgspec.json.decode(body)
        except msgspec.DecodeError:
            return
        if route.name == "worker_claim":
            self._learn_leases(key, answer)
        elif route.group == "keys":
            self._learn_keys(answer)
        for item in _objects(answer):
            self._learn_fields(route, item)
            self._add(f"cursor of {route.name}", [item.get("cursor")])

    def _learn_leases(self, key: str, answer: dict[str, Any]) -> None:
        for run in answer.get("runs", ()):
            lease = run["lease"]
            held = Held(run["id"], lease["token"], lease.get("attempt") or 1, lease["worker_id"])
            self._leases[key].append(held)

    def _learn_keys(self, answer: dict[str, Any]) -> None:
        for item in _objects(answer):
            if item.get("id", "") not in self.kept_keys:
                self._add("key_id", [item.get("id")])
                self._add("key", [item.get("key")])

    def _learn_fields(self, route: Route, item: dict[str, Any]) -> None:
        for name in _FIELDS:
            self._add(name, [item.get(name)])
        kind = _GROUPS.get(route.group)
        if kind is not None:
            self._add(kind, [item.get("name"), item.get("id")])

    def _add(self, kind: str, names: Iterable[Any]) -> None:
        known = self._names[kind]
        known.extend(name for name in names if isinstance(name, str) and name and name not in known)


def _objects(answer: Any) -> Iterator[dict[str, Any]]:
    """The answer, if it is an object, and those of its first items that are objects."""
    if not isinstance(answer, dict):
        return
    yield answer
    items = answer.get("items")
    if isinstance(items, list):
        yield from (item for item in items[:20] if isinstance(item, dict))
