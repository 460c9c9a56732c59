"""Builds requests of the worker protocol and of the other routes, from valid to hostile."""

from __future__ import annotations

import json
from random import Random
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from attack.generating import Generator
from attack.hostile import WRONG_BODIES, hostile_values, mutate
from attack.knowledge import ENDPOINT, RESERVED, TASKS, Knowledge
from perdure.storage.contract.wire_errors import PROTOCOL, PROTOCOL_HEADER
from perdure.web.operations.operation import Route
from worker_kit import REQUESTS, a_task

VALID = 0.45
MUTATED_ONCE = 0.85
"""Up to this share of requests one value is mutated; beyond it several, or the body is no JSON."""
MAX_WAIT_S = 0.05
"""The longest wait for hints: an attack counts requests, and does not rest."""
MAX_VERSION = 1000
"""No task that an attacker declares has a higher version."""
CANCEL_ALL = {
    "action": "cancel", "words": {}, "before": "2100-01-01T00:00:00Z",
    "by": {"type": "operator", "id": "ada"},
}  # fmt: skip
"""An operator's order, under a forged name."""
STREAM = "stream_changes"


class AttackRequest(msgspec.Struct, frozen=True):
    """One request without its key."""

    operation: str
    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None

    def __str__(self) -> str:
        body = b"" if self.body is None else self.body
        return f"{self.method} {self.path} {self.headers} {body[:1500]!r}"


