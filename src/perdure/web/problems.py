"""Errors as RFC 9457 problems: one table from our error classes to statuses.

A problem's `type` is `urn:perdure:problem:` and the name of the error, which is stable. The text
of an error that is not ours, or of a database, is only in the log, under the request id.
"""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from perdure import errors as e
from perdure.storage.contract.wire_errors import ErrorTold, error_told
from perdure.telemetry import table
from perdure.telemetry.redactor import Redactor

URN = "urn:perdure:problem:"
CONTENT_TYPE = "application/problem+json"


class Refusal(StrEnum):
    """Why a request is not even looked at. Values are slugs."""

    MALFORMED = "malformed-request"
    NOT_AUTHENTICATED = "not-authenticated"
    KEY_ROTATED = "key-rotated"
    KEY_REVOKED = "key-revoked"
    KEY_EXPIRED = "key-expired"
    SCOPE_MISSING = "scope-missing"
    FOREIGN_ORIGIN = "foreign-origin"
    FOREIGN_HOST = "foreign-host"
    NO_ROUTE = "no-such-route"
    METHOD_NOT_ALLOWED = "method-not-allowed"
    BODY_TOO_SLOW = "body-too-slow"
    MORE_THAN_EXPECTED = "more-than-expected"
    STALE = "precondition-failed"
    BODY_TOO_LARGE = "body-too-large"
    MEDIA_TYPE = "unsupported-media-type"
    RATE_LIMITED = "rate-limited"
    TOO_MANY_STREAMS = "too-many-streams"
    TOO_MANY_REQUESTS = "too-many-requests"
    TOO_MANY_CONNECTIONS = "too-many-connections"
    PROTOCOL_MISMATCH = "protocol-mismatch"
    INTERNAL = "internal-error"


class RequestRefused(e.PerdureError):
    """The server does not take the request as it is; `kind` says why."""

    def __init__(self, kind: Refusal, problem: str, retry_after: float | None = None) -> None:
        super().__init__(kind, problem, retry_after)
        self.kind = kind
        self.problem = problem
        self.retry_after = retry_after

    def __str__(self) -> str:
        return self.problem


REFUSALS: dict[str, int] = {
    Refusal.MALFORMED: 400,
    Refusal.NOT_AUTHENTICATED: 401,
    Refusal.KEY_ROTATED: 401,
    Refusal.KEY_REVOKED: 401,
    Refusal.KEY_EXPIRED: 401,
    Refusal.SCOPE_MISSING: 403,
    Refusal.FOREIGN_ORIGIN: 403,
    Refusal.FOREIGN_HOST: 421,
    Refusal.NO_ROUTE: 404,
    Refusal.METHOD_NOT_ALLOWED: 405,
    Refusal.BODY_TOO_SLOW: 408,
    Refusal.MORE_THAN_EXPECTED: 409,
    Refusal.STALE: 412,
    Refusal.BODY_TOO_LARGE: 413,
    Refusal.MEDIA_TYPE: 415,
    Refusal.RATE_LIMITED: 429,
    Refusal.TOO_MANY_STREAMS: 503,
    Refusal.TOO_MANY_REQUESTS: 503,
    Refusal.TOO_MANY_CONNECTIONS: 503,
    Refusal.PROTOCOL_MISMATCH: 410,
    Refusal.INTERNAL: 500,
}

STATUSES: dict[type[e.PerdureError], int] = {
    e.PayloadTooLarge: 413,
    e.InvalidInput: 422,
    e.AccessRefused: 403,
    e.RunNotFound: 404,
    e.TaskNotFound: 404,
    e.QueueNotFound: 404,
    e.ScheduleNotFound: 404,
    e.KeyNotFound: 404,
    e.WebhookNotFound: 404,
    e.WorkerNotFound: 404,
    e.NotAllowed: 409,
    e.SequenceConflict: 409,
    e.ScheduleExists: 409,
    e.ScheduleConflict: 409,
    e.IdempotencyConflict: 409,
    e.SingletonConflict: 409,
    e.UnreadableHistory: 409,
    e.StorageUnavailable: 503,
    e.SchemaMismatch: 503,
}
"""The nearest base class counts; what has none here is a 500."""

PRIVATE = (e.StorageUnavailable, e.StorageRefused)
"""Errors whose text may be a database's: hosts, paths, statements and stored values."""

RETRY_AFTER = 1.0
_CALL = re.compile(r"\bapp\.(queues|schedules|webhooks|workers)\.list\(\)")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


