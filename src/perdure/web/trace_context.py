"""The W3C trace context of a request."""

from __future__ import annotations

import re

from starlette.datastructures import Headers

MAX_TRACESTATE = 512
"""Characters. The standard asks for no more to be passed on."""

_TRACEPARENT = re.compile(
    r"(?P<version>(?!ff)[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})"
    r"-(?P<span>(?!0{16})[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<rest>-.*)?"
)
_TRACESTATE = re.compile(rf"[\x20-\x7e]{{1,{MAX_TRACESTATE}}}")


def read_trace_context(headers: Headers) -> dict[str, str] | None:
    """Return the span that the request belongs to, as a carrier. As the standard demands, a
    `traceparent` that is not valid is ignored."""
    given = headers.getlist("traceparent")
    found = _TRACEPARENT.fullmatch(given[0].strip()) if len(given) == 1 else None
    if found is None or (found["version"] == "00" and found["rest"]):
        return None
    carrier = {"traceparent": f"00-{found['trace']}-{found['span']}-{found['flags']}"}
    state = ",".join(headers.getlist("tracestate"))
    return carrier | ({"tracestate": state} if _TRACESTATE.fullmatch(state) else {})
