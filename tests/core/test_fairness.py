"""Whose turn it is in the circle of keys."""

from __future__ import annotations

from perdure.core.limits.fairness import Lane, Turns, Walk, take_turns

NOTHING = Walk(())


def lane(key: str | None, *, due: bool = True, priority: int = 0) -> Lane:
    return Lane(key, "task", 0, priority, due)


def walk(keys: str, *, cut: bool = False) -> Walk:
    """One lane a key; capitals have something due."""
    return Walk(tuple(lane(key.lower(), due=key.isupper()) for key in keys), is_cut=cut)


def order(turns: Turns) -> str:
    placed = sorted(turns.lanes, key=lambda it: it[1])
    return "".join(lane.key or "-" for lane, _ in placed)


def test_the_circle_goes_on_after_the_key_served_last_and_closes() -> None:
    turns = take_turns("b", walk("CD"), [lane(None)], walk("ABCD"), 9)

    assert order(turns) == "cd-ab"


def test_no_more_keys_than_there_are_places_for() -> None:
    assert order(take_turns("b", walk("CDE"), [lane(None)], walk("ABC"), 2)) == "cd"


def test_keys_without_anything_due_have_no_turn() -> None:
    turns = take_turns("b", walk("cD"), [lane(None, due=False)], walk("aB"), 9)

    assert order(turns) == "db"


def test_all_due_lanes_of_a_key_share_its_turn() -> None:
    lanes = (lane("c"), lane("c", priority=5), lane("c", due=False, priority=7), lane("d"))

    turns = take_turns("b", Walk(lanes), [], NOTHING, 1)

    assert turns.lanes == ((lanes[0], 0), (lanes[1], 0))


def test_a_walk_that_was_cut_goes_on_where_it_ended() -> None:
    turns = take_turns("b", walk("cdE", cut=True), [lane(None)], walk("A"), 9)

    assert (order(turns), turns.go_on_after) == ("e", "e")


def test_a_walk_cut_on_the_way_back_goes_on_there_too() -> None:
    turns = take_turns("x", walk("Y"), [], walk("abc", cut=True), 9)

    assert (order(turns), turns.go_on_after) == ("y", "c")


def test_a_way_back_that_passed_the_beginning_is_all_there_is() -> None:
    turns = take_turns("b", walk("c"), [], walk("abcde", cut=True), 9)

    assert (order(turns), turns.go_on_after) == ("", None)


def test_a_cut_does_not_matter_once_there_are_enough() -> None:
    assert take_turns("b", walk("CDE", cut=True), [], NOTHING, 2).go_on_after is None


def test_an_empty_queue_has_no_turns() -> None:
    assert take_turns("", NOTHING, [], NOTHING, 5) == Turns(())
    assert Walk(()).last_key == ""
    assert Walk((lane(None),)).last_key == ""
