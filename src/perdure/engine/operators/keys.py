"""API keys: who may do what in which environment, until when.

A key's record holds hashes only. It may have several secrets at a time, which is how a rotation
overlaps. Revoked and expired keys stay known, so that a database that has ever had a key does not
open itself by losing its last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec.structs import replace

from perdure.core.json_text import Instant, check_label
from perdure.core.run.run import Actor, ActorType
from perdure.engine.operators.credential import Credential, hash_secret, make_credential, same
from perdure.engine.protocol.scope import Scope
from perdure.engine.runtime.input import (
    OPERATOR,
    By,
    Duration,
    actor_of,
    choice,
    duration,
    some_time,
)
from perdure.engine.runtime.keywords import explain_methods
from perdure.engine.runtime.runtime import Runtime
from perdure.engine.tasks.catalogue import MOST_CONFLICTS
from perdure.errors import AccessRefused, InvalidInput, KeyNotFound, StorageUnavailable
from perdure.storage.contract.runs import Record
from perdure.storage.contract.storage import Storage
from perdure.telemetry import table

KEY = "key"
HOME = ""
"""Keys of all environments are kept together, where no environment can be."""

OVERLAP = timedelta(hours=24)
MAX_VALID_SECRETS = 10
"""Secrets of one key that may be valid at the same time, because their overlaps are not over."""
MAX_ENDED_SECRETS = 10
"""Secrets that are kept after their end, so that a client that shows one learns of the rotation."""
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
MAX_KEYS = 2000
"""Keys of an environment, with those that have ended, after which a key creates no other one."""


class Secret(msgspec.Struct, frozen=True, kw_only=True):
    """One secret of a key, as it is kept. `replaced_at` and `replaced_by` tell of the rotation
    that ended it, at once or after an overlap. `is_ended` holds on servers whose clocks are behind,
    too."""

    hash: str
    made_at: Instant
    ends_at: Instant | None = None
    is_ended: bool = False
    replaced_at: Instant | None = None
    replaced_by: Actor | None = None

    def is_good(self, now: datetime) -> bool:
        return not self.is_ended and (self.ends_at is None or now < self.ends_at)


NOBODYS = (Secret(hash=hash_secret(""), made_at=LONG_AGO, ends_at=LONG_AGO),)
"""What an unknown key is compared with, so that it takes as long as a known one."""


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key, without what would let anybody use it."""

    id: str
    name: str
    environment: str
    scopes: tuple[Scope, ...]
    created_at: Instant
    created_by: Actor
    expires_at: Instant | None = None
    revoked_at: Instant | None = None
    revoked_by: Actor | None = None
    rotated_at: Instant | None = None
    rotated_by: Actor | None = None
    last_used_at: Instant | None = None
    secrets: tuple[Secret, ...] = ()
    version: int = 0

    @property
    def actor(self) -> Actor:
        return Actor(ActorType.OPERATOR, f"{self.name} ({self.id})")

    def is_valid(self, now: datetime) -> bool:
        ended = self.expires_at is not None and self.expires_at <= now
        return self.revoked_at is None and not ended


class NewKey(msgspec.Struct, frozen=True):
    """A key and its text, which nobody can be told again."""

    key: ApiKey
    text: str


class Grantor(msgspec.Struct, frozen=True, kw_only=True):
    """An authenticated caller that manages keys. It sees those of its environment, and hands out
    the text of none that may do more, or longer, than the caller itself."""

    id: str
    environment: str
    scopes: frozenset[Scope]
    expires_at: datetime | None = None

    def check(self, key: ApiKey) -> None:
        """Raise AccessRefused if the caller may not receive the text of this key."""
        if key.environment != self.environment:
            raise AccessRefused(f"a key gives none of the environment {key.environment!r:.80}")
        wider = ", ".join(sorted(set(key.scopes) - self.scopes))
        if wider:
            raise AccessRefused(f"a key gives no key that may do more than itself: {wider}")
        if self._is_outlived_by(key):
            problem = f"a key gives no key that outlives itself: it ends at {self.expires_at}"
            raise AccessRefused(f"{problem}; give an expires_in that ends before")

    def _is_outlived_by(self, key: ApiKey) -> bool:
        if self.expires_at is None or key.id == self.id:
            return False
        return key.expires_at is None or key.expires_at > self.expires_at


