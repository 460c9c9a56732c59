"""One post to an endpoint, signed, through the same guard as http tasks; and what it means.

Needs h11: imported only where something is to be sent.
"""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from perdure.core.webhook import Trouble
from perdure.engine.attempt.target_failure import TargetFailed
from perdure.engine.runtime.runtime import Runtime
from perdure.engine.runtime.secret import Allow, Secrets, only_in
from perdure.engine.targets.connection import checked_addresses, connect, resolve
from perdure.engine.targets.dependencies import Surroundings
from perdure.engine.targets.exchange import Request, exchange
from perdure.engine.targets.http import Sent, make_request
from perdure.engine.targets.http_result import Answer
from perdure.engine.webhooks.message import Message
from perdure.engine.webhooks.webhook import Delivery, DeliveryOutcome, Hook
from perdure.net.address_guard import allowed_networks
from perdure.telemetry import metrics, table
from perdure.telemetry.redactor import Redactor

GONE = 410
RESPONSE_LIMIT = 16 * 1024
MAX_INLINE_BYTES = 128 * 1024
"""Bytes of a payload and a result that are redacted within a callback of the event loop."""
SHOWN = 1000
"""So many characters of an answer are kept."""
MAX_ERROR_CHARS = 2000


class Posted(msgspec.Struct, frozen=True):
    """A post that was made, to be written down; with trouble, it was not taken."""

    delivery: Delivery
    trouble: Trouble | None = None


class Poster:
    """Posts what an app has to tell."""

    def __init__(self, runtime: Runtime) -> None:
        defaults = runtime.defaults
        self._runtime = runtime
        self._timeout = defaults.webhook_timeout.total_seconds()
        self._registry = runtime.registry
        self._around = Surroundings(
            clock=runtime.clock,
            result_limit=defaults.result_limit,
            allowed=allowed_networks(defaults.http_allow),
            app_redactor=runtime.redactor,
        )

    async def post(self, hook: Hook, message: Message) -> Posted:
        """Whatever happens, it is told and not raised."""
        began, at = self._runtime.clock.elapsed(), self._runtime.now()
        secrets = Secrets(os.environ, self._allow_secrets(hook))
        status, response, trouble = await self._outcome(hook, message, secrets)
        seconds = self._runtime.clock.elapsed() - began
        outcome = DeliveryOutcome.FAILED if trouble else DeliveryOutcome.DELIVERED
        self._count(message, outcome, seconds)
        return Posted(
            Delivery(
                number=0,
                at=at,
                outcome=outcome,
                message_id=message.id,
                event=message.event,
                run_id=message.run_id,
                sequence=message.sequence,
                cursor=message.cursor,
                status=status,
                seconds=round(seconds, 4),
                error=None if trouble is None else trouble.why,
                response=response,
            ),
            trouble,
        )

    def _allow_secrets(self, hook: Hook) -> Allow:
        """Those of the webhook's environment: a server sends for tenants that must not have each
        other's."""
        patterns, home = self._runtime.defaults.webhook_secrets, self._runtime.home_environment
        return only_in(patterns, "webhook_secrets", hook.environment, home)

    async def _outcome(
        self, hook: Hook, message: Message, secrets: Secrets
    ) -> tuple[int | None, str | None, Trouble | None]:
        answer: Answer | None = None
        trouble: Trouble | None = None
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._exchange(hook, message, secrets)
            answer.check(self._runtime.clock.now())
        except TargetFailed as error:
            gone = (error.details or {}).get("status") == GONE
            trouble = Trouble(why=str(error), retry_after=error.retry_after, is_gone=gone)
        except TimeoutError:
            trouble = Trouble(why=f"no answer within {self._timeout:g} s")
        except Exception as error:  # noqa: BLE001  # a bug; it must not hold up the others for ever
            table.SERVICE_FAILED.say_with_error(service=type(self).__name__)
            trouble = Trouble(why=f"{type(error).__name__} in the sender; its log tells more")
        redactor = self._around.redactor(secrets)
        kept = {} if answer is None else _kept(answer, redactor)
        if trouble is not None:
            trouble = replace(trouble, why=redactor.shorten(trouble.why, MAX_ERROR_CHARS))
        return kept.get("status"), kept.get("body"), trouble

    async def _exchange(self, hook: Hook, message: Message, secrets: Secrets) -> Answer:
        asked = await self._request(hook, message, secrets)
        addresses = await checked_addresses(asked.endpoint, self._around.allowed, resolve)
        streams = await connect(asked.endpoint, addresses)
        response = await exchange(streams, asked, RESPONSE_LIMIT, on_first_byte=_nothing)
        return Answer(response, asked.endpoint, secrets.mask())

    async def _request(self, hook: Hook, message: Message, secrets: Secrets) -> Request:
        about = {
            "perdure-event": message.event,
            "perdure-webhook": quote(hook.name, safe="/:@ "),
            "idempotency-key": message.id,
        }
        body = await self._body(hook, message)
        timestamp = int(self._runtime.clock.now().timestamp())
        return make_request(hook.target, secrets, Sent(message.id, timestamp, body, about))

    async def _body(self, hook: Hook, message: Message) -> bytes:
        """Redacting megabytes takes seconds: that leaves the event loop."""
        redactor = self._runtime.redactor
        if message.size(hook) <= MAX_INLINE_BYTES:
            return message.body(hook, redactor)
        return await asyncio.to_thread(message.body, hook, redactor)

    def _count(self, message: Message, outcome: DeliveryOutcome, seconds: float) -> None:
        registry, labels = self._registry, (outcome.value,)
        registry.counter(metrics.WEBHOOK_POSTS).add(1, labels)
        registry.histogram(metrics.WEBHOOK_SECONDS).observe(seconds, labels)
        if outcome is DeliveryOutcome.DELIVERED and message.run is not None:
            lag = max(self._runtime.now() - message.occurred_at, timedelta(0))
            registry.histogram(metrics.WEBHOOK_LAG_SECONDS).observe(lag.total_seconds())


def _kept(answer: Answer, redactor: Redactor) -> dict[str, Any]:
    output = answer.output(redactor)
    body = output.get("body")
    return {"status": output.get("status"), "body": body[:SHOWN] if body else None}


def _nothing() -> None:
    """The first byte of an answer is nobody's business here."""
