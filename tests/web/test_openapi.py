"""The OpenAPI document as generators of clients read it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from perdure.web.openapi import describe
from perdure.web.table import ROUTES

DOCUMENT = describe(ROUTES)
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
OPERATIONS = [operation for path in DOCUMENT["paths"].values() for operation in path.values()]


def test_the_document_is_openapi_3_1() -> None:
    assert [str(error) for error in OPENAPI_31_VALIDATOR.iter_errors(DOCUMENT)] == []


def test_every_operation_has_a_name_of_its_own() -> None:
    names = Counter(operation["operationId"] for operation in OPERATIONS)

    assert len(names) == len(ROUTES)


def test_instants_are_told_as_such_and_cursors_are_not() -> None:
    run, page = SCHEMAS["RunView"]["properties"], SCHEMAS["Items_datetime_"]["properties"]
    [wanted] = [it for it in OPERATIONS if it["operationId"] == "list_runs"]
    asked = {it["name"]: it["schema"].get("format") for it in wanted["parameters"]}

    assert run["created_at"] == {"type": "string", "format": "date-time"}
    assert run["run_at"]["anyOf"] == [{"type": "string", "format": "date-time"}, {"type": "null"}]
    assert page["items"]["items"]["format"] == "date-time"
    assert "date-time" not in str(page["cursor"])
    assert (asked["created_after"], asked["cursor"]) == ("date-time", None)
