"""Log what a loop cannot process, at most one record per item and hour.

A loop that meets such an item calls `report`, skips the item and continues with the others.
"""

from __future__ import annotations

from datetime import timedelta

from perdure.errors import PerdureError
from perdure.storage.protocol import Clock
from perdure.telemetry import table

LOG_INTERVAL = timedelta(hours=1)
MAX_REMEMBERED_ITEMS = 1000

Item = tuple[str, str]
"""A kind, such as `webhook`, and an id."""

_OTHERS: Item = ("item", f"beyond the first {MAX_REMEMBERED_ITEMS} of this hour")


class Quarantine:
    """Remembers which items were logged within the last hour, up to `MAX_REMEMBERED_ITEMS`.

    All items beyond that share one log record per hour.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged_at: dict[Item, float] = {}

    def report(self, kind: str, item_id: str, error: Exception) -> None:
        """Log that the item is skipped, unless that was logged within the last hour.

        Call it while `error` is being handled: an error that is not Perdure's own is logged with
        its traceback.
        """
        item = self._admit((kind, item_id))
        if item is None:
            return
        kind, item_id = item
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, PerdureError):
            table.QUARANTINED.say(kind=kind, id=item_id, error=text)
        else:
            table.QUARANTINED.say_with_error(kind=kind, id=item_id, error=text)

    def _admit(self, item: Item) -> Item | None:
        """Return the item to log: this one, the one that stands for all others, or None."""
        now = self._clock.elapsed()
        self._evict(now - LOG_INTERVAL.total_seconds())
        if item in self._logged_at:
            return None
        if len(self._logged_at) >= MAX_REMEMBERED_ITEMS:
            item = _OTHERS
        if item in self._logged_at:
            return None
        self._logged_at[item] = now
        return item

    def _evict(self, logged_before: float) -> None:
        """Remove the entries of that age. The oldest is the first of the dict."""
        while self._logged_at:
            oldest = next(iter(self._logged_at))
            if self._logged_at[oldest] > logged_before:
                return
            del self._logged_at[oldest]