class Builder:
    """Builds requests with one seeded generator."""

    def __init__(self, rng: Random, knowledge: Knowledge) -> None:
        self._rng = rng
        self._knowledge = knowledge
        self._generator = Generator(rng, knowledge)

    def registration(self) -> list[AttackRequest]:
        """Requests that make a later claim possible: a worker, tasks, and runs to claim. Workers
        of the victim's ids are registered, too."""
        ids = (self._knowledge.worker_id, *self._knowledge.victim.worker_ids)
        workers = [REQUESTS["heartbeat"] | {"id": it, "tasks": list(TASKS)} for it in ids]
        tasks = [msgspec.to_builtins(a_task(name)) for name in TASKS]
        items = [self._item() for _ in range(10)]
        bodies: list[tuple[str, Any]] = [
            *(("heartbeat", worker) for worker in workers),
            ("declare", {"tasks": tasks}),
            ("trigger", {"items": items}),
        ]
        return [self._worker_request(name, body, str(PROTOCOL)) for name, body in bodies]

    def request(self, route: Route) -> AttackRequest:
        """Return a request to this route."""
        query = None if route.query is None else self._generator.value_of(route.query)
        body = None if route.body is None else self._body(route)
        query, content = self._spoil(query), self._spoil_body(body)
        return AttackRequest(
            operation=route.name.removeprefix("worker_"),
            method=route.method,
            path=self._path(route) + ("?" + _query_text(query) if query else ""),
            headers=self._headers(route),
            body=content,
        )

    def _body(self, route: Route) -> Any:
        name = route.name.removeprefix("worker_")
        usual = self._usual(name)
        if usual is not None and self._rng.random() < 0.5:
            return usual
        if route.speaks_protocol and self._rng.random() < 0.2:
            return REQUESTS[name]
        return self._generator.value_of(route.body)

    def _usual(self, name: str) -> Any:
        """Return a body that is accepted, where generated ones rarely are."""
        task, schedule = self._rng.choice(TASKS), {"every": self._rng.choice([1e-3, 1, 60])}
        again = {"misfire": "catch_up", "catch_up_limit": 1000, "catch_up_age": 315_360_000.0}
        bodies: dict[str, Any] = {
            "trigger": {"items": [self._item()]},
            "claim": self._claim(),
            "return_claims": self._return_claims(),
            "declare": {"tasks": [self._entry()]},
            "trigger_run": {"task": task, "payload": {"n": 1}},
            "trigger_batch": {"items": [{"task": task, "payload": {"n": 1}}] * 20},
            "create_schedule": {"name": "evil_schedule", "task": task, "cadence": schedule},
            "put_schedule": {"task": task, "cadence": schedule} | again,
            "create_webhook": {
                "name": "evil_hook",
                "url": ENDPOINT,
                "signing_secrets": ["WEBHOOK_TEST"],
            },
            "create_key": {"name": "evil", "scopes": ["read"]},
        }
        return bodies.get(name)

    def _entry(self) -> dict[str, Any]:
        """Return a function of the attacker's own, or one that takes over another task's name."""
        name = self._rng.choice([*TASKS, *self._knowledge.victim.tasks, *RESERVED])
        alias = self._knowledge.value("aliases")
        policy = self._rng.choice([{"lease_ttl": "P3650D"}, {"record_heartbeats": True}])
        entry: dict[str, Any] = {"name": name, "queue": "default", "executor": "async"}
        entry |= {"policy": policy, "version": self._rng.randrange(MAX_VERSION)}
        return entry | ({"aliases": [alias]} if self._rng.random() < 0.3 else {})

    def _item(self) -> dict[str, Any]:
        """Return a run to trigger: of an own task, with a forged lineage, or of a reserved task."""
        request_id, luck = self._knowledge.value("request_id"), self._rng.random()
        item: dict[str, Any] = {"request_id": request_id, "task": self._rng.choice(TASKS)}
        if luck < 0.2:
            return item | {"task": "perdure.bulk", "payload": {"order": CANCEL_ALL}}
        field = self._rng.choice(["parent_id", "root_id", "continuation_of"])
        options = {field: self._knowledge.value(field)} if luck < 0.4 else {}
        return item | {"payload": {"n": 1}, "options": options}

    def _claim(self) -> dict[str, Any]:
        tasks = [*TASKS, *self._knowledge.victim.tasks]
        return {
            "worker_id": self._knowledge.worker_id,
            "tokens": [self._knowledge.value("tokens") for _ in range(self._rng.randint(1, 10))],
            "tasks": tasks,
            "versions": dict.fromkeys(tasks, MAX_VERSION),
            "lease_ttl": self._knowledge.value("lease_ttl"),
        }

    def _return_claims(self) -> dict[str, Any]:
        victim = self._knowledge.victim
        worker_id = self._rng.choice([self._knowledge.worker_id, *victim.worker_ids])
        return {"worker_id": worker_id, "tokens": [token for _, token, _ in victim.leases]}

    def _worker_request(self, name: str, body: Any, protocol: str) -> AttackRequest:
        headers = {PROTOCOL_HEADER: protocol, "content-type": "application/json"}
        return AttackRequest(name, "POST", f"/v1/worker/{name}", headers, _encode(body))

    # Spoiling

    def _spoil(self, value: Any) -> Any:
        if value is None:
            return None
        luck = self._rng.random()
        rounds = 0 if luck < VALID else 1 if luck < MUTATED_ONCE else 3
        for _ in range(rounds):
            value = mutate(self._rng, value, self._knowledge.victim)
        return value

    def _spoil_body(self, body: Any) -> bytes | None:
        if body is None:
            return None
        if self._rng.random() < 0.03:
            return self._rng.choice(WRONG_BODIES)
        body = self._spoil(body)
        if isinstance(body, dict) and isinstance(body.get("wait"), int | float):
            body["wait"] = min(body["wait"], MAX_WAIT_S)
        return _encode(body)

    def _path(self, route: Route) -> str:
        path = route.path
        for name in route.parameters:
            value = self._knowledge.value(name)
            if value is None or self._rng.random() < 0.15:
                value = self._rng.choice(hostile_values(self._knowledge.victim))
            text = str(value)[:500].encode(errors="replace")
            path = path.replace(f"{{{name}}}", quote(text, safe="") or "%20")
        return path

    def _headers(self, route: Route) -> dict[str, str]:
        headers = {"content-type": "application/json"}
        luck = self._rng.random()
        if route.speaks_protocol:
            headers[PROTOCOL_HEADER] = str(PROTOCOL)
            if luck < 0.04:
                headers[PROTOCOL_HEADER] = self._rng.choice(["1", "3", "999999999999", "x", ""])
        elif luck < 0.1:
            name = self._rng.choice(["if-match", "idempotency-key", "x-reason", "last-event-id"])
            headers[name] = self._rng.choice(['"1"', "*", "a" * 600, "%00", "-1", "0", "x"])
        elif luck < 0.12:
            headers["content-type"] = "text/plain"
        return headers


def _encode(body: Any) -> bytes:
    """As JSON, also what is none: NaN, and lone surrogates."""
    return json.dumps(body).encode()


def _query_text(query: Any) -> str:
    if not isinstance(query, dict):
        return "x=1"
    pairs = []
    for name, value in query.items():
        text = value if isinstance(value, str) else json.dumps(value)
        pairs.append((name, text[:2000].encode(errors="replace")))
    return urlencode(pairs)
