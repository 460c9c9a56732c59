"""Counts what a worker without a database does, from the server's answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.core.decide.ending import Raised
from perdure.core.run.lifecycle import EventType, Status
from perdure.core.run.run import Run
from perdure.engine.execution.worker_backend import Finished, Recorded, ReportOutcome
from perdure.engine.observability.storage_metrics import Facts
from perdure.telemetry import metrics
from perdure.telemetry.registry import Labels, Registry

_ENDINGS: dict[EventType, tuple[str, Status | None]] = {
    EventType.SUCCEEDED: ("succeeded", Status.SUCCEEDED),
    EventType.FAILED: ("failed", Status.FAILED),
    EventType.DEAD_LETTERED: ("failed", Status.DEAD_LETTERED),
    EventType.RETRY_SCHEDULED: ("retrying", None),
    EventType.RELEASED: ("released", None),
    EventType.CANCELLED: ("cancelled", Status.CANCELLED),
}
"""How an event ends an attempt, and its run."""


class RemoteFacts:
    """The same counters as beside a database."""

    def __init__(self, registry: Registry) -> None:
        self._facts = Facts(registry)
        self._triggered = registry.counter(metrics.RUNS_TRIGGERED)
        self._finished = registry.counter(metrics.RUNS_FINISHED)
        self._attempts = registry.counter(metrics.ATTEMPTS_FINISHED)
        self._attempt_seconds = registry.histogram(metrics.ATTEMPT_SECONDS)
        self._renewed = registry.counter(metrics.LEASES_RENEWED)

    def claimed(self, runs: Sequence[Run]) -> None:
        self._facts.claimed_runs(runs)

    def renewed(self, count: int) -> None:
        self._renewed.add(count)

    def triggered(self, asked: Iterable[Labels]) -> None:
        self._triggered.count(list(asked))

    def reported(self, finished: Sequence[Finished], outcomes: Sequence[ReportOutcome]) -> None:
        for item, outcome in zip(finished, outcomes, strict=True):
            if isinstance(outcome, Recorded) and outcome.event in _ENDINGS:
                self._count(item, *_ENDINGS[outcome.event])

    def _count(self, item: Finished, ended: str, status: Status | None) -> None:
        of = item.run.task, item.run.queue
        kind = item.ending.failure.kind.value if isinstance(item.ending, Raised) else ""
        self._attempts.add(1, (*of, ended, kind))
        if status is not None:
            self._finished.add(1, (*of, status.value))
        took = (item.evidence.execution_trace or {}).get("total_ms")
        if isinstance(took, float | int):
            self._attempt_seconds.observe(took / 1000, of)
