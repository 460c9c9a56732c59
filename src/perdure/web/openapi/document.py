"""The OpenAPI 3.1 document, made from the table of routes: it cannot say what is not so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import msgspec

from perdure.errors import InvalidInput, RunNotFound, StorageUnavailable
from perdure.storage.contract.wire_errors import PROTOCOL, PROTOCOL_HEADER
from perdure.web.models.requests import LONGEST_REASON
from perdure.web.openapi.schemas import Schema, simplify
from perdure.web.openapi.times import mark_instants
from perdure.web.operations.operation import ANY_KEY, Route
from perdure.web.problems import CONTENT_TYPE, PROBLEM_STATUSES, Problem, Refusal, slug_of

REFERENCE = "#/components/schemas/{name}"
KEY = {"type": "http", "scheme": "bearer", "bearerFormat": "pk_…"}

_DESCRIPTION = """\
Durable runs over HTTP. Errors are RFC 9457 problems; lists are pages whose `cursor` goes on where
they end; keys are shown as `Authorization: Bearer pk_…`."""

_INFO = {
    "title": "Perdure",
    "version": version("perdure"),
    "description": _DESCRIPTION,
    "license": {"name": "MIT", "identifier": "MIT"},
}

_COMMON = (
    Refusal.MALFORMED,
    Refusal.FOREIGN_ORIGIN,
    Refusal.FOREIGN_HOST,
    Refusal.RATE_LIMITED,
)
_OF_BODIES = (Refusal.BODY_TOO_LARGE, Refusal.BODY_TOO_SLOW, Refusal.MEDIA_TYPE)


@lru_cache(maxsize=2)
def document(routes: tuple[Route, ...]) -> bytes:
    """The document as JSON."""
    return msgspec.json.encode(describe(routes))


def describe(routes: Sequence[Route]) -> Schema:
    types = list(dict.fromkeys(_types(routes)))
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    known = dict(zip(types, schemas, strict=True))
    mark_instants(types, schemas, components)
    paths: dict[str, Schema] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, known)
    return simplify(
        {
            "openapi": "3.1.0",
            "info": _INFO,
            "paths": paths,
            "components": {"schemas": components, "securitySchemes": {"key": KEY}},
        }
    )


def problem_types(route: Route) -> dict[int, list[str]]:
    """Return the names of the problems that the route may answer with, by status."""
    kinds: list[str] = [*_COMMON, slug_of(StorageUnavailable)]
    if route.scope is not None:
        kinds += [Refusal.NOT_AUTHENTICATED, Refusal.SCOPE_MISSING]
    if route.body is not None:
        kinds += _OF_BODIES
    if route.speaks_protocol or "operation" in route.parameters:
        kinds.append(Refusal.PROTOCOL_MISMATCH)
    if route.takes_if_none_match or (route.names_run and route.method != "GET"):
        kinds.append(Refusal.STALE)
    if route.names_run:
        kinds.append(slug_of(RunNotFound))
    if route.query or route.body or route.parameters:
        kinds.append(slug_of(InvalidInput))
    kinds += map(slug_of, route.errors)
    found: dict[int, list[str]] = {}
    for kind in dict.fromkeys(kinds):
        found.setdefault(PROBLEM_STATUSES[kind], []).append(str(kind))
    return dict(sorted(found.items()))


def _types(routes: Sequence[Route]) -> Iterable[Any]:
    yield Problem
    for route in routes:
        yield from (kind for kind in (route.body, route.answer) if kind is not None)
        if route.query is not None:
            yield from (field.type for field in msgspec.structs.fields(route.query))


def _operation(route: Route, known: dict[Any, Schema]) -> Schema:
    operation: Schema = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.group],
        "parameters": [*_in_path(route), *_in_query(route, known), *_in_headers(route)],
        "responses": {**_successes(route, known), **_failures(route, known)},
        "security": _security(route),
    }
    if route.body is not None:
        content = {"application/json": {"schema": known[route.body]}}
        operation["requestBody"] = {"required": route.needs_body, "content": content}
    return operation


def _security(route: Route) -> list[Schema]:
    if route.scope is None:
        return []
    if route.scope == ANY_KEY:
        return [{"key": []}]
    scopes = route.scope if isinstance(route.scope, tuple) else (route.scope,)
    return [{"key": [str(scope)]} for scope in scopes]


def _successes(route: Route, known: dict[Any, Schema]) -> Schema:
    schema = {"type": "string"} if route.answer is None else known[route.answer]
    if route.answer is None and route.media_type == "application/json":
        schema = {"type": "object"}
    answer = {"description": "Done.", "content": {route.media_type: {"schema": schema}}}
    return {str(status): answer for status in (route.status, *route.also)}


def _failures(route: Route, known: dict[Any, Schema]) -> Schema:
    taken = (route.status, *route.also)
    return {
        str(status): {
            "description": f"Problem: {', '.join(kinds)}.",
            "content": {CONTENT_TYPE: {"schema": known[Problem]}},
        }
        for status, kinds in problem_types(route).items()
        if status not in taken
    }


def _in_path(route: Route) -> list[Schema]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _path_schema(name)}
        for name in route.parameters
    ]


def _path_schema(name: str) -> Schema:
    if name == "run_id":
        return {"type": "string", "pattern": "^run_[0-9a-f]{32}$"}
    return {"type": "string", "minLength": 1}


def _in_query(route: Route, known: dict[Any, Schema]) -> list[Schema]:
    fields = () if route.query is None else msgspec.structs.fields(route.query)
    return [
        {
            "name": field.name,
            "in": "query",
            "required": field.required,
            "schema": _given(known[field.type]),
        }
        for field in fields
    ]


def _given(schema: Schema) -> Schema:
    """A query cannot say null: what is not given is left out."""
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    return options[0] if len(options) == 1 else schema


def _in_headers(route: Route) -> list[Schema]:
    headers = []
    if route.takes_idempotency_key:
        headers.append(_header("Idempotency-Key", {"type": "string", "maxLength": 256}))
    if route.takes_trace_context:
        headers.append(_header("traceparent", {"type": "string"}))
        headers.append(_header("tracestate", {"type": "string"}))
    if route.takes_if_none_match:
        headers.append(_header("If-None-Match", {"type": "string", "enum": ["*"]}))
    if route.names_run and route.method != "GET":
        headers.append(_header("If-Match", {"type": "string", "pattern": '^"[0-9]{1,9}"$'}))
    if route.is_audited:
        headers.append(_header("X-Reason", {"type": "string", "maxLength": LONGEST_REASON}))
    if route.speaks_protocol:
        version = {"type": "string", "enum": [str(PROTOCOL)]}
        headers.append(_header(PROTOCOL_HEADER, version) | {"required": True})
    if route.media_type == "text/event-stream":
        headers.append(_header("Last-Event-ID", {"type": "string"}))
    return headers


def _header(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "header", "required": False, "schema": schema}
