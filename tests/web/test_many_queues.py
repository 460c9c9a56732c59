"""A key that may only trigger can name any number of queues: what lists them stays cheap."""

from __future__ import annotations

from collections.abc import ItemsView

from perdure.core.run.lifecycle import Status
from perdure.storage.contract.runs import Backlog
from perdure.web.operations.overview import _queues

Counts = dict[tuple[str, Status], int]


class CountedReads(Counts):
    """Counts that know how often they were read as a whole."""

    reads = 0

    def items(self) -> ItemsView[tuple[str, Status], int]:  # type: ignore[override]  # the same view
        self.reads += 1
        return super().items()


def test_statistics_read_the_counts_once_however_many_queues_there_are() -> None:
    names = [f"queue-{number:03}" for number in range(300)]
    counts = CountedReads({(name, Status.QUEUED): 1 for name in names})

    told = _queues(counts, [Backlog(queue="idle", later=2)])

    assert counts.reads == 1
    assert [it.queue for it in told] == ["idle", *names]
    assert (told[0].statuses, told[0].later) == ({}, 2)
    assert all(it.statuses == {Status.QUEUED: 1} for it in told[1:])
