"""Fair queues: keys take turns, however long the backlog of one of them. On every adapter.

The bound: while a run is the first of its key, due and behind no limit, every other key starts at
most one run before it. With K keys that have something due, that is K - 1 starts of the queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import pytest

from builders import TASK
from bulk import TEMPLATE_KEY, Copies
from perdure.core.limits.admission import LimitScope
from perdure.core.limits.settings import pause, resume
from perdure.core.run.run import SYSTEM, Run
from perdure.storage.contract.storage import Storage
from perdure.storage.sql.write import turns
from storage_kit import (
    check_all,
    claim,
    claim_one,
    create,
    new_run,
    now,
    put_limit,
    set_limit,
    stored,
    success,
)

FAIR = "fair"


async def _fair(storage: Storage, most: int | None = None) -> None:
    await set_limit(storage, LimitScope.QUEUE, FAIR, most, fair=True)


async def _backlog(storage: Storage, **counts: int) -> list[Run]:
    """So many runs of each key, one key after the other; `none` stands for no key."""
    keys = [None if key == "none" else key for key, count in counts.items() for _ in range(count)]
    began = now() - timedelta(minutes=1)
    return await stored(
        storage,
        *(
            new_run(queue=FAIR, concurrency_key=key, at=began + timedelta(milliseconds=n))
            for n, key in enumerate(keys)
        ),
    )


def _keys(runs: Sequence[Run]) -> str:
    return "".join(run.concurrency_key or "-" for run in runs)


async def test_keys_take_turns_in_one_claim(storage: Storage) -> None:
    await _fair(storage)
    runs = await _backlog(storage, a=5, b=2, c=1)

    claimed = await claim(storage, 6)

    assert _keys(claimed.runs) == "abcaba"
    await check_all(storage, [run.id for run in runs])


async def test_the_next_claim_goes_on_after_the_key_served_last(storage: Storage) -> None:
    await _fair(storage)
    await _backlog(storage, a=9, b=9, c=9)

    served = [_keys((await claim(storage, 2)).runs) for _ in range(4)]

    assert served == ["ab", "ca", "bc", "ab"]


async def test_runs_without_a_key_share_one_turn(storage: Storage) -> None:
    await _fair(storage)
    await _backlog(storage, none=5, a=5, b=5)

    served = [_keys((await claim(storage, 1)).runs) for _ in range(7)]

    assert "".join(served) in ("-ab-ab-", "ab-ab-a")


async def test_priorities_hold_within_a_key_and_not_between_keys(storage: Storage) -> None:
    await _fair(storage)
    await _backlog(storage, a=2, b=2)
    [urgent] = await stored(storage, new_run(queue=FAIR, concurrency_key="b", priority=9))

    claimed = await claim(storage, 3)

    assert _keys(claimed.runs) == "aba"
    assert claimed.runs[1].id == urgent.id


async def test_a_queue_that_is_not_fair_goes_by_rank_alone(storage: Storage) -> None:
    await _backlog(storage, a=5, b=2)

    assert _keys((await claim(storage, 6)).runs) == "aaaaab"


async def test_fair_and_other_queues_take_turns(storage: Storage) -> None:
    await _fair(storage)
    await _backlog(storage, a=9, b=9)
    at = now() - timedelta(hours=1)
    await stored(storage, *(new_run(at=at) for _ in range(9)))

    claimed = await claim(storage, 6)

    assert Counter(run.queue for run in claimed.runs) == {FAIR: 3, "default": 3}


async def test_a_limit_of_a_fair_queue_is_shared_fairly(storage: Storage) -> None:
    await _fair(storage, most=2)
    await _backlog(storage, a=50, b=2, c=2)

    served = []
    holding = list((await claim(storage)).runs)
    for _ in range(6):
        served += holding
        freed = await claim(storage, outcomes=[success(run) for run in holding])
        holding = list(freed.runs)

    assert len(served) == 12
    assert _keys(served) == "abcabcaaaaaa"


async def test_a_full_key_costs_others_no_turn(storage: Storage) -> None:
    await _fair(storage)
    await set_limit(storage, LimitScope.KEY, TASK, 1)
    await _backlog(storage, a=9, b=2, c=2)

    first = await claim(storage)
    rest = await claim(storage, outcomes=[success(first.runs[1])])

    assert (_keys(first.runs), _keys(rest.runs)) == ("abc", "b")


async def test_other_tasks_and_later_runs_are_passed_by(storage: Storage) -> None:
    await _fair(storage)
    later = now() + timedelta(hours=1)
    await stored(
        storage,
        new_run(queue=FAIR, concurrency_key="a", task="unknown"),
        new_run(queue=FAIR, concurrency_key="b", run_at=later),
        new_run(queue=FAIR, concurrency_key="c"),
    )

    claimed = await claim(storage)

    assert _keys(claimed.runs) == "c"
    assert claimed.next_claimable_at == later


async def test_a_long_way_without_anything_due_is_gone_in_several_claims(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "VISITS", 10)
    await _fair(storage)
    later = now() + timedelta(hours=1)
    await stored(
        storage,
        *(new_run(queue=FAIR, concurrency_key=f"k{n:02}", run_at=later) for n in range(40)),
    )
    due = await create(storage, queue=FAIR, concurrency_key="k35")

    claims = [await claim(storage) for _ in range(5)]

    assert [run.id for claimed in claims for run in claimed.runs] == [due.id]
    assert all(c.next_claimable_at and c.next_claimable_at <= c.now for c in claims[:3])


async def test_a_queue_may_become_fair_and_unfair_at_any_time(storage: Storage) -> None:
    await _backlog(storage, a=6, b=6)

    unfair = await claim(storage, 2)
    await _fair(storage)
    fair = await claim(storage, 2)
    await set_limit(storage, LimitScope.QUEUE, FAIR)
    again = await claim(storage, 2)

    assert [_keys(it.runs) for it in (unfair, fair, again)] == ["aa", "ab", "aa"]


async def test_a_paused_fair_queue_rests(storage: Storage) -> None:
    await _fair(storage)
    await _backlog(storage, a=1)
    [limit] = await storage.limits("default")
    await put_limit(storage, pause(limit, SYSTEM, now()))

    paused = await claim(storage)
    await put_limit(storage, resume(limit))
    resumed = await claim(storage)

    assert (paused.runs, paused.next_claimable_at, len(resumed.runs)) == ((), None, 1)


BIG, SMALL, KEYS = 100_000, 10, 99


async def test_a_hundred_thousand_runs_of_one_key_do_not_starve_ninety_nine_others(
    storage: Storage, storage_url: str
) -> None:
    """The small ones are all claimed within the bound: each start of theirs waits for at most one
    of every other key, so after 10 rounds of 100 keys none is left."""
    await _fair(storage)
    at = now() - timedelta(minutes=5)
    template = await create(storage, queue=FAIR, concurrency_key=TEMPLATE_KEY, at=at)
    copies = Copies(storage_url, template.id)
    copies.add("big", BIG)
    for n in range(KEYS):
        copies.add(f"small-{n:02}", SMALL)
    await claim_one(storage, run_ids=(template.id,))  # its key is none of the hundred

    served: list[str] = []
    while len(served) < SMALL * (KEYS + 1):
        claimed = await claim(storage, 50)
        assert len(claimed.runs) == 50
        served += [run.concurrency_key or "-" for run in claimed.runs]

    counts = Counter(served)
    assert {counts[f"small-{n:02}"] for n in range(KEYS)} == {SMALL}
    assert counts["big"] == SMALL
