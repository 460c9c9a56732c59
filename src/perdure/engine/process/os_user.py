"""The operating system's user and host of this process."""

from __future__ import annotations

import getpass
import socket
from functools import lru_cache

from perdure.core.json_text import check_label
from perdure.errors import InvalidInput


def os_user() -> str | None:
    """Return the name of the user, or None if there is none, as in some containers."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return None


@lru_cache(maxsize=1)
def user_at_host() -> str | None:
    """Return `user@host`, or only the host. Return None if that is not a valid label."""
    host = socket.gethostname()
    user = os_user()
    try:
        return check_label(host if user is None else f"{user}@{host}", "actor")
    except InvalidInput:
        return None
