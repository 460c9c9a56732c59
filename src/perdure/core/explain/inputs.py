"""What `why` needs to know. Whoever asks storage gathers it; here nothing is asked."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec

from perdure.core.explain.wait_cycles import WaitCycle
from perdure.core.limits.admission import Gate, LimitScope, Standing
from perdure.core.limits.settings import Limit
from perdure.core.run.effects import DeadLetter
from perdure.core.run.events import Event
from perdure.core.run.run import Run

MOST_COUNTED = 1_000
MOST_NAMED = 10


class SeenWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as the registry has it; `is_live`: it was heard of lately."""

    id: str
    is_live: bool
    is_stopping: bool
    running: int
    concurrency: int
    queues: tuple[str, ...] | None
    tasks: tuple[str, ...]
    versions: Mapping[str, int] = {}
    not_importable: Mapping[str, str] = {}
    awaiting: Mapping[str, str] = {}

    @property
    def is_staying(self) -> bool:
        return self.is_live and not self.is_stopping

    def could_take(self, run: Run) -> bool:
        """Whether it serves the run's task, version and queue."""
        knows = run.task in self.tasks and self.versions.get(run.task, 0) >= run.required_version
        return knows and (self.queues is None or run.queue in self.queues)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """A run and what is around it at `now`, the storage's time.

    `parked_at`: the gate it is parked behind; `is_put_aside`: some code could not read it.
    `successor`: the first retry or rerun of a run that has ended.
    `holders` and `parked` tell of gates that are full. `ahead` is none where nobody counted.
    `cycle`: runs that wait for each other, if that keeps this one from going on.
    """

    run: Run
    now: datetime
    history: tuple[Event, ...] = ()
    dead_letter: DeadLetter | None = None
    successor: str | None = None
    parked_at: Gate | None = None
    is_put_aside: bool = False
    limits: Mapping[tuple[LimitScope, str], Limit] = {}
    standing: Standing
    holders: Mapping[Gate, tuple[Run, ...]] = {}
    parked: Mapping[Gate, int] = {}
    is_known_task: bool = True
    workers: tuple[SeenWorker, ...] = ()
    ahead: int | None = None
    cycle: WaitCycle | None = None
    clock_ahead: timedelta = timedelta(0)

    @property
    def is_due(self) -> bool:
        due = self.run.claimable_at
        return due is not None and due <= self.now

    def limit(self, gate: Gate) -> Limit | None:
        return self.limits.get((gate.scope, gate.name))

    @property
    def is_fair(self) -> bool:
        limit = self.limit(Gate(LimitScope.QUEUE, self.run.queue))
        return limit is not None and limit.is_fair
