"""Carries out an attempt of an http task: one signed request, and what its answer means."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

import msgspec

from perdure.core.run.run import Run
from perdure.engine.attempt.context import Context
from perdure.engine.attempt.target_failure import TargetFailed
from perdure.engine.observability.tracing import current_carrier
from perdure.engine.runtime.secret import SecretNotHad, Secrets
from perdure.engine.targets.connection import Resolve, checked_addresses, connect, resolve
from perdure.engine.targets.dependencies import Surroundings
from perdure.engine.targets.exchange import Request, exchange
from perdure.engine.targets.http_result import Answer
from perdure.engine.targets.timing import Laps
from perdure.engine.tasks.target import HttpTarget, check_header_text
from perdure.errors import InvalidInput
from perdure.net.signing import BadSigningSecret, signed
from perdure.net.url import read_url

WITHOUT_BODY = ("GET", "HEAD", "OPTIONS")
_ACCEPT = "application/json, text/plain;q=0.9, */*;q=0.1"


async def request(
    target: HttpTarget,
    ctx: Context,
    around: Surroundings,
    secrets: Secrets,
    resolve: Resolve = resolve,
) -> Any:
    """The result. Raises TargetFailed; what was seen is left in the context, also then."""
    asked = prepare(target, ctx, secrets, int(around.clock.now().timestamp()))
    laps = Laps(ctx.timings)
    addresses = await checked_addresses(asked.endpoint, around.allowed, resolve)
    laps.end("resolve")
    streams = await connect(asked.endpoint, addresses)
    laps.end("connect")
    response = await exchange(
        streams, asked, target.response_limit, on_first_byte=lambda: laps.end("first_byte")
    )
    laps.end("transfer")
    answer = Answer(response, asked.endpoint, secrets.mask())
    try:
        answer.check(around.clock.now())
        return answer.result(around.result_limit, truncate=target.truncate)
    finally:
        ctx.output = answer.output(around.redactor(secrets))


def prepare(target: HttpTarget, ctx: Context, secrets: Secrets, timestamp: int) -> Request:
    """Raises TargetFailed if a secret cannot be had or used."""
    body = None if target.method in WITHOUT_BODY else bytes(ctx.run.payload_json)
    return make_request(target, secrets, Sent(ctx.run.id, timestamp, body, about(ctx)))


class Sent(msgspec.Struct, frozen=True):
    """What a request carries besides what its target says."""

    id: str
    timestamp: int
    body: bytes | None
    about: dict[str, str]


def make_request(target: HttpTarget, secrets: Secrets, sent: Sent) -> Request:
    """Raises TargetFailed if a secret cannot be had or used."""
    endpoint = read_url(target.url)
    secrets.know_query(endpoint.path)
    try:
        keys = [secrets.value(key) for key in target.signing_secrets]
        own = {
            name.lower(): check_header_text(secrets.named_value(name, value), f"headers.{name}")
            for name, value in target.headers.items()
        }
        signature = signed(keys, sent.id, sent.timestamp, sent.body or b"")
    except (SecretNotHad, BadSigningSecret, InvalidInput) as error:
        raise TargetFailed("SecretNotUsable", str(error)) from None
    headers = {
        **_standard(endpoint.authority, sent.body),
        **own,
        **sent.about,
        **(signature if keys else {}),
    }
    return Request(target.method, endpoint, list(headers.items()), sent.body)


def about(ctx: Context) -> dict[str, str]:
    """Which attempt asks. The idempotency key is the same in all attempts of a run."""
    return {
        "perdure-run-id": ctx.run.id,
        "perdure-task": quote(ctx.run.task, safe="/:@ "),
        "perdure-attempt": str(ctx.attempt),
        "perdure-fence": str(ctx.fence),
        "idempotency-key": ctx.idempotency_key(ctx.run.task),
        **carrier_of(ctx.run),
    }


def carrier_of(run: Run) -> dict[str, str]:
    """The attempt's span if there is one, else what the trigger left."""
    carrier = current_carrier() or run.trace_carrier or {}
    return {name: value for name, value in carrier.items() if _is_fit(name, value)}


def _is_fit(name: str, value: str) -> bool:
    return name in ("traceparent", "tracestate") and value.isascii() and value.isprintable()


@cache
def _who() -> str:
    return f"perdure/{version('perdure')}"


def _standard(authority: str, body: bytes | None) -> dict[str, str]:
    headers = {
        "host": authority,
        "user-agent": _who(),
        "accept": _ACCEPT,
        "accept-encoding": "identity",
        "connection": "close",
    }
    if body is not None:
        headers |= {"content-type": "application/json", "content-length": str(len(body))}
    return headers
