"""The scopes of API keys."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """What a key may do. None includes another; a key may have several. `work`: claim and execute
    runs, without a database."""

    READ = "read"
    TRIGGER = "trigger"
    OPERATE = "operate"
    ADMIN = "admin"
    WORK = "work"
