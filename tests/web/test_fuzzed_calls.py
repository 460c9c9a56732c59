"""Seeded calls over every route and worker operation: a slice of `make prove CAMPAIGN=fuzz`.

The campaign also bounds the CPU time of callbacks, which depends on the machine. That heavy parts
leave the event loop is counted instead, by `test_offload.py`.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from random import Random

import msgspec
import pytest

from fuzzing.calls import Generator
from fuzzing.client import Answer
from fuzzing.drive import fuzz, is_allowed
from fuzzing.hostile import encode
from fuzzing.known import Known
from fuzzing.target import serve_furnished
from fuzzing.values import Values
from perdure.engine.protocol.scope import Scope
from perdure.errors import PerdureError
from perdure.web.operations.operation import Route
from perdure.web.operations.table import ROUTES

SEED = 14
CALLS = 1500
"""On each database."""


def test_no_call_is_a_server_error(storage_url: str, tmp_path: Path) -> None:
    with serve_furnished(storage_url, tmp_path) as target:
        verdict = fuzz(target, SEED, CALLS)

    assert not verdict.problems, "\n\n".join(verdict.problems)
    assert verdict.statuses.total() == CALLS
    assert verdict.statuses["200"] > CALLS / 5  # or it would not reach deep


def test_calls_of_a_seed_are_the_same_each_time_and_cover_every_route_key_and_kind() -> None:
    keys = {str(scope): "pk" for scope in Scope} | {"all": "pk", "all_too": "pk"}
    keys |= {f"{one}_{two}": "pk" for one, two in combinations(Scope, 2)}

    calls = [Generator(SEED, Known({}), keys).make(number) for number in range(CALLS)]
    again = [Generator(SEED, Known({}), keys).make(number) for number in range(CALLS)]

    assert [call.route.name for call in calls] == [call.route.name for call in again]
    assert {call.route.name for call in calls} == {route.name for route in ROUTES}
    assert {call.mood for call in calls} == {"valid", "almost", "hostile", "large"}
    assert {call.key for call in calls} == {*keys, "", "learnt", "malformed"}
    assert any(call.closes_early for call in calls)
    assert any(call.is_chunked for call in calls)
    assert max(len(call.body) for call in calls) > 1_000_000


@pytest.mark.parametrize(
    "route", [it for it in ROUTES if it.body is not None], ids=lambda it: it.name
)
def test_values_fit_the_types_of_the_routes(route: Route) -> None:
    """Otherwise no call would get further than the decoding of its body."""
    fits = 0
    for seed in range(30):
        body = Values(Random(seed), Known({}), "all", route.name).body(route.body)
        try:
            msgspec.json.decode(encode(body), type=route.body)
        except (msgspec.ValidationError, PerdureError):
            continue
        fits += 1

    assert fits >= 10


@pytest.mark.parametrize(
    ("status", "headers", "kind", "allowed"),
    [
        (422, {}, "invalid-input", True),
        (503, {"retry-after": "1"}, "too-many-requests", True),
        (503, {}, "too-many-requests", False),
        (503, {"retry-after": "1"}, "storage-unavailable", False),
        (500, {"retry-after": "1"}, "internal-error", False),
        (502, {}, "x", False),
        (504, {}, "x", False),
    ],
)
def test_only_an_exhausted_share_may_be_a_503(
    status: int, headers: dict[str, str], kind: str, allowed: bool
) -> None:
    body = msgspec.json.encode({"type": f"urn:perdure:problem:{kind}"})

    assert is_allowed(Answer(status, headers, body)) is allowed
