"""Which runs a worker asks for: of these tasks and queues, or known by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perdure.engine.runtime import wakeups as hints
from perdure.engine.runtime.runtime import Components
from perdure.engine.worker.import_failures import ImportFailures
from perdure.engine.worker.versions import Tasks, versions_of
from perdure.storage.contract.explanation import SuspectScope
from perdure.storage.contract.runs import ClaimRequest


class WorkScope:
    """`run_ids`: only these runs; none: any. `on_retry`: called when a task whose handler could
    not be imported may be claimed again."""

    def __init__(
        self,
        components: Components,
        on_retry: Callable[[], None],
        tasks: Tasks,
        queues: Sequence[str] | None,
        run_ids: Sequence[str] | None,
    ) -> None:
        self._components = components
        self.import_failures = ImportFailures(components.redactor, on_retry)
        self.tasks = tasks
        self.queues = None if queues is None else tuple(queues)
        self.run_ids = None if run_ids is None else tuple(run_ids)

    @property
    def registered_queues(self) -> tuple[str, ...] | None:
        """Queues that the worker serves, as others see it: none if it executes only named runs."""
        return self.queues if self.run_ids is None else ()

    def make_claim(self, worker_id: str, places: int, suspect: str | None) -> ClaimRequest:
        """Return the claim of so many runs, or of the suspect."""
        ids = self._components.ids
        return ClaimRequest(
            worker_id=worker_id,
            tokens=ids.tokens(places),
            tasks=self.import_failures.importable(self.tasks),
            versions=versions_of(self.tasks),
            queues=self.queues,
            run_ids=self.run_ids if suspect is None else (suspect,),
            start=places,
            lease_ttl=self._components.defaults.lease_ttl,
            environment=self._components.environment,
            commit_id=ids.commit_id(),
        )

    def of_suspects(self) -> SuspectScope:
        return SuspectScope(
            environment=self._components.environment,
            tasks=self.import_failures.importable(self.tasks),
            versions=versions_of(self.tasks),
            queues=self.queues,
        )

    def concerns(self, topic: str) -> bool:
        """Return whether a hint of this topic means work for the worker."""
        return hints.is_work_in(topic, self._components.environment, self.queues)
