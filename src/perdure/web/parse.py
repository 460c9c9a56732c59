"""From a request to values: query strings and bodies, bounded in size and time, checked."""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from perdure.errors import InvalidInput
from perdure.web.body_errors import misfit, refuse_body
from perdure.web.models.requests import LONGEST_REASON
from perdure.web.operations.operation import Call, Route
from perdure.web.problems import Refusal, RequestRefused

REQUEST_BODY_TIMEOUT_S = 30.0
"""For a whole body."""
REQUEST_BODY_GRACE_S = 10.0
"""For the first bytes of a body. From then on it must come at `MIN_BODY_BYTES_PER_S`."""
MIN_BODY_BYTES_PER_S = 1024

_ETAG = re.compile(r'"([0-9]{1,9})"')
_JSON = re.compile(r"application/(?:[\w.-]+\+)?json\s*(?:;.*)?", re.IGNORECASE)

_SLASH = "\udc2f"
"""A slash within a name. Decoding never makes a lone surrogate, so nothing else looks like it."""


def is_ambiguous(scope: Scope) -> bool:
    """Whether the end of the body depends on who reads it. A proxy in front of this server might
    see another request in it."""
    names = {name for name, _ in scope["headers"]}
    if b"transfer-encoding" not in names:
        return False
    return b"content-length" in names or scope.get("http_version") == "1.0"


def routable(scope: Scope) -> Scope:
    """With a path whose names are whole: a server decodes `%2F` before a router could see that it
    is no end of a name."""
    raw, path = scope.get("raw_path") or b"", scope["path"]
    if b"%2f" not in raw.lower() or unquote(raw.decode("ascii", "replace")) != path:
        return scope
    names = [unquote(name).replace("/", _SLASH) for name in raw.decode().split("/")]
    return {**scope, "path": "/".join(names)}


def read_path(request: Request) -> dict[str, str]:
    """Return the names in a path. Raise InvalidInput for a name that no database stores."""
    return {
        name: _without_nul(text.replace(_SLASH, "/"), name)
        for name, text in request.path_params.items()
    }


def read_query(route: Route, request: Request) -> Any:
    """Raises InvalidInput. A parameter that comes twice is no list of two."""
    given: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in given:
            raise InvalidInput(name, "is given more than once")
        given[name] = _without_nul(value, name)
    try:
        return msgspec.convert(given, route.query, strict=False)
    except msgspec.ValidationError as error:
        raise misfit(error) from error


def _without_nul(text: str, field: str) -> str:
    """PostgreSQL has no text with that character."""
    if "\0" in text:
        raise InvalidInput(field, "must not hold the character NUL")
    return text


async def read_body(route: Route, request: Request, call: Call, most: int) -> Any:
    """Raises RequestRefused for what is no JSON, and InvalidInput for what is of another form."""
    body = await _receive(request, most)
    call.body_size = len(body)
    if not body:
        if route.needs_body:
            raise InvalidInput("body", "is missing; send a JSON object")
        return route.body()
    if _JSON.fullmatch(request.headers.get("content-type", "")) is None:
        raise RequestRefused(Refusal.MEDIA_TYPE, "send JSON, as Content-Type: application/json")
    return await call.offload(len(body), _decode, body, route.body)


def _decode(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        refuse_body(body, kind, error)
        raise misfit(error) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestRefused(Refusal.MALFORMED, f"the body is not JSON: {error}") from error
    except RecursionError:
        raise RequestRefused(Refusal.MALFORMED, "the body is nested too deeply") from None


async def _receive(request: Request, most: int) -> bytes:
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > most:
        raise _too_large(most)
    pieces: list[bytes] = []
    size = 0
    began = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(began + _body_timeout(0)) as deadline:
            async for piece in request.stream():
                size += len(piece)
                if size > most:
                    raise _too_large(most)
                pieces.append(piece)
                deadline.reschedule(began + _body_timeout(size))
    except TimeoutError:
        raise _too_slow() from None
    except ClientDisconnect:
        raise RequestRefused(Refusal.MALFORMED, "the body was cut off") from None
    return b"".join(pieces)


def _body_timeout(received: int) -> float:
    """Seconds in which a body must be complete, after so many bytes of it."""
    earned = REQUEST_BODY_GRACE_S + received / MIN_BODY_BYTES_PER_S
    return min(earned, REQUEST_BODY_TIMEOUT_S)


def read_sequence(header: str | None) -> int | None:
    """What `If-Match` names: the ETag of a run is its sequence. A star is any run there is."""
    if header is None or header.strip() == "*":
        return None
    found = _ETAG.fullmatch(header.strip())
    if found is None:
        raise InvalidInput("If-Match", f'must be the ETag of a run, e.g. "3", not {header!r:.80}')
    return int(found[1])


def read_if_none_match(header: str | None) -> bool:
    """Return whether the request may only make something new. Raise InvalidInput for an ETag."""
    if header is not None and header.strip() != "*":
        raise InvalidInput("If-None-Match", f"must be *, not {header!r:.80}")
    return header is not None


def read_reason(header: str | None) -> str | None:
    """What `X-Reason` says: percent-encoded, since a header is no place for every character."""
    reason = None if header is None else unquote(header)
    if reason is not None and len(reason) > LONGEST_REASON:
        raise InvalidInput("X-Reason", f"must have {LONGEST_REASON} characters at most")
    return reason


def _too_slow() -> RequestRefused:
    pace = (
        f"at {MIN_BODY_BYTES_PER_S} bytes/s or more, all of it within {REQUEST_BODY_TIMEOUT_S:g} s"
    )
    return RequestRefused(Refusal.BODY_TOO_SLOW, f"the body came too slowly; send it {pace}")


def _too_large(most: int) -> RequestRefused:
    return RequestRefused(Refusal.BODY_TOO_LARGE, f"the body has more than {most} bytes")
