"""The reference page of the HTTP API, made from its table of routes."""

from __future__ import annotations

from itertools import groupby

from perdure.web.openapi.document import problem_types
from perdure.web.operations.operation import Route
from perdure.web.operations.table import ROUTES
from perdure.web.problems import PROBLEM_STATUSES, URN
from scripts.reference_pages import page, table

ABOUT = """\
`perdure.web.operations.table` is the source of this page, of the routing, of the OpenAPI document
at `/openapi.json` and of the tests that walk every route with every scope. How to use it: [The HTTP
API](../http-api.md)."""


def http_routes() -> str:
    parts = [ABOUT]
    for group, routes in groupby(sorted(ROUTES, key=lambda it: it.group), lambda it: it.group):
        columns = ("route", "scope", "", "problems")
        parts += [f"## {group}", table(columns, map(_row, routes))]
    rows = [(f"`{URN}{slug}`", str(status)) for slug, status in sorted(PROBLEM_STATUSES.items())]
    parts += ["## Problems", table(("type", "status"), rows)]
    return page("HTTP routes", *parts)


def _row(route: Route) -> tuple[str, ...]:
    problems = ", ".join(str(status) for status in problem_types(route))
    scope = "everybody" if route.scope is None else route.wanted
    return f"`{route.method} {route.path}`", scope, route.summary, problems
