"""Every finding has its condition, its sentence and its advice; a healthy database has none."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders import T0
from perdure.core.explain.health import (
    LITTLE_SPACE,
    LONG_IDLE,
    LONG_LOG,
    LONG_TRANSACTION,
    MANY_CHECKPOINTS,
    MANY_DEAD,
    PRUNING_LATE,
    VACUUM_LATE,
    WEBHOOK_LATE,
    Code,
    Facts,
    Neglect,
    Session,
    Table,
    Vitals,
    WebhookFact,
    examine,
    unusable,
)
from perdure.core.webhook import WebhookState
from perdure.errors import SchemaMismatch, StorageUnavailable

SECOND = timedelta(seconds=1)
DISABLED = WebhookState.DISABLED
QUARANTINED = WebhookState.QUARANTINED
VITALS = Vitals(
    database="PostgreSQL 16.1",
    bytes=2**20,
    log_bytes=LONG_LOG,
    log_held_bytes=1,
    free_bytes=LITTLE_SPACE,
    checkpoints=(0, MANY_CHECKPOINTS),
    tables=(Table("perdure_runs", live=10, dead=MANY_DEAD),),
    sessions=(Session("process 1", LONG_TRANSACTION), Session("process 2", LONG_IDLE, True)),
)
MONTH = timedelta(days=30)
HEALTHY = Facts(
    now=T0,
    vitals=VITALS,
    retention=MONTH,
    neglect=Neglect(0, T0 - 30 * SECOND, T0 - MONTH - PRUNING_LATE),
    clock_ahead=4 * SECOND,
)
KEPT_TOO_LONG = replace(HEALTHY, neglect=Neglect(0, None, T0 - MONTH - PRUNING_LATE - SECOND))

DEAD = Table("t", 1, MANY_DEAD + 1, vacuumed_ago=VACUUM_LATE)
LATE_VACUUM = replace(DEAD, vacuumed_ago=VACUUM_LATE + SECOND)
LATE = Neglect(attention_at=T0 - timedelta(minutes=2))
QUEUES = tuple(f"queue{n}" for n in range(7))


def seen(**changes: Any) -> Facts:
    """Healthy, but for some of the vitals."""
    return replace(HEALTHY, vitals=replace(VITALS, **changes))


def tables(*found: Table) -> Facts:
    return seen(tables=found)


def sessions(*found: Session) -> Facts:
    return seen(sessions=found)


def hooks(**changes: Any) -> Facts:
    fact = WebhookFact(name="billing", state=WebhookState.ACTIVE)
    return replace(HEALTHY, webhooks=(replace(fact, **changes),))


def test_nothing_is_found_where_all_is_well() -> None:
    assert examine(HEALTHY) == []
    assert examine(hooks(behind=WEBHOOK_LATE)) == []
    assert examine(Facts(now=T0, vitals=Vitals(database="SQLite 3.51.3", bytes=0))) == []
    assert examine(seen(log_bytes=10 * LONG_LOG, log_held_bytes=0)) == []
    assert examine(tables(DEAD)) == []
    assert examine(tables(replace(DEAD, dead=20 * MANY_DEAD, vacuumed_ago=None))) == []


def test_dead_rows_that_a_transaction_keeps_name_it() -> None:
    reader = Session("process 7", 61 * SECOND, keeps_rows=True)

    [finding] = examine(seen(tables=(DEAD,), sessions=(Session("process 6", LONG_IDLE), reader)))

    assert finding.code is Code.DEAD_ROWS
    assert "while a transaction of process 7 is open: end it" in finding.advice


@pytest.mark.parametrize(
    ("table", "last"),
    [(LATE_VACUUM, "0:10:01 ago"), (Table("t", 1, 20 * MANY_DEAD + 1), "never")],
)
def test_dead_rows_that_nothing_keeps_blame_no_transaction(table: Table, last: str) -> None:
    [finding] = examine(seen(tables=(table,)))

    assert finding.advice.startswith("No transaction prevents it")
    assert f"it last ended {last}" in finding.advice


@pytest.mark.parametrize(
    ("facts", "code", "words"),
    [
        (seen(log_bytes=LONG_LOG + 1, log_held_bytes=2**20), Code.LONG_LOG, "holds 1 MiB"),
        (seen(free_bytes=LITTLE_SPACE - 1), Code.LITTLE_SPACE, "1024 MiB are free"),
        (seen(free_bytes=3 * 2**30, bytes=2**35), Code.LITTLE_SPACE, "3072 MiB are free"),
        (seen(is_vacuumed=False), Code.AUTOVACUUM_OFF, "off on this server"),
        (tables(Table("t", 1, 1, False)), Code.AUTOVACUUM_OFF, "off for t"),
        (tables(LATE_VACUUM), Code.DEAD_ROWS, "t has 50001 dead rows beside 1"),
        (tables(Table("t", 1, 20 * MANY_DEAD + 1)), Code.DEAD_ROWS, "t has 1000001 dead rows"),
        (seen(broken_indexes=("i", "j")), Code.BROKEN_INDEXES, "not used: i, j"),
        (seen(is_durable=False), Code.NOT_DURABLE, "synchronous_commit is off"),
        (KEPT_TOO_LONG, Code.PRUNING_LATE, "kept longer than"),
        (sessions(Session("me", 6 * 60 * SECOND)), Code.LONG_TRANSACTION, "of me has been open"),
        (sessions(Session("me", 61 * SECOND, True)), Code.IDLE_TRANSACTION, "An idle trans"),
        (replace(HEALTHY, clock_ahead=6 * SECOND), Code.CLOCK_OFFSET, "0:00:06 ahead of"),
        (replace(HEALTHY, clock_ahead=-6 * SECOND), Code.CLOCK_OFFSET, "0:00:06 behind"),
        (replace(HEALTHY, neglect=LATE), Code.MAINTENANCE_LATE, "0:02:00 ago"),
        (replace(HEALTHY, neglect=Neglect(3)), Code.UNREADABLE_RUNS, "3 runs were put aside"),
        (replace(HEALTHY, stuck=("queue:mail",)), Code.STUCK_GATES, "queue:mail"),
        (replace(HEALTHY, unserved=QUEUES), Code.UNSERVED_QUEUES, "queue4 and 2 more"),
        (replace(HEALTHY, unserved_tasks=("mail",)), Code.UNSERVED_TASKS, "can execute: mail."),
        (replace(HEALTHY, not_importable=("a on b (c)",)), Code.NOT_IMPORTABLE, "a on b (c)"),
        (replace(HEALTHY, blocked_loops=("a at b",)), Code.BLOCKED_LOOPS, "worker: a at b"),
        (replace(HEALTHY, cycles=("a awaits b",)), Code.WAIT_CYCLES, "each other: a awaits b."),
        (hooks(state=DISABLED, why="gone"), Code.WEBHOOKS_DISABLED, "billing is disabled: gone"),
        (hooks(state=QUARANTINED, why="no JSON"), Code.WEBHOOKS_QUARANTINED, "skipped: no JSON"),
        (hooks(behind=301 * SECOND), Code.WEBHOOKS_BEHIND, "billing (0:05:01)"),
        (hooks(gap=True), Code.WEBHOOKS_MISSED, "told of them: billing"),
    ],
)
def test_a_problem_is_found_and_says_what_to_do(facts: Facts, code: Code, words: str) -> None:
    [finding] = examine(facts)

    assert (finding.code, finding.is_problem) == (code, True)
    assert words in finding.sentence
    assert finding.sentence.endswith(".")
    assert finding.advice.endswith(".")


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        (seen(has_wal_reset_fault=True), Code.WAL_RESET_FAULT),
        (seen(is_readable_by_others=True), Code.READABLE_BY_OTHERS),
        (seen(checkpoints=(3, MANY_CHECKPOINTS + 1)), Code.FORCED_CHECKPOINTS),
        (replace(HEALTHY, silent=("worker_1 on host",)), Code.SILENT_WORKERS),
        (hooks(state=WebhookState.FAILING, why="it answered 500"), Code.WEBHOOKS_FAILING),
    ],
)
def test_what_is_only_good_to_know_is_no_problem(facts: Facts, code: Code) -> None:
    [finding] = examine(facts)

    assert (finding.code, finding.is_problem) == (code, False)


def test_a_clock_that_was_set_right_needs_no_remedy() -> None:
    """On SQLite the database then stays ahead for a while, and the clock must not follow it."""
    [behind] = examine(replace(HEALTHY, clock_ahead=-6 * SECOND))
    [ahead] = examine(replace(HEALTHY, clock_ahead=6 * SECOND))

    assert "do nothing" in behind.advice
    assert "do nothing" not in ahead.advice


def test_only_a_writing_transaction_holds_up_the_change_feed() -> None:
    age = LONG_TRANSACTION + SECOND
    advices = [f.advice for f in examine(sessions(Session("a", age, False, True)))]
    advices += [f.advice for f in examine(sessions(Session("a", age)))]

    assert ["change feed" in advice for advice in advices] == [True, False]


def test_problems_come_first() -> None:
    facts = replace(seen(has_wal_reset_fault=True), unserved=QUEUES)

    assert [f.code for f in examine(facts)] == [Code.UNSERVED_QUEUES, Code.WAL_RESET_FAULT]


def test_a_database_that_cannot_be_used_is_a_problem() -> None:
    finding = unusable(StorageUnavailable("PostgreSQL: no answer"), Code.UNREACHABLE)

    assert finding.is_problem
    assert finding.sentence == "PostgreSQL: no answer."


@pytest.mark.parametrize(("found", "advice"), [(9, "Upgrade Perdure"), (1, "`perdure migrate`")])
def test_another_schema_is_mended_on_the_older_side(found: int, advice: str) -> None:
    finding = unusable(SchemaMismatch(found, 5), Code.SCHEMA)

    assert advice in finding.advice


def test_every_finding_is_in_the_manual() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()

    assert [code for code in Code if f"| `{code}` |" not in page] == []
