"""The whole API, called in ways nobody thought of: no 5xx, and no answer beside the document.

`PERDURE_FUZZ_EXAMPLES` asks for more of them than the suite has time for, `PERDURE_FUZZ_URL` for
another database than a file of its own. That bad input is refused by field is tested elsewhere: an
empty text in a query may stand for many a bad value, and is a good one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from perdure.core.run import is_run_id
from perdure.web.openapi import describe
from perdure.web.table import ROUTES
from web_kit import ALL, Server, dead_letter, make_key, serving, shop

EXAMPLES = int(os.environ.get("PERDURE_FUZZ_EXAMPLES", "8"))
ENDLESS = "/v1/stream"
CHECKS = [
    schemathesis.checks.not_a_server_error,
    allow_header_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
]

load_all_checks()
schema = schemathesis.openapi.from_dict(describe(ROUTES)).exclude(path=ENDLESS)


class Target:
    """A server with something in it, and a key for everything."""

    def __init__(self, server: Server, key: str, run_ids: list[str]) -> None:
        self.address = server.address
        self.headers = {"authorization": f"Bearer {key}"}
        self.run_ids = cycle(run_ids)


async def _furnish(url: str) -> tuple[str, list[str]]:
    async with shop(url) as app:
        runs = [(await app.tasks["double"].trigger(number)).id for number in range(4)]
        runs += [await dead_letter(app) for _ in range(2)]
        return await make_key(app, *ALL), runs


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    directory: Path = tmp_path_factory.mktemp("fuzz")
    url = os.environ.get("PERDURE_FUZZ_URL") or f"sqlite:///{directory / 'runs.db'}"
    key, run_ids = asyncio.run(_furnish(url))
    with serving(url, directory, "--rate", "none") as server:
        yield Target(server, key, run_ids)


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_whatever_is_asked_the_answer_is_as_documented(case: Any, target: Target) -> None:
    if is_run_id((case.path_parameters or {}).get("run_id", "")):  # no chance meets a real one
        case.path_parameters["run_id"] = next(target.run_ids)
    answer = case.call(base_url=target.address, headers=target.headers)

    case.validate_response(answer, checks=CHECKS)
    assert answer.status_code < 400 or "Traceback" not in answer.text
