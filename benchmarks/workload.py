"""One worker's view of one database: make runs due, claim them, finish them."""

from __future__ import annotations

import gc
import time
from typing import Any

from perdure.core.decide import NewRun, decide_create, decide_success
from perdure.core.json_text import encode_value
from perdure.core.limits.admission import LimitScope
from perdure.core.limits.settings import Limit, Values, declare
from perdure.core.run.commit import Commit, prepare_commit
from perdure.core.run.run import Actor, ActorType, Run
from perdure.engine.runtime.clock import SystemClock
from perdure.engine.runtime.ids import make_run_id, make_token
from perdure.storage import Storage, open_storage
from perdure.storage.contract.runs import Claimed, ClaimRequest, Committed

BATCH = 100
TASK = "send_email"
CLOCK = SystemClock()
CLIENT = Actor(ActorType.CLIENT, "bench")
PAYLOAD = encode_value({"to": "ada@example.org", "template": "welcome", "attempts": [1, 2, 3]})
RESULT = encode_value({"sent": True})


def new_run(**fields: Any) -> Commit:
    """A run that is due at once, unless `fields` say otherwise."""
    now = CLOCK.now()
    wish = NewRun(**({"task": TASK, "payload_json": PAYLOAD} | fields))
    return prepare_commit(None, decide_create(wish, make_run_id(now), CLIENT, now), make_token())


def success(run: Run) -> Commit:
    assert run.lease is not None
    return prepare_commit(
        run, decide_success(run, run.lease.token, CLOCK.now(), RESULT), make_token()
    )


class Workload:
    """A storage, and what a worker does with it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.storage: Storage = open_storage(url, CLOCK)

    async def limit(self, scope: LimitScope, name: str, values: Values) -> None:
        limit = Limit(scope=scope, name=name, version=1)
        await self.storage.put_limits([declare(limit, values, CLIENT, CLOCK.now())])

    async def add(self, *commits: Commit) -> None:
        for outcome in await self.storage.commit(commits):
            if not isinstance(outcome, Committed):
                raise AssertionError(f"a run could not be stored: {outcome}")

    async def add_due(self) -> None:
        """A batch of fresh runs, each with a concurrency key of its own."""
        await self.add(*(new_run(concurrency_key=make_token()) for _ in range(BATCH)))

    async def claim(self) -> tuple[Claimed, float]:
        """Claim a batch; how many seconds it took."""
        request = ClaimRequest(
            worker_id="bench",
            tokens=tuple(make_token() for _ in range(BATCH)),
            tasks=(TASK,),
            start=BATCH,
            commit_id=make_token(),
        )
        gc.disable()
        began = time.perf_counter()
        claimed = await self.storage.claim(request)
        seconds = time.perf_counter() - began
        gc.enable()
        return claimed, seconds

    async def claim_batch(self) -> float:
        """Seconds to claim a full batch of runs that have just become due."""
        await self.add_due()
        claimed, seconds = await self.claim()
        if len(claimed.runs) != BATCH:
            raise AssertionError(f"claimed {len(claimed.runs)} runs, not {BATCH}")
        await self.add(*map(success, claimed.runs))
        return seconds

    async def claim_nothing(self) -> float:
        claimed, seconds = await self.claim()
        if claimed.runs:
            raise AssertionError(f"{len(claimed.runs)} runs are due on an idle queue")
        return seconds

    async def finished_run(self) -> str:
        """The id of a real run that was created, claimed and started, and has succeeded."""
        await self.add(new_run())
        claimed, _ = await self.claim()
        await self.add(*map(success, claimed.runs))
        return claimed.runs[0].id

    async def close(self) -> None:
        await self.storage.close()