@explain_methods
class Keys:
    """The keys of one environment; those of another do not exist here. A `grantor` is bound to its
    own. Without one the caller has the database itself, and may do everything, also create a key
    for another environment by its name."""

    def __init__(self, runtime: Runtime, grantor: Grantor | None = None) -> None:
        self._runtime = runtime
        self._grantor = grantor

    async def list(self) -> Sequence[ApiKey]:
        """All of them, revoked ones too, oldest first."""
        return sorted((await self._read()).values(), key=lambda key: key.created_at)

    async def create(
        self,
        name: str,
        scopes: Iterable[str],
        *,
        environment: str | None = None,
        expires_in: Duration | None = None,
        by: By = OPERATOR,
    ) -> NewKey:
        """A key that may do what its scopes say, in one environment."""
        now = self._runtime.now()
        lifetime = None if expires_in is None else some_time(expires_in, "expires_in")
        credential, text = make_credential(self._runtime.ids.random(38))
        key = ApiKey(
            id=credential.id,
            name=check_label(name, "name", limit=100),
            environment=check_label(environment or self._runtime.environment, "environment"),
            scopes=make_scopes(scopes),
            created_at=now,
            created_by=actor_of(by),
            expires_at=None if lifetime is None else now + lifetime,
            secrets=(Secret(hash=hash_secret(credential.secret), made_at=now),),
        )
        self._check_grant(key)
        await self._check_room()
        return NewKey(await self._put(key), text)

    async def revoke(self, key_id: str, *, by: By = OPERATOR) -> ApiKey:
        """From now on it opens nothing; servers know within seconds. Raises KeyNotFound.

        A grantor may end any key of its environment: that hands out nothing.
        """
        ending = {"revoked_at": self._runtime.now(), "revoked_by": actor_of(by), "secrets": ()}
        return await self._change(
            key_id, lambda key: key if key.revoked_at else replace(key, **ending)
        )

    async def rotate(
        self, key_id: str, overlap: Duration = OVERLAP, *, by: By = OPERATOR
    ) -> NewKey:
        """Another secret for the same key; the one before stays good for `overlap`.

        Raises AccessRefused for a grantor that could not create such a key.
        """
        now, actor = self._runtime.now(), actor_of(by)
        ends_at = now + duration(overlap, "overlap")
        credential, text = make_credential(self._runtime.ids.random(38), key_id)
        new = Secret(hash=hash_secret(credential.secret), made_at=now)

        def rotate(key: ApiKey) -> ApiKey:
            self._check_grant(key)
            if not key.is_valid(now):
                raise InvalidInput("key", f"{key_id} has ended; create another one")
            replaced = [_replace_secret(secret, ends_at, now, actor) for secret in key.secrets]
            secrets = (new, *_keep_secrets(replaced, now))
            return replace(key, secrets=secrets, rotated_at=now, rotated_by=actor)

        return NewKey(await self._change(key_id, rotate), text)

    async def used(self, last_used: dict[str, datetime]) -> None:
        """Write down when keys were last used. Whoever changes one at the same time wins."""
        keys = await read_keys(self._runtime.storage)
        known = {key.id: key for key in keys if key.environment != HOME}
        records = [
            _record(replace(known[key_id], last_used_at=at))
            for key_id, at in last_used.items()
            if key_id in known and at > (known[key_id].last_used_at or LONG_AGO)
        ]
        if records:
            await self._runtime.storage.put(records)

    async def _change(self, key_id: str, change: Callable[[ApiKey], ApiKey]) -> ApiKey:
        for _ in range(MOST_CONFLICTS):
            known = await self._read()
            if key_id not in known:
                raise KeyNotFound(key_id)
            changed = change(known[key_id])
            if all(await self._runtime.storage.put([_record(changed)])):
                return changed
        raise StorageUnavailable(f"key {key_id} is being changed by many at once; try again")

    async def _check_room(self) -> None:
        """Raise InvalidInput if a grantor's environment has as many keys as it may have."""
        if self._grantor is not None and len(await self._read()) >= MAX_KEYS:
            problem = f"the environment has {MAX_KEYS} keys, with those that have ended"
            raise InvalidInput("key", f"{problem}; create more beside the database, without a key")

    async def _read(self) -> dict[str, ApiKey]:
        """By id. A damaged record names no environment: only a caller without a grantor sees it."""
        grantor = self._grantor
        seen = [self._runtime.environment, HOME] if grantor is None else [grantor.environment]
        keys = await read_keys(self._runtime.storage)
        return {key.id: key for key in keys if key.environment in seen}

    def _check_grant(self, key: ApiKey) -> None:
        if self._grantor is not None:
            self._grantor.check(key)

    async def _put(self, key: ApiKey) -> ApiKey:
        [stored] = await self._runtime.storage.put([_record(key)])
        if not stored:  # 48 bits happened to be somebody else's
            raise StorageUnavailable("the key's id is taken; try again")
        return key


