"""The OpenAPI document as generators of clients read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from perdure import errors
from perdure.web.openapi.document import describe
from perdure.web.openapi.schemas import simplify
from perdure.web.operations.table import ROUTES
from perdure.web.problems import PROBLEM_STATUSES, slug_of, status_of

DOCUMENT = describe(ROUTES)
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
OPERATIONS = [operation for path in DOCUMENT["paths"].values() for operation in path.values()]


def test_the_document_is_openapi_3_1() -> None:
    assert [str(error) for error in OPENAPI_31_VALIDATOR.iter_errors(DOCUMENT)] == []


def test_every_operation_has_a_name_of_its_own() -> None:
    names = Counter(operation["operationId"] for operation in OPERATIONS)

    assert len(names) == len(ROUTES)


def test_instants_are_told_as_such_and_cursors_are_not() -> None:
    run, page = SCHEMAS["RunView"]["properties"], SCHEMAS["ItemsDatetime"]["properties"]
    [wanted] = [it for it in OPERATIONS if it["operationId"] == "list_occurrences"]
    asked = {it["name"]: it["schema"].get("format") for it in wanted["parameters"]}

    assert run["created_at"] == {"type": "string", "format": "date-time"}
    assert run["run_at"]["anyOf"] == [{"type": "string", "format": "date-time"}, {"type": "null"}]
    assert page["items"]["items"]["format"] == "date-time"
    assert "date-time" not in str(page["cursor"])
    assert (asked["start"], asked["limit"]) == ("date-time", None)


def test_every_schema_has_a_title_of_its_own() -> None:
    assert [schema["title"] for schema in SCHEMAS.values()] == list(SCHEMAS)
    assert [name for name in SCHEMAS if not name.isalnum()] == []


def test_every_array_names_the_schema_of_its_items() -> None:
    arrays = [it for it in _schemas_in(DOCUMENT) if it.get("type") == "array"]

    assert [it for it in arrays if not isinstance(it.get("items"), dict)] == []


def test_a_fixed_tuple_accepts_each_of_its_places() -> None:
    pair = {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "items": False}

    simple = simplify({"components": {"schemas": {"Pair": pair}}})["components"]["schemas"]["Pair"]

    assert simple["items"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}


def test_operations_that_take_a_payload_announce_invalid_payloads() -> None:
    responses = {it["operationId"]: it["responses"] for it in OPERATIONS}

    for name in ("trigger_run", "retry_run", "replay_dead_letter", "create_schedule"):
        assert "invalid-payload" in responses[name]["422"]["description"]


def test_every_error_that_is_answered_is_a_documented_problem_type() -> None:
    kinds = [getattr(errors, name) for name in errors.__all__]
    answered = {slug_of(kind) for kind in kinds if status_of(kind) != 500}

    assert answered <= set(PROBLEM_STATUSES)
    assert PROBLEM_STATUSES["invalid-payload"] == 422


def _schemas_in(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _schemas_in(item)
