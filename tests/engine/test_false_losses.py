"""A lease that ended because the outcome was stored is no lost lease, whatever a renewal finds."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from perdure import App, Context
from perdure.core.decide.ending import Settled
from perdure.core.run.commit import Commit
from perdure.engine.attempt.transaction import HandlerTransaction
from perdure.storage.contract.runs import Claimed, ClaimRequest, Renewal, Renewed
from perdure.telemetry import metrics

TIMEOUT_S = 20


class Renewals:
    """The renewals of an app's worker. `wait_for_loss` returns after one that found a lease gone
    and was acted on."""

    def __init__(self, app: App) -> None:
        storage: Any = app.storage
        self._renew = storage.renew
        self._has_found_loss = False
        self.was_acted_on = threading.Event()
        storage.renew = self.renew

    async def renew(self, renewals: Sequence[Renewal]) -> Renewed:
        if self._has_found_loss:  # so the worker has acted on the answer before
            self.was_acted_on.set()
        answer: Renewed = await self._renew(renewals)
        self._has_found_loss = self._has_found_loss or bool(answer.lost)
        return answer

    async def wait_for_loss(self) -> None:
        assert await asyncio.to_thread(self.was_acted_on.wait, TIMEOUT_S)


def losses(app: App) -> float:
    return sum(app.metrics.registry.counter(metrics.LEASES_LOST).read().values())


async def test_an_outcome_that_is_stored_before_a_renewal_is_no_lost_lease(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def quick() -> str:
        return "done"

    async with app:
        storage: Any = app.storage
        claim, renewals = storage.claim, Renewals(app)

        async def answer_late(request: ClaimRequest, outcomes: Sequence[Commit] = ()) -> Claimed:
            claimed: Claimed = await claim(request, outcomes)
            if outcomes:
                await renewals.wait_for_loss()
            return claimed

        storage.claim = answer_late
        with caplog.at_level(logging.INFO, "perdure"):
            async with app.worker(concurrency=1, same_loop=True):
                run = await quick.trigger()
                assert await run.result(TIMEOUT_S) == "done"
                await renewals.wait_for_loss()

        assert losses(app) == 0
    assert [it.message for it in caplog.records if it.levelno >= logging.WARNING] == []


async def test_a_transaction_that_commits_before_a_renewal_is_no_lost_lease(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    def transfer(ctx: Context) -> str:
        with ctx.transaction():
            return "done"

    async with app:
        renewals, settled = Renewals(app), HandlerTransaction._settled

        def answer_late(transaction: HandlerTransaction) -> Settled:
            assert renewals.was_acted_on.wait(TIMEOUT_S)
            return settled(transaction)

        monkeypatch.setattr(HandlerTransaction, "_settled", answer_late)
        with caplog.at_level(logging.INFO, "perdure"):
            async with app.worker(concurrency=1, same_loop=True):
                run = await transfer.trigger()
                assert await run.result(TIMEOUT_S) == "done"
                await renewals.wait_for_loss()

        assert losses(app) == 0
        assert await app.runs.logs(run.id) == []
    assert [it.message for it in caplog.records if it.levelno >= logging.WARNING] == []