class FieldProblem(msgspec.Struct, frozen=True):
    """What is wrong with one field of the request."""

    field: str
    message: str


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """RFC 9457. `raised`: the error itself, to be raised again where Perdure asked."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str = ""
    errors: tuple[FieldProblem, ...] = ()
    raised: ErrorTold | None = None


def status_of(kind: type[e.PerdureError]) -> int:
    found = next((STATUSES[base] for base in kind.__mro__ if base in STATUSES), 500)
    return found


def _problem_statuses() -> dict[str, int]:
    kinds = [getattr(e, name) for name in e.__all__]
    found = {slug_of(kind): status_of(kind) for kind in kinds}
    return {slug: status for slug, status in found.items() if status != 500} | REFUSALS


def problem_of(error: Exception, request_id: str) -> Problem:
    """What a client is told. Never a traceback, never the text of an error that is not ours."""
    if isinstance(error, RequestRefused):
        return _problem(error.kind, REFUSALS[error.kind], str(error), request_id)
    if not isinstance(error, e.PerdureError):
        detail = f"something went wrong; the server's log tells what, under {request_id}"
        return _problem(Refusal.INTERNAL, 500, detail, request_id)
    fields: tuple[FieldProblem, ...] = ()
    if isinstance(error, PRIVATE):
        detail = describe_storage_error(error, request_id)
        return _problem(slug_of(type(error)), status_of(type(error)), detail, request_id)
    if isinstance(error, e.InvalidInput):
        fields = tuple(FieldProblem(it.field, it.problem) for it in (error, *error.others))
    slug, status = slug_of(type(error)), status_of(type(error))
    more = f" (and {len(fields) - 1} more: see errors)" if len(fields) > 1 else ""
    return _problem(slug, status, _over_http(str(error)) + more, request_id, fields)


def log_problem(error: Exception, request_id: str) -> None:
    """Log what a response does not say."""
    if isinstance(error, PRIVATE):
        table.REQUEST_STORAGE_ERROR.say(request_id=request_id, error=str(error))
    elif not isinstance(error, e.PerdureError):
        table.REQUEST_FAILED.say_with_error(request_id=request_id)


def describe_storage_error(error: e.StorageError, request_id: str) -> str:
    """What a client may know of it."""
    where = f"the server's log says why, under {request_id}"
    if isinstance(error, e.StorageUnavailable):
        return f"the storage cannot do this now; try again; {where}"
    return f"the storage refused this; {where}"


def _over_http(message: str) -> str:
    """Return the message with routes and fields in the place of Python calls."""
    message = message.replace("or use again=True", 'or send "again": true')
    return _CALL.sub(r"GET /v1/\1", message)


def retry_after(error: Exception) -> float | None:
    """Seconds, where it makes sense to come again."""
    if isinstance(error, RequestRefused):
        return error.retry_after
    return RETRY_AFTER if isinstance(error, e.StorageUnavailable) else None


def slug_of(kind: type[Exception]) -> str:
    return _CAMEL.sub("-", kind.__name__).lower()


PROBLEM_STATUSES = _problem_statuses()
"""The status of every problem type, by its name. Other errors are answered with status 500."""


def with_error(problem: Problem, error: BaseException | None) -> Problem:
    """For clients that are Perdure themselves: the error, too, or what made us refuse."""
    cause = error.__cause__ if isinstance(error, RequestRefused) else error
    if not isinstance(cause, e.PerdureError):
        return problem
    if isinstance(cause, PRIVATE):
        cause = type(cause)(problem.detail)
    return replace(problem, raised=error_told(cause))


def redact_problem(problem: Problem, redactor: Redactor) -> Problem:
    """The same problem without secrets: it may quote what a request said."""
    raised = problem.raised
    if raised is not None:
        arguments = (redactor.text(it) if isinstance(it, str) else it for it in raised.arguments)
        raised = replace(raised, arguments=tuple(arguments))
    return replace(
        problem,
        detail=redactor.text(problem.detail),
        errors=tuple(
            FieldProblem(redactor.text(it.field), redactor.text(it.message))
            for it in problem.errors
        ),
        raised=raised,
    )


def _problem(
    slug: str, status: int, detail: str, request_id: str, errors: tuple[FieldProblem, ...] = ()
) -> Problem:
    return Problem(
        type=f"{URN}{slug}",
        title=slug.replace("-", " ").capitalize(),
        status=status,
        detail=detail,
        request_id=request_id,
        errors=errors,
    )
