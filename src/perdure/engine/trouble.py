"""What goes wrong in something that must go on: it is said, and tried again after a pause.

One policy for every loop: whatever a step raises is no reason to end it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta

from perdure.errors import StorageUnavailable
from perdure.telemetry import table

TROUBLE = timedelta(milliseconds=500)
"""Before the next try: whoever comes back last after an outage must still come within `grace`."""


async def went_well(service: str, step: Awaitable[object]) -> bool:
    """Whether the step did. If not, that has been said."""
    try:
        await step
    except StorageUnavailable as error:
        table.STORAGE_AWAY.say(service=service, error=str(error))
    except Exception:  # noqa: BLE001  # whatever it is, the loop goes on
        table.SERVICE_FAILED.say_with_error(service=service)
    else:
        return True
    return False
