"""What a response means for its run: success and its result, another try, or the end of it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from perdure.core.json_text import check_text, decode_value, encode_value
from perdure.engine.attempt.target_failure import TargetFailed
from perdure.engine.targets.exchange import Response
from perdure.engine.targets.marked_result import keep_beginning, mark_truncated
from perdure.engine.targets.output_capture import decode_beginning
from perdure.errors import InvalidInput, PayloadTooLarge
from perdure.net.url import Endpoint
from perdure.telemetry.redactor import OVERLAP_CHARS, Mask, Redactor

TRY_AGAIN = (408, 425, 429)
LONGEST_WAIT = timedelta(days=1)
"""An endpoint may ask for patience, not for oblivion."""
SHOWN = 16 * 1024
"""So much of a body is kept with the attempt; the result may be longer."""

_KEPT = ("content-encoding", "content-length", "content-type", "date", "retry-after", "server")
_KEPT_IDS = ("request-id", "x-request-id", "x-correlation-id", "x-amzn-trace-id", "cf-ray")
_JSON = re.compile(r"application/(json|[\w.+-]+\+json)\s*(;|$)", re.IGNORECASE)
_SECONDS = re.compile(r"[0-9]{1,10}")


class Answer:
    """A response with its secrets hidden."""

    def __init__(self, response: Response, endpoint: Endpoint, mask: Mask) -> None:
        self._response = response
        self._endpoint = endpoint
        self._mask = mask
        self.left_out: str | None = None
        self._text = self._read()

    def output(self, redactor: Redactor) -> dict[str, Any]:
        """What is kept with the attempt."""
        headers = self._response.headers
        output = {
            "status": self._response.status,
            "headers": {n: headers[n] for n in (*_KEPT, *_KEPT_IDS) if n in headers},
            "body": self._body(redactor),
            "bytes": len(self._response.body),
            "truncated": self._response.is_truncated or len(self._text) > SHOWN,
        }
        if self.left_out is not None:
            output["left_out"] = self.left_out
        return redactor.fields(output)

    def _body(self, redactor: Redactor) -> str:
        body = (self._response.body + self._response.beyond).decode("utf-8", "replace")
        kept = body[: SHOWN + OVERLAP_CHARS]
        is_cut = self._response.is_truncated or len(kept) < len(body)
        shown = redactor.head(kept) if is_cut else redactor.text(kept)
        return shown[: min(SHOWN, len(self._text))]

    def result(self, limit: int, *, truncate: bool) -> Any:
        """Return JSON if it is said to be and is, else text; None if there is nothing, or nothing
        that can be kept: the request has succeeded all the same. A body that is too long is a
        failure, or with `truncate` a marked beginning. Raise TargetFailed."""
        if self._response.is_truncated:
            problem = f"it is longer than {len(self._response.body)} bytes; raise response_limit"
            return self._shortened(problem, limit, truncate)
        value = self._value(limit)
        try:
            encode_value(value, field="result", limit=limit)
        except PayloadTooLarge as error:
            return self._shortened(error.problem, limit, truncate)
        except InvalidInput as error:
            self.left_out = str(error)
            return None
        return value

    def _shortened(self, problem: str, limit: int, truncate: bool) -> dict[str, Any]:
        if not truncate:
            advice = "or set truncate=True to keep its beginning"
            message = f"the answer of {self._endpoint.shown} is too long: {problem}, {advice}"
            raise TargetFailed("ResponseTooLarge", message, retryable=False)
        return mark_truncated(self._text, limit, keep_beginning)

    def check(self, now: datetime) -> None:
        """Raises TargetFailed unless it is a success."""
        status = self._response.status
        if 200 <= status < 300:
            return
        message = f"{self._endpoint.shown} answered {status}"
        details = {"status": status}
        if status in TRY_AGAIN or status >= 500:
            after = retry_after(self._response.headers.get("retry-after"), now)
            raise TargetFailed(f"Http{status}", message, retry_after=after, details=details)
        if 300 <= status < 400:
            message += ", and redirects are not followed: give the address it leads to"
        raise TargetFailed(f"Http{status}", message, retryable=False, details=details)

    def _read(self) -> str:
        encoding = self._response.headers.get("content-encoding", "identity").strip().lower()
        if encoding != "identity":
            # Asked for none. What a few bytes would unpack to, nobody knows before.
            self.left_out = f"the body: it is encoded ({encoding[:40]}), which was not asked for"
            return ""
        if self._response.is_truncated:
            return self._mask.head(decode_beginning(self._response.body))
        return self._mask.text(self._response.body.decode("utf-8", "replace"))

    def _value(self, limit: int) -> Any:
        kind = self._response.headers.get("content-type", "")
        if _JSON.match(kind):
            try:
                return decode_value(check_text(self._text.encode(), field="result", limit=limit))
            except InvalidInput:
                pass
        return self._text or None


def retry_after(said: str | None, now: datetime) -> timedelta | None:
    """Seconds or a date, as a header says it; none if it says neither."""
    if said is None:
        return None
    if _SECONDS.fullmatch(said.strip()):
        return min(timedelta(seconds=int(said)), LONGEST_WAIT)
    try:
        instant = parsedate_to_datetime(said)
        aware = instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
        return min(max(aware - now, timedelta(0)), LONGEST_WAIT)
    except (TypeError, ValueError, OverflowError, IndexError):
        return None
