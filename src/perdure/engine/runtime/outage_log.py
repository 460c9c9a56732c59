"""What goes wrong in something that must go on: it is logged, and tried again after a pause.

One policy for every loop: whatever a step raises is no reason to end it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta

from perdure.errors import StorageUnavailable
from perdure.storage.contract.runs import Clock
from perdure.telemetry import table

TROUBLE = timedelta(milliseconds=500)
"""Before the next try: whoever comes back last after an outage must still come within `grace`."""
REPEAT_INTERVAL_S = 60.0
"""Seconds after which an outage that goes on is logged again."""


class OutageLog:
    """Logs for one service when storage stops answering, and when it answers again."""

    def __init__(self, service: str, clock: Clock) -> None:
        self._service = service
        self._clock = clock
        self._began_at: float | None = None
        self._logged_at = 0.0

    async def went_well(self, step: Awaitable[object]) -> bool:
        """Return whether the step did. If not, that has been logged."""
        began_at = self._clock.elapsed()
        try:
            await step
        except StorageUnavailable as error:
            self._log_outage(error, began_at)
        except Exception:  # noqa: BLE001  # whatever it is, the loop goes on
            table.SERVICE_FAILED.say_with_error(service=self._service)
        else:
            self.record_answer()
            return True
        return False

    def _log_outage(self, error: StorageUnavailable, began_at: float) -> None:
        """`began_at`: when the step began, which may have waited for seconds before it failed."""
        now = self._clock.elapsed()
        if self._began_at is None:
            self._began_at = began_at
        elif now - self._logged_at < REPEAT_INTERVAL_S:
            return
        self._logged_at = now
        table.STORAGE_AWAY.say(service=self._service, error=str(error))

    def record_answer(self) -> None:
        """Log that storage is back, if it was away. `went_well` does so at the end of a step."""
        if self._began_at is not None:
            seconds = round(self._clock.elapsed() - self._began_at, 1)
            self._began_at = None
            table.STORAGE_BACK.say(service=self._service, seconds=seconds)
