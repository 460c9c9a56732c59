"""A worker's backend and the storage behind it, for tests of both sides of that seam."""

from __future__ import annotations

from typing import Any

from builders import TASK
from perdure import App
from perdure.core.run.run import Run
from perdure.engine.client.results import ResultSource
from perdure.engine.execution.worker_backend import Finished, WorkClaimed, WorkerBackend
from perdure.storage.contract.runs import ClaimRequest
from storage_kit import create, request
from worker_kit import WORKER_ID


class Side:
    """A worker's backend, and the storage behind it."""

    def __init__(self, beside: App, backend: WorkerBackend, results: ResultSource) -> None:
        self.beside = beside
        self.storage = beside.storage
        self.backend = backend
        self.results = results

    async def a_run(self, **fields: Any) -> Run:
        """A run that is due."""
        return await create(self.storage, **fields)

    async def claim(
        self, places: int = 10, finished: list[Finished] | None = None, **fields: Any
    ) -> WorkClaimed:
        return await self.backend.claim(wanted(places, **fields), finished or [])

    async def claim_one(self, **fields: Any) -> Run:
        [run] = (await self.claim(1, **fields)).runs
        return run


def wanted(places: int = 10, **fields: Any) -> ClaimRequest:
    usual = {"worker_id": WORKER_ID, "tasks": (TASK,)}
    return request(places, **usual | fields)
