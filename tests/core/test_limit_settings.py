"""Who says what about a limit, and whose word holds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from builders import CLIENT, OPERATOR, T0, after
from perdure.core.limits.admission import LimitScope, Rule
from perdure.core.limits.rates import Rate
from perdure.core.limits.settings import (
    Limit,
    Pause,
    Said,
    Source,
    Values,
    check_concurrency,
    declare,
    give_back,
    overrule,
    pause,
    resume,
    salvage,
)
from perdure.errors import InvalidInput

MAIL = Limit(scope=LimitScope.QUEUE, name="mail")
RATE = Rate(5)
BY_CODE = declare(MAIL, Values(concurrency=5, rate=RATE, fair=True), CLIENT, T0, ["welcome"])


def test_nobody_has_said_anything() -> None:
    assert (MAIL.max_leases, MAIL.rate, MAIL.is_fair, MAIL.pause) == (None, None, False, None)
    assert MAIL.source("rate") is Source.NOBODY


def test_code_is_heard_where_no_operator_speaks() -> None:
    assert (BY_CODE.max_leases, BY_CODE.rate, BY_CODE.is_fair) == (5, RATE, True)
    assert BY_CODE.source("concurrency") is Source.CODE
    assert BY_CODE.said("concurrency") == Said(5, CLIENT, T0)
    assert BY_CODE.homes == ("welcome",)


def test_an_operator_wins_setting_by_setting() -> None:
    limit = overrule(BY_CODE, Values(concurrency=2), OPERATOR, after(9))

    assert (limit.max_leases, limit.rate) == (2, RATE)
    assert limit.said("concurrency") == Said(2, OPERATOR, after(9))
    assert (limit.source("concurrency"), limit.source("rate")) == (Source.OPERATOR, Source.CODE)


def test_an_operator_may_say_that_there_is_no_limit() -> None:
    limit = overrule(BY_CODE, Values(concurrency=None, rate=None, fair=False), OPERATOR, T0)

    assert (limit.max_leases, limit.rate, limit.is_fair) == (None, None, False)


def test_code_does_not_change_what_an_operator_said() -> None:
    limit = overrule(BY_CODE, Values(concurrency=2), OPERATOR, T0)

    redeployed = declare(limit, Values(concurrency=9, rate=Rate(7)), CLIENT, after(9))

    assert (redeployed.max_leases, redeployed.rate) == (2, Rate(7))


def test_what_is_given_back_is_as_code_says_by_now() -> None:
    limit = overrule(BY_CODE, Values(concurrency=2), OPERATOR, T0)

    again = give_back(declare(limit, Values(concurrency=9), CLIENT, after(9)))

    assert (again.max_leases, again.source("concurrency")) == (9, Source.CODE)


def test_what_code_does_not_mention_any_more_it_takes_back() -> None:
    limit = declare(BY_CODE, Values(concurrency=5, rate=None, fair=False), CLIENT, after(9))

    assert (limit.max_leases, limit.rate, limit.is_fair) == (5, None, False)
    assert declare(limit, Values(), CLIENT, after(9)) == MAIL


def test_the_same_said_again_is_no_news() -> None:
    again = declare(
        BY_CODE, Values(concurrency=5, rate=RATE, fair=True), OPERATOR, after(9), ["welcome"]
    )
    twice = overrule(
        overrule(MAIL, Values(rate=RATE), OPERATOR, T0), Values(rate=RATE), CLIENT, after(9)
    )

    assert again == BY_CODE
    assert twice.said("rate") == Said(RATE, OPERATOR, T0)


def test_zero_is_a_limit() -> None:
    assert declare(MAIL, Values(concurrency=0), CLIENT, T0).max_leases == 0


def test_a_pause_tells_who_when_and_why_and_is_not_a_setting() -> None:
    paused = pause(BY_CODE, OPERATOR, T0, "too hot")

    assert paused.pause == Pause(OPERATOR, T0, "too hot")
    assert pause(paused, CLIENT, after(9)) is paused
    assert give_back(paused).pause == paused.pause
    assert resume(paused) == BY_CODE


@pytest.mark.parametrize("wrong", [-1, 1.5, "3", True, 2**31])
def test_a_number_of_leases_is_checked(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match=f"concurrency_per_key: .*not {wrong!r}"):
        check_concurrency(wrong, "concurrency_per_key")
    with pytest.raises(InvalidInput, match="concurrency: "):
        Values(concurrency=wrong)


def test_what_was_said_is_kept_as_json() -> None:
    limit = pause(overrule(BY_CODE, Values(rate=None), OPERATOR, T0), OPERATOR, T0)

    assert msgspec.json.decode(msgspec.json.encode(limit), type=Limit) == limit


def test_a_pause_is_told_anew_only_with_another_reason() -> None:
    paused = pause(MAIL, OPERATOR, T0, "one")

    assert pause(paused, CLIENT, after(9)) == paused
    assert pause(paused, CLIENT, after(9), "one") == paused
    assert pause(paused, CLIENT, after(9), "two").pause == Pause(CLIENT, after(9), "two")


def test_of_a_limit_that_cannot_be_read_what_claims_obey_goes_on_to_hold() -> None:
    rule = Rule(max_leases=3, pace=Rate(2, burst=9).pace, is_paused=True)
    limit = salvage(MAIL, rule, "damaged", is_fair=True)

    assert (limit.max_leases, limit.is_fair, limit.unreadable) == (3, True, "damaged")
    assert limit.rate is not None
    assert limit.rate.pace == rule.pace
    assert limit.pause is not None
    assert limit.pause.reason == "who paused it cannot be read: damaged"
    assert limit.source("concurrency") is Source.OPERATOR


def test_where_nothing_held_nothing_is_salvaged() -> None:
    limit = salvage(BY_CODE, Rule(), "damaged", is_fair=False)

    assert give_back(limit).operator == limit.operator
    assert limit.pause is None