async def read_keys(storage: Storage) -> list[ApiKey]:
    """Return all keys. A record that cannot be read is logged, and becomes a key that is refused:
    no secret, no scope, revoked. So a damaged record neither hides the others nor lets a server
    conclude that there are no keys."""
    return [_read_or_quarantine(record) for record in await storage.records(HOME, KEY)]


def _read_or_quarantine(record: Record) -> ApiKey:
    try:
        return _key(record)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        table.UNREADABLE_RECORD.log_hourly(
            f"key {record.name}", record=f"key {record.name}", error=str(error)
        )
        return ApiKey(
            id=record.name,
            name="unreadable",
            environment=HOME,
            scopes=(),
            created_at=LONG_AGO,
            created_by=Actor(ActorType.SYSTEM, "perdure"),
            revoked_at=LONG_AGO,
            version=record.version,
        )


def make_scopes(scopes: Iterable[str]) -> tuple[Scope, ...]:
    """Each once, in their order. Raises InvalidInput; none at all would open nothing."""
    wanted = {choice(scope, Scope, "scopes") for scope in scopes}
    if not wanted:
        raise InvalidInput("scopes", f"name at least one of {', '.join(Scope)}")
    return tuple(scope for scope in Scope if scope in wanted)


def is_opened(key: ApiKey | None, credential: Credential, now: datetime) -> bool:
    """Whether the credential opens the key."""
    secret = find_secret(key, credential)
    return secret is not None and secret.is_good(now) and key is not None and key.is_valid(now)


def find_secret(key: ApiKey | None, credential: Credential) -> Secret | None:
    """Return the key's secret that the credential shows, also one that has ended. Every secret is
    compared, and an unknown key takes as much work as a known one."""
    shown = hash_secret(credential.secret)
    known = key.secrets if key is not None and key.secrets else NOBODYS
    found = [secret for secret in known if same(shown, secret.hash)]
    return found[0] if found and key is not None else None


def _replace_secret(secret: Secret, ends_at: datetime, now: datetime, by: Actor) -> Secret:
    """Let it end at `ends_at` or earlier. What replaced it first stays recorded."""
    earlier = ends_at if secret.ends_at is None else min(secret.ends_at, ends_at)
    ended = replace(secret, ends_at=earlier, is_ended=secret.is_ended or earlier <= now)
    if secret.replaced_at is not None:
        return ended
    return replace(ended, replaced_at=now, replaced_by=by)


def _keep_secrets(secrets: Sequence[Secret], now: datetime) -> list[Secret]:
    """Return those to keep: all that are valid, and the latest that have ended. Raise
    InvalidInput if too many are valid."""
    valid = [secret for secret in secrets if secret.is_good(now)]
    if len(valid) >= MAX_VALID_SECRETS:
        problem = f"{len(valid)} texts of the key are still valid; give 0, or wait for their end"
        raise InvalidInput("overlap", problem)
    return valid + [it for it in secrets if not it.is_good(now)][:MAX_ENDED_SECRETS]


def _record(key: ApiKey) -> Record:
    body = msgspec.json.encode(replace(key, version=0)).decode()
    return Record(environment=HOME, kind=KEY, name=key.id, version=key.version + 1, body=body)


def _key(record: Record) -> ApiKey:
    return replace(msgspec.json.decode(record.body, type=ApiKey), version=record.version)
