"""What PostgreSQL spells differently. Needs no driver."""

from __future__ import annotations

import re
from datetime import UTC, datetime

CHANNEL = "perdure"
"""Where hints are sent."""
MOST_BYTES = 7_900
"""PostgreSQL refuses a payload of 8,000."""

_CURSOR = re.compile(r"\d{1,19}\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.\d{1,9}")


class PostgresDialect:
    """Instants are aware datetimes; a run's id is the UUID after its prefix."""

    first_cursor = "0.00000000-0000-0000-0000-000000000000.0"

    def is_cursor(self, text: str) -> bool:
        return _CURSOR.fullmatch(text) is not None

    def instant(self, at: datetime | None) -> datetime | None:
        return at

    def moment(self, stored: datetime | None) -> datetime | None:
        return None if stored is None else stored.astimezone(UTC)

    def key(self, run_id: str | None) -> str | None:
        return None if run_id is None else run_id[4:]

    def run_id(self, stored: str) -> str:
        return "run_" + stored.replace("-", "")
