"""Values that no client of ours sends, and ways to put them into a request."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import Any

from attack.knowledge import RESERVED, Victim

Path = tuple[str | int, ...]

FORGED_FIELDS = (
    "created_by", "actor", "source", "environment", "key_id", "drain", "seen_at", "by", "events",
    "occurred_at", "version", "sequence", "status", "lease", "by_manifest", "parent",
)  # fmt: skip
"""Fields that only the server writes."""
WRONG_BODIES = (
    b"", b"{", b"null", b"[]", b'"x"', b"\xff\xfe", b"NaN", b'{"a": NaN}', b"0" * 5000,
    b"[" * 5000 + b"]" * 5000, b'{"a":' * 300 + b"1" + b"}" * 300, b'{"x": "\\ud800"}',
)  # fmt: skip


def hostile_values(victim: Victim) -> list[Any]:
    """Instants without a zone and of other years, numbers and texts that no column holds, deep and
    large values, reserved names, and names of the honest tenant."""
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    return [
        None, True, -1, 0, 2**31, 2**63, 10**40, 1e308, -1e308, 1e-320, "", "\0", "a\0b", "\ud800",
        "x" * 300, "y" * 20_000, [], {}, [[]], deep, {"a": deep}, list(range(2000)),
        "2026-01-01T09:00:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z",
        "2026-01-01T09:00:00+02:00", "2026-01-01T09:00:00-23:59", "PT99999999999999S", "-P1D",
        315_360_000, "P3650D", "%", "'; DROP TABLE perdure_runs; --", "../../etc/passwd", "run_x",
        *RESERVED, victim.environment, *victim.run_ids[-5:], *victim.worker_ids, *victim.tasks,
        *victim.key_ids,
    ]  # fmt: skip


def mutate(rng: Random, request: Any, victim: Victim) -> Any:
    """Return the request with one value replaced, removed or repeated, or with a forged field."""
    changed = deepcopy(request)
    paths = list(_paths(changed, ()))
    kind = rng.random()
    if kind < 0.15 or not paths:
        return _add_forged_field(rng, changed, paths, victim)
    path = rng.choice(paths)
    place = _at(changed, path[:-1])
    if kind < 0.25 and isinstance(place, dict):
        del place[path[-1]]
    elif kind < 0.35 and isinstance(place, list):
        place += [place[path[-1]]] * rng.choice([1, 600])  # type: ignore[index]  # a list's
    else:
        place[path[-1]] = rng.choice(hostile_values(victim))
    return changed


def _add_forged_field(rng: Random, request: Any, paths: list[Path], victim: Victim) -> Any:
    places = [request, *(_at(request, path) for path in paths)]
    dicts = [place for place in places if isinstance(place, dict)]
    if dicts:
        rng.choice(dicts)[rng.choice(FORGED_FIELDS)] = rng.choice(hostile_values(victim))
    return request


def _paths(value: Any, path: Path) -> list[Path]:
    if not isinstance(value, dict | list):
        return []
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found: list[Path] = []
    for key, each in inner:
        found += [(*path, key), *_paths(each, (*path, key))]
    return found


def _at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value
