"""Helpers for tests of durable code. Perdure itself uses none of them.

The kit puts an app on a private storage and on virtual time; its pytest plugin gives it as the
fixtures `perdure_kit` and `perdure_app`. `perdure.testing.postgres` starts a private PostgreSQL,
without an installed server or root.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.testing.kit.boundaries import Boundary, WorkerKilled
    from perdure.testing.kit.crash_matrix import CrashMatrixFailed
    from perdure.testing.kit.kit import Kit
    from perdure.testing.kit.points import point
    from perdure.testing.kit.records import Execution, Progress
    from perdure.testing.kit.world import Stuck

__all__ = [
    "Boundary",
    "CrashMatrixFailed",
    "Execution",
    "Kit",
    "Progress",
    "Stuck",
    "WorkerKilled",
    "point",
]

_HOMES = {
    "Boundary": "perdure.testing.kit.boundaries",
    "CrashMatrixFailed": "perdure.testing.kit.crash_matrix",
    "Execution": "perdure.testing.kit.records",
    "Kit": "perdure.testing.kit.kit",
    "Progress": "perdure.testing.kit.records",
    "Stuck": "perdure.testing.kit.world",
    "WorkerKilled": "perdure.testing.kit.boundaries",
    "point": "perdure.testing.kit.points",
}


def __getattr__(name: str) -> Any:
    """Imported when first used: the plugin is loaded by every pytest that finds it installed."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
