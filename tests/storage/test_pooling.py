"""What the driver says about our pools is ours to say; about others', not ours to hide."""

from __future__ import annotations

import logging

import psycopg
import pytest

from perdure.storage.postgres.pool import NAME, remembering

LOGGER = logging.getLogger("psycopg.pool")


@pytest.mark.parametrize("told", [NAME, remembering([]).__new__(remembering([]))])
def test_nothing_is_said_about_pools_of_ours(
    told: object, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        LOGGER.warning("discarding: %s", told)

    assert caplog.records == []


@pytest.mark.parametrize("told", ["pool-1", psycopg.AsyncConnection])
def test_pools_of_others_say_what_they_like(told: object, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        LOGGER.warning("discarding: %s", told)

    assert len(caplog.records) == 1
