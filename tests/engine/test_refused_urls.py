"""URLs that would be misread are refused, and no part of a password is repeated."""

from __future__ import annotations

import pytest

from perdure import App
from perdure.core.explain.health import Code, unusable
from perdure.errors import InvalidInput, SchemaMismatch
from perdure.storage import check_url, shown_url


def test_a_file_name_in_the_place_of_a_host_is_refused() -> None:
    with pytest.raises(InvalidInput, match="needs a third slash before the file: sqlite:///runs"):
        App("sqlite://runs.db")


@pytest.mark.parametrize(
    "password", ["pa@ge", "pa/ge", "pa?ge", "pa#ge", "pa/g@e", "pa@g/e", "pa@g?e", "pa@g#e"]
)
def test_a_password_that_is_not_encoded_is_refused_and_not_shown(password: str) -> None:
    url = f"postgresql://me:{password}@host/db"

    with pytest.raises(InvalidInput, match="the password must be encoded") as refused:
        check_url(url)

    assert "pa" not in str(refused.value).partition(": the password")[0].replace("url: ", "")
    assert shown_url(url) == "postgresql://me:***@host/db"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:pa%40ge@host/db",
        "postgresql://me@host:5432/db",
        "postgresql://host:5432/db?user=me@there",
        "postgresql://me:secret@h1:1,h2:2/db?target_session_attrs=read-write",
        "postgresql:///db?host=/tmp&user=me@there",
        "postgresql://me:secret@host/db?user=me@there",
        "postgresql://host/db",
    ],
)
def test_a_url_that_is_read_as_it_was_meant_is_taken(url: str) -> None:
    assert check_url(url) == url


def test_a_schema_newer_than_the_code_is_not_to_be_migrated() -> None:
    newer, older = SchemaMismatch(2, 1), SchemaMismatch(1, 2)

    assert unusable(newer, Code.SCHEMA).advice == "Upgrade Perdure on this machine."
    assert unusable(older, Code.SCHEMA).advice == "Run `perdure migrate`."
