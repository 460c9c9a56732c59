"""Which statements would end a handler's transaction on PostgreSQL, however they are written."""

from __future__ import annotations

import pytest

from perdure.errors import TransactionError
from perdure.storage.postgres.statement_guard import refuse_ending


@pytest.mark.parametrize(
    "text",
    [
        "COMMIT",
        "commit;",
        "  \n\tCommit AND CHAIN",
        "END",
        "ABORT",
        "ROLLBACK",
        "rollback work",
        "BEGIN",
        "begin isolation level serializable",
        "START TRANSACTION",
        "PREPARE TRANSACTION 'x'",
        "COMMIT PREPARED 'x'",
        "-- only a remark\nCOMMIT",
        "/* one /* nested */ remark */ COMMIT",
        ";;COMMIT",
        "SELECT 1; COMMIT; SELECT 2",
        "INSERT INTO t VALUES ('it''s; fine'); commit",
        "SELECT $$; not this $$; end",
        "SELECT $a$ $$ ; $a$; rollback",
        r"SELECT E'\'; '; COMMIT",
        'SELECT ";" FROM t; COMMIT',
        "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; END; COMMIT",
        "SELECT 1 /* open for ever */; COMMIT",
    ],
)
def test_what_would_end_the_transaction_is_refused(text: str) -> None:
    with pytest.raises(TransactionError, match="leave the transaction to Perdure"):
        refuse_ending(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        "-- COMMIT",
        "/* ; COMMIT */ SELECT 1",
        "/* never closed ; COMMIT",
        "SAVEPOINT a; INSERT INTO t VALUES (1); ROLLBACK TO a",
        "ROLLBACK TO SAVEPOINT a",
        "ROLLBACK WORK TO SAVEPOINT a",
        "RELEASE a",
        "SELECT CASE WHEN true THEN 1 ELSE 2 END",
        "SELECT '; COMMIT'",
        "SELECT E'\\'; COMMIT; '",
        'SELECT "; COMMIT"',
        "DO $$ BEGIN PERFORM 1; END $$",
        "SELECT $1, $2; SELECT 1",
        "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT 2; END",
        "PREPARE look AS SELECT 1",
        "SELECT begin, commit FROM t",
        "INSERT INTO t VALUES ($body$ ; ROLLBACK $body$)",
        "UPDATE t SET started = true",
    ],
)
def test_everything_else_passes(text: str) -> None:
    refuse_ending(text)
