"""Every error carries its values, survives pickling and tells the reader what to do."""

from __future__ import annotations

import pickle

import pytest

from perdure import errors as x

EXAMPLES: list[tuple[x.PerdureError, str]] = [
    (x.InvalidInput("queue", "is bad"), "queue: is bad"),
    (x.InvalidValue("payload", "is bad"), "payload: is bad"),
    (x.PayloadTooLarge("payload", 11, 10), "payload: 11 bytes of JSON exceed the limit of 10;"),
    (x.SequenceConflict("r", 3, 4), "run r: it is at sequence 4, not at 3; reload it"),
    (x.SequenceConflict("r", 3, None), "run r: it does not exist, not at 3; reload it"),
    (x.SequenceConflict("r", 3, 3, "its key is taken"), "run r: its key is taken; reload it"),
    (x.InvariantViolation("r", "is broken"), "run r: is broken"),
    (x.LeaseLost("r"), "run r: the token offered does not hold its lease"),
    (x.NotAllowed("r", "pause", "failed", "rerun it"), "cannot pause run r while it is failed: re"),
    (x.UnreadableHistory("it", "is damaged"), "cannot read it: is damaged"),
    (x.SchemaMismatch(1, 2), "the database has schema 1, this code needs 2: run `perdure migrate`"),
    (x.SchemaMismatch(3, 2), "the database has schema 3, this code needs 2: upgrade Perdure"),
    (x.StorageUnavailable("gone"), "gone"),
    (x.StorageRefused("no"), "no"),
]


@pytest.mark.parametrize(("error", "text"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_an_error_says_what_to_do_and_survives_pickling(error: x.PerdureError, text: str) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert str(error).startswith(text)
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_only_what_may_succeed_later_is_retryable() -> None:
    retryable = {type(error) for error, _ in EXAMPLES if error.retryable}

    assert retryable == {x.SequenceConflict, x.StorageUnavailable}
