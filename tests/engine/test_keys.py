"""API keys: their text, their hashes, their life."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import App
from perdure.core.run.run import Actor, ActorType
from perdure.engine.operators.credential import PATTERN, make_credential, read_credential
from perdure.engine.operators.keys import Keys, is_opened, make_scopes
from perdure.engine.protocol.scope import Scope
from perdure.errors import InvalidInput, KeyNotFound

ADA = Actor(ActorType.OPERATOR, "ada")
HOUR = timedelta(hours=1)


@given(st.binary(min_size=38, max_size=38))
def test_a_key_is_read_as_it_was_made(random_bytes: bytes) -> None:
    credential, text = make_credential(random_bytes)

    assert read_credential(text) == credential
    assert re.fullmatch(PATTERN, text)


@given(st.binary(min_size=38, max_size=38), st.integers(min_value=0), st.characters())
def test_a_mistyped_key_is_recognised_without_looking_it_up(
    random_bytes: bytes, place: int, letter: str
) -> None:
    _, text = make_credential(random_bytes)
    at = place % len(text)
    mistyped = text[:at] + letter + text[at + 1 :]

    assert read_credential(mistyped) is None or mistyped == text


@pytest.mark.parametrize("text", ["", "pk_", "pk__", "sk_0123", "pk_" + "0" * 200])
def test_what_is_no_key_is_none(text: str) -> None:
    assert read_credential(text) is None


def test_a_credential_does_not_show_its_secret() -> None:
    credential, _ = make_credential(b"x" * 38)

    assert credential.secret not in repr(credential)


def test_scopes_are_named_and_never_none() -> None:
    assert make_scopes(["operate", "read", "read"]) == (Scope.READ, Scope.OPERATE)
    with pytest.raises(InvalidInput, match="name at least one of read, trigger"):
        make_scopes([])
    with pytest.raises(InvalidInput, match="did you mean operate"):
        make_scopes(["operat"])


async def test_a_key_opens_until_it_expires(opened: App) -> None:
    made = await Keys(opened.runtime).create("ci", ["read"], expires_in=3600, by=ADA)
    credential, now = read_credential(made.text), opened.time()

    assert credential is not None
    assert is_opened(made.key, credential, now)
    assert not is_opened(made.key, credential, now + HOUR)
    assert not is_opened(None, credential, now)


async def test_a_key_does_not_open_with_anothers_secret(opened: App) -> None:
    mine = await Keys(opened.runtime).create("mine", ["read"], by=ADA)
    yours = await Keys(opened.runtime).create("yours", ["read"], by=ADA)
    credential = read_credential(yours.text)

    assert credential is not None
    assert not is_opened(mine.key, credential, opened.time())


async def test_of_several_rotations_each_secret_ends_in_its_own_time(opened: App) -> None:
    keys = Keys(opened.runtime)
    first = await keys.create("ci", ["read"], by=ADA)
    second = await keys.rotate(first.key.id, 2 * HOUR)
    third = await keys.rotate(first.key.id, HOUR)
    now = opened.time()

    def open_at(text: str, later: timedelta) -> bool:
        credential = read_credential(text)
        assert credential is not None
        return is_opened(third.key, credential, now + later)

    minute = timedelta(minutes=1)
    assert [open_at(made.text, minute) for made in (first, second, third)] == [True, True, True]
    assert [open_at(made.text, HOUR) for made in (first, second, third)] == [False, False, True]


async def test_a_revoked_key_cannot_come_back(opened: App) -> None:
    keys = Keys(opened.runtime)
    made = await keys.create("ci", ["read"], by=ADA)
    revoked = await keys.revoke(made.key.id)
    credential = read_credential(made.text)

    assert credential is not None
    assert not is_opened(revoked, credential, opened.time())
    assert (await keys.revoke(made.key.id)).revoked_at == revoked.revoked_at
    with pytest.raises(InvalidInput, match="has ended; create another one"):
        await keys.rotate(made.key.id)
    with pytest.raises(KeyNotFound, match="perdure keys list"):
        await keys.revoke("nobody")


async def test_last_use_is_kept_but_never_over_a_change(opened: App) -> None:
    keys = Keys(opened.runtime)
    made = await keys.create("ci", ["read"], by=ADA)
    now = opened.time()

    await keys.used({made.key.id: now, "nobody": now})
    await keys.used({made.key.id: now - HOUR})
    await keys.revoke(made.key.id)

    [key] = await keys.list()
    assert key.last_used_at == now
    assert key.revoked_at is not None
