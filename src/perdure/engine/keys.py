"""API keys: who may do what in which environment, until when.

A key's record holds hashes only. It may have several secrets at a time, which is how a rotation
overlaps. Revoked and expired keys stay known, so that a database that has ever had a key does not
open itself by losing its last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from perdure.core.run import Actor, ActorType
from perdure.core.values import check_label
from perdure.engine.catalogue import MOST_CONFLICTS
from perdure.engine.credential import Credential, hash_secret, make_credential, same
from perdure.engine.door import OPERATOR, By, Duration, actor_of, choice, duration, some_time
from perdure.engine.keywords import explain_methods
from perdure.errors import InvalidInput, KeyNotFound, StorageUnavailable
from perdure.storage.protocol import Record, Storage

if TYPE_CHECKING:
    from perdure.engine.app import App

KEY = "key"
HOME = ""
"""Keys of all environments are kept together, where no environment can be."""

OVERLAP = timedelta(hours=24)
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class Scope(StrEnum):
    """What a key may do. None includes another; a key may have several. `work`: claim and execute
    runs, without a database."""

    READ = "read"
    TRIGGER = "trigger"
    OPERATE = "operate"
    ADMIN = "admin"
    WORK = "work"


class Secret(msgspec.Struct, frozen=True, kw_only=True):
    """One secret of a key, as it is kept."""

    hash: str
    made_at: datetime
    ends_at: datetime | None = None

    def is_good(self, now: datetime) -> bool:
        return self.ends_at is None or now < self.ends_at


NOBODYS = (Secret(hash=hash_secret(""), made_at=LONG_AGO, ends_at=LONG_AGO),)
"""What an unknown key is compared with, so that it takes as long as a known one."""


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key, without what would let anybody use it."""

    id: str
    name: str
    environment: str
    scopes: tuple[Scope, ...]
    created_at: datetime
    created_by: Actor
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
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


@explain_methods
class Keys:
    """All keys of a database, whatever their environment."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def list(self) -> Sequence[ApiKey]:
        """All of them, revoked ones too, oldest first."""
        return sorted(await read_keys(self._app.storage), key=lambda key: key.created_at)

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
        now = self._app.time()
        lifetime = None if expires_in is None else some_time(expires_in, "expires_in")
        credential, text = make_credential(self._app.ids.random(38))
        key = ApiKey(
            id=credential.id,
            name=check_label(name, "name", limit=100),
            environment=check_label(environment or self._app.environment, "environment"),
            scopes=make_scopes(scopes),
            created_at=now,
            created_by=actor_of(by),
            expires_at=None if lifetime is None else now + lifetime,
            secrets=(Secret(hash=hash_secret(credential.secret), made_at=now),),
        )
        return NewKey(await self._put(key), text)

    async def revoke(self, key_id: str) -> ApiKey:
        """From now on it opens nothing; servers know within seconds. Raises KeyNotFound."""
        now = self._app.time()
        return await self._change(
            key_id, lambda key: key if key.revoked_at else replace(key, revoked_at=now, secrets=())
        )

    async def rotate(self, key_id: str, overlap: Duration = OVERLAP) -> NewKey:
        """Another secret for the same key; the one before stays good for `overlap`."""
        now = self._app.time()
        ends_at = now + duration(overlap, "overlap")
        credential, text = make_credential(self._app.ids.random(38), key_id)
        new = Secret(hash=hash_secret(credential.secret), made_at=now)

        def rotated(key: ApiKey) -> ApiKey:
            if not key.is_valid(now):
                raise InvalidInput("key", f"{key_id} has ended; create another one")
            kept = [_ending(secret, ends_at) for secret in key.secrets]
            return replace(key, secrets=(new, *(it for it in kept if it.is_good(now))))

        return NewKey(await self._change(key_id, rotated), text)

    async def used(self, last_used: dict[str, datetime]) -> None:
        """Write down when keys were last used. Whoever changes one at the same time wins."""
        known = {key.id: key for key in await read_keys(self._app.storage)}
        records = [
            _record(replace(known[key_id], last_used_at=at))
            for key_id, at in last_used.items()
            if key_id in known and at > (known[key_id].last_used_at or LONG_AGO)
        ]
        if records:
            await self._app.storage.put(records)

    async def _change(self, key_id: str, change: Callable[[ApiKey], ApiKey]) -> ApiKey:
        for _ in range(MOST_CONFLICTS):
            known = {key.id: key for key in await read_keys(self._app.storage)}
            if key_id not in known:
                raise KeyNotFound(key_id)
            changed = change(known[key_id])
            if all(await self._app.storage.put([_record(changed)])):
                return changed
        raise StorageUnavailable(f"key {key_id} is being changed by many at once; try again")

    async def _put(self, key: ApiKey) -> ApiKey:
        [stored] = await self._app.storage.put([_record(key)])
        if not stored:  # 48 bits happened to be somebody else's
            raise StorageUnavailable("the key's id is taken; try again")
        return key


def keys_of(app: App) -> Keys:
    """An open app's: beside its database, or at a server those of its environment."""
    if app.rest is None:
        return Keys(app)
    from perdure.engine.remote.keys import RemoteKeys

    return RemoteKeys(app, app.rest)


async def read_keys(storage: Storage) -> list[ApiKey]:
    return [_key(record) for record in await storage.records(HOME, KEY)]


def make_scopes(scopes: Iterable[str]) -> tuple[Scope, ...]:
    """Each once, in their order. Raises InvalidInput; none at all would open nothing."""
    wanted = {choice(scope, Scope, "scopes") for scope in scopes}
    if not wanted:
        raise InvalidInput("scopes", f"name at least one of {', '.join(Scope)}")
    return tuple(scope for scope in Scope if scope in wanted)


def is_opened(key: ApiKey | None, credential: Credential, now: datetime) -> bool:
    """Whether the credential opens the key. Every secret is compared, whatever comes of it, and
    there is as much work for a key that there is not."""
    shown = hash_secret(credential.secret)
    known = key.secrets if key is not None and key.secrets else NOBODYS
    fits = [same(shown, secret.hash) and secret.is_good(now) for secret in known]
    return any(fits) and key is not None and key.is_valid(now)


def _ending(secret: Secret, at: datetime) -> Secret:
    """Not later than then."""
    return replace(secret, ends_at=at if secret.ends_at is None else min(secret.ends_at, at))


def _record(key: ApiKey) -> Record:
    body = msgspec.json.encode(replace(key, version=0)).decode()
    return Record(environment=HOME, kind=KEY, name=key.id, version=key.version + 1, body=body)


def _key(record: Record) -> ApiKey:
    return replace(msgspec.json.decode(record.body, type=ApiKey), version=record.version)
