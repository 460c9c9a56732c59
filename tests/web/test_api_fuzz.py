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
from schemathesis.core.result import Ok
from schemathesis.pytest.lazy import get_all_tests
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from perdure import every, secret
from perdure.core.run.run import is_run_id
from perdure.engine.operators.keys import Keys
from perdure.web.openapi.document import describe
from perdure.web.operations.table import ROUTES
from situations import a_worker
from web_kit import ADA, ALL, Server, dead_letter, make_key, serving, shop

EXAMPLES = int(os.environ.get("PERDURE_FUZZ_EXAMPLES", "8"))
ENDLESS = ["/v1/stream", "/v1/worker/hints"]
"""They wait; `tests/protocol` asks for hints in every way."""
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
DOCUMENT = describe(ROUTES)
OPERATIONS = [
    f"{method.upper()} {path}"
    for path, methods in DOCUMENT["paths"].items()
    if path not in ENDLESS
    for method in methods
]

SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)

Names = dict[str, list[str]]
"""What there is, by the parameter of a path that would name it."""


class Target:
    """A server with something in it, and a key for everything."""

    def __init__(self, server: Server, key: str, names: Names) -> None:
        self.address = server.address
        self.headers = {"authorization": f"Bearer {key}"}
        self._names = {parameter: cycle(there) for parameter, there in names.items()}

    def name(self, case: Any) -> None:
        """Something there is, where a path says something that could be: no chance meets it. What
        could be no name at all is left as it is."""
        given = case.path_parameters or {}
        for parameter in given.keys() & self._names.keys():
            if given[parameter].isascii() if parameter != "run_id" else is_run_id(given[parameter]):
                given[parameter] = next(self._names[parameter])


async def _furnish(url: str) -> tuple[str, Names]:
    async with shop(url) as app:
        runs = [(await app.tasks["double"].trigger(number)).id for number in range(4)]
        runs += [await dead_letter(app) for _ in range(2)]
        await app.schedules.create("nightly", every(60), "double", payload={"number": 1})
        await app.webhooks.create("told", "http://192.0.2.1/", signing_secret=secret("WEBHOOK_X"))
        await a_worker(app, "worker_1")
        other = await Keys(app.runtime).create("other", ["read"], by=ADA)
        names = {"run_id": runs, "task": ["double"], "queue": ["numbers"], "worker": ["worker_1"]}
        names |= {"schedule": ["nightly"], "webhook": ["told"], "key_id": [other.key.id]}
        return await make_key(app, *ALL), names


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    directory: Path = tmp_path_factory.mktemp("fuzz")
    url = os.environ.get("PERDURE_FUZZ_URL") or f"sqlite:///{directory / 'runs.db'}"
    key, names = asyncio.run(_furnish(url))
    with serving(url, directory, "--rate", "none") as server:
        yield Target(server, key, names)


@pytest.fixture(scope="module")
def schema() -> BaseSchema:
    return schemathesis.openapi.from_dict(DOCUMENT)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_whatever_is_asked_the_answer_is_as_documented(
    operation: str, schema: BaseSchema, target: Target
) -> None:
    """Its cases are made here and not by `schema.parametrize`, which makes those of all operations
    when tests are collected: seconds in every process of the suite."""
    [made] = get_all_tests(
        schema=schema.include(name=operation),
        test_func=check_answer,
        settings=SETTINGS,
        given_kwargs=None,
    )
    assert isinstance(made, Ok)
    _, check = made.ok()
    check(target=target)


def check_answer(case: Any, target: Target) -> None:
    target.name(case)
    answer = case.call(base_url=target.address, headers=target.headers)

    case.validate_response(answer, checks=CHECKS)
    assert answer.status_code < 400 or "Traceback" not in answer.text
