"""Clients that send any request that their keys open. No answer may be a server error."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import combinations
from random import Random

import httpx
import msgspec

from attack.building import STREAM, AttackRequest, Builder
from attack.knowledge import Knowledge, Victim
from perdure.engine.protocol.operations import OPERATIONS
from perdure.engine.protocol.scope import Scope
from perdure.storage.contract.wire_errors import PROTOCOL, PROTOCOL_HEADER
from perdure.web.operations.operation import Route
from perdure.web.operations.table import ROUTES
from remote_kit import World
from waiting import MAX_WAIT_S

REPEATED = 0.08
"""The share of requests that are sent again as they were."""
UNOPENED = 0.05
"""The share of requests to routes that the key does not open."""
MAX_SHOWN = 8
BURST = 4
"""Requests that an attacker sends at the same time."""
TENANT_SCOPES: tuple[tuple[str, ...], ...] = (
    *((scope,) for scope in Scope),
    *combinations(Scope, 2),
    tuple(Scope),
)
"""Each scope alone, each pair, and all of them."""
WORKER_SCOPES: tuple[tuple[str, ...], ...] = (("work", "trigger"),)


OFTEN = {
    f"worker_{name}"
    for name in ("claim", "declare", "heartbeat", "log", "report", "return_claims", "trigger")
}
"""Routes that are attacked three times as often as others."""
BATCHES = {name: OPERATIONS[name].request for name in ("trigger", "report")}
"""Operations whose items are refused one by one."""


class AttackFound(AssertionError):
    """The attack reached something that it must not."""


class _Key(msgspec.Struct, frozen=True):
    text: str
    worker_id: str
    routes: tuple[Route, ...]


class Attacker:
    """Sends seeded requests with its keys. `last`: those sent last, with their answers."""

    def __init__(
        self, rng: Random, address: str, client: httpx.AsyncClient, keys: Sequence[_Key],
        knowledge: Knowledge,
    ) -> None:  # fmt: skip
        self._rng = rng
        self._address = address
        self._client = client
        self._keys = keys
        self.knowledge = knowledge
        self._builder = Builder(rng, knowledge)
        self._sent: deque[tuple[_Key, AttackRequest]] = deque(maxlen=50)
        self.last: deque[str] = deque(maxlen=MAX_SHOWN)
        self.statuses: Counter[int] = Counter()
        self.key_ids = [key.text.split("_")[1] for key in keys]
        self.secrets: set[bytes] = set()
        """Texts of the honest tenant that no answer may hold."""

    async def register(self) -> None:
        """Register workers and tasks, as far as the keys allow."""
        for key in self._keys:
            self.knowledge.worker_id = key.worker_id
            for request in self._builder.registration():
                await self._send(key, request)

    async def send(self, count: int) -> None:
        """Send so many requests, several at a time. Raise AttackFound for a server error."""
        for first in range(0, count, BURST):
            picked = [self._pick() for _ in range(min(BURST, count - first))]
            await asyncio.gather(*(self._send(key, request) for key, request in picked))

    def _pick(self) -> tuple[_Key, AttackRequest]:
        if self._sent and self._rng.random() < REPEATED:
            return self._rng.choice(self._sent)
        key = self._rng.choice(self._keys)
        self.knowledge.worker_id = key.worker_id
        opened = key.routes if self._rng.random() >= UNOPENED else ROUTES
        sent = key, self._builder.request(self._rng.choice(opened))
        self._sent.append(sent)
        return sent

    async def _send(self, key: _Key, request: AttackRequest) -> None:
        headers = {**request.headers, "authorization": f"Bearer {key.text}"}
        url = f"{self._address}{request.path}"
        sent = self._client.build_request(
            request.method, url, content=request.body, headers=headers
        )
        answer = await self._client.send(sent, stream=True)
        try:
            if request.operation != STREAM or answer.status_code >= 400:
                await answer.aread()
        finally:
            await answer.aclose()
        self._judge(request, answer)

    def _judge(self, request: AttackRequest, answer: httpx.Response) -> None:
        status = answer.status_code
        self.statuses[status] += 1
        self.last.append(f"{status} for {str(request)[:400]}")
        is_share = status == 503 and "retry-after" in answer.headers
        if not (200 <= status < 500 or is_share):
            raise AttackFound(f"{status} {answer.text[:1000]} for {request}")
        if not answer.is_stream_consumed:
            return
        if status not in (200, 403, 429) and not is_share and _has_items(request):
            raise AttackFound(f"{status} for a whole batch: {answer.text[:1000]} for {request}")
        told = [it for it in self.secrets if it in answer.content and it not in _sent_text(request)]
        if told:
            raise AttackFound(f"the answer {answer.text[:1000]} holds {told} for {request}")
        if status < 300 and answer.content[:1] == b"{":
            self.knowledge.learn(request.operation, msgspec.json.decode(answer.content))


class Credential(msgspec.Struct, frozen=True):
    """A key that was handed to the attacker."""

    text: str
    scopes: tuple[str, ...]


async def make_credentials(
    world: World, environment: str, scopes: Sequence[tuple[str, ...]]
) -> list[Credential]:
    """Create a key with each of these sets of scopes."""
    return [Credential(await world.key(*each, environment=environment), each) for each in scopes]


@asynccontextmanager
async def attacker_at(
    address: str, seed: int, victim: Victim, environment: str, credentials: Sequence[Credential]
) -> AsyncIterator[Attacker]:
    """An attacker that has these keys, and has registered its workers and tasks."""
    rng = Random(seed)
    keys = [
        _Key(it.text, f"worker_{rng.getrandbits(64):016x}", _opened(it.scopes))
        for it in credentials
    ]
    limits = httpx.Limits(max_connections=2 * BURST)
    async with httpx.AsyncClient(timeout=MAX_WAIT_S, limits=limits) as client:
        made = Attacker(rng, address, client, keys, Knowledge(rng, victim, environment))
        await made.register()
        yield made


def _has_items(request: AttackRequest) -> bool:
    """Whether the server must answer each item of the request by itself."""
    type_ = BATCHES.get(request.operation)
    if type_ is None or request.headers.get(PROTOCOL_HEADER) != str(PROTOCOL):
        return False
    try:
        msgspec.json.decode(request.body or b"", type=type_)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return True


def _sent_text(request: AttackRequest) -> bytes:
    return request.path.encode() + (request.body or b"")


def _opened(scopes: Sequence[str]) -> tuple[Route, ...]:
    """The routes that a key with these scopes may call; some several times."""
    own = frozenset(Scope(scope) for scope in scopes)
    opened = [route for route in ROUTES if route.scope is not None and route.admits(own)]
    often = [route for route in opened if route.name in OFTEN]
    return (*opened, *often, *often)
