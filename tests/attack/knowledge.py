"""What an attacker knows: names and ids of its own, and those of the honest tenant that it may
have read in a log or a URL. It never has a key of the honest tenant."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from perdure.engine.runtime.ids import make_run_id, make_token
from storage_kit import now

MAX_REMEMBERED = 200
TASKS = ("evil", "evil_2")
QUEUES = ("default", "evil_queue")
RESERVED = ("perdure.bulk", "perdure.evil", "perdure.")
ENDPOINT = "http://127.0.0.1:9/"
"""Where nothing listens."""


class Victim(msgspec.Struct):
    """The honest tenant, as far as strangers can know it."""

    environment: str
    run_ids: list[str]
    worker_ids: list[str]
    tasks: list[str]
    schedules: list[str]
    webhooks: list[str]
    key_ids: list[str]
    leases: list[tuple[str, str, int]] = []
    """Run id, token and attempt of leases that were stolen. Without the key they open nothing."""


class Knowledge:
    """Ids that requests name. Answers add to them."""

    def __init__(self, rng: Random, victim: Victim, environment: str) -> None:
        self._rng = rng
        self.victim = victim
        self.environment = environment
        self.run_ids: list[str] = []
        self.leases: list[tuple[str, str, int]] = []
        """Run id, token and attempt of each claim that succeeded."""
        self.key_ids: list[str] = []
        self.worker_id = "worker_evil"
        """The worker of the key that the next request is for."""
        self._session = f"{rng.getrandbits(128):032x}"

    def learn(self, operation: str, answer: Any) -> None:
        """Remember the ids that an answer holds."""
        if operation == "claim":
            for run in answer.get("runs", ()):
                lease = run["lease"]
                self.leases.append((run["id"], lease["token"], lease["attempt"]))
        elif operation in ("trigger", "trigger_run", "trigger_batch"):
            found = [answer, *answer.get("outcomes", ()), *answer.get("items", ())]
            self.run_ids += [it["run_id"] for it in found if it.get("run_id")]
            self.run_ids += [it["id"] for it in found if str(it.get("id", "")).startswith("run_")]
        elif operation == "create_key" and "id" in answer:
            self.key_ids.append(answer["id"])
        del self.run_ids[:-MAX_REMEMBERED], self.leases[:-MAX_REMEMBERED]

    def value(self, field: str) -> Any:
        """Return a value that a field of this name may have; None: any value of its type."""
        pools: dict[str, list[Any]] = {
            "run_id": self._runs(),
            "run_ids": self._runs(),
            "parent_id": self._runs(),
            "root_id": self._runs(),
            "continuation_of": self._runs(),
            "request_id": [make_run_id(now())],
            "token": [token for _, token, _ in self.leases] + [self._token()],
            "tokens": [self._token()] * 6 + [token for _, token, _ in self.victim.leases],
            "worker_id": [self.worker_id] * 8 + self.victim.worker_ids,
            "worker": [self.worker_id, *self.victim.worker_ids],
            "task": [*TASKS] * 4 + [*self.victim.tasks, *RESERVED],
            "tasks": [*TASKS] * 4 + self.victim.tasks,
            "aliases": [*TASKS, *self.victim.tasks, *RESERVED],
            "queue": [*QUEUES],
            "queues": [*QUEUES],
            "schedule": ["evil_schedule", *self.victim.schedules],
            "webhook": ["evil_hook", *self.victim.webhooks],
            "key_id": [*self.key_ids, *self.victim.key_ids],
            "session": [self._session, self._token()],
            "environment": [self.environment, self.victim.environment],
            "url": [ENDPOINT],
            "zone": ["UTC", "Europe/Berlin"],
            "scopes": ["read", "work", "trigger", "operate", "admin"],
            "lease_ttl": [30, 3600, 1e-9, 0.5],
            "wait": [0, 0.01],
            "limit": [1, 50, 1000, 10**6],
        }
        pool = pools.get(field)
        return self._rng.choice(pool) if pool else None

    def lease(self) -> tuple[str, str, int] | None:
        """Return a lease of the attacker's own, which may have ended, or a stolen one."""
        known = [*self.leases[-10:], *self.victim.leases]
        return self._rng.choice(known) if known else None

    def _runs(self) -> list[str]:
        return [*self.run_ids[-10:], *self.victim.run_ids[-10:], make_run_id(now())]

    def _token(self) -> str:
        return make_token()
