"""The queries that run all the time find what they need by index, however much there is.

PostgreSQL keeps a plan while the tables grow, so a plan made on empty tables must be as good as
one made later: both are looked at.
"""

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.engine.runtime.ids import make_token
from perdure.storage import open_storage
from perdure.testing.postgres import PostgresServer
from query_plans import (
    descendants,
    postgres_full_scans,
    postgres_indexes,
    postgres_plan,
    sqlite_full_scans,
    sqlite_plan,
)
from raw import execute
from schedule_kit import due_step, put, scheduled
from scheduling import HOUR, NINE
from storage_kit import CLOCK, claim, new_run, stored, success

RUNS = 3000
BATCH = 500
SCHEDULES = 50

# What must be found by which index. SQLite names the index of a primary key by itself.
HOT = {
    "claim_candidates": {"perdure_runs_claimable", "perdure_history_pkey"},
    "claim_clock": {"perdure_limits_pkey"},
    "next_claimable": {"perdure_runs_claimable"},
    "limited_candidates": {"perdure_runs_claimable", "perdure_history_pkey", "perdure_limits_pkey"},
    "limited_clock": {"perdure_limits_fair", "perdure_buckets_waiting"},
    "limited_next_claimable": {
        "perdure_runs_claimable",
        "perdure_limits_pkey",
        "perdure_buckets_waiting",
    },
    "read_rooms": {
        "perdure_runs_leased",
        "perdure_limits_pkey",
    },
    "fair_lanes": {"perdure_runs_by_key"},
    "unkeyed_lanes": {"perdure_runs_claimable"},
    "fair_candidates": {"perdure_runs_by_key", "perdure_runs_claimable", "perdure_history_pkey"},
    "waking_keys": {"perdure_buckets_waiting"},
    "put_buckets": {"perdure_runs_gated"},
    "read_buckets": {"perdure_buckets_pkey"},
    "due_for_attention": {
        "perdure_runs_attention",
        "perdure_runs_leased",
        "perdure_runs_pkey",
        "perdure_history_pkey",
    },
    "lock_runs": {"perdure_runs_pkey"},
    "read_runs": {"perdure_runs_pkey"},
    "update_runs": {"perdure_runs_pkey"},
    "start_runs": {"perdure_runs_pkey"},
    "end_runs": {"perdure_runs_pkey"},
    "any_parked": {"perdure_runs_gated"},
    "get_runs": {"perdure_runs_pkey", "perdure_history_pkey"},
    "get_ended_runs": {"perdure_runs_pkey", "perdure_history_pkey"},
    "park_runs": {"perdure_runs_pkey"},
    "open_gate": {"perdure_runs_gated", "perdure_runs_pkey"},
    "read_gates": {"perdure_runs_gated"},
    "count_holders": {
        "perdure_runs_leased",
        "perdure_runs_key_leased",
        "perdure_runs_reserved",
        "perdure_runs_slots",
    },
    "holders_of_queue": {"perdure_runs_leased"},
    "holders_of_task": {"perdure_runs_leased", "perdure_runs_reserved"},
    "holders_of_key": {"perdure_runs_key_leased", "perdure_runs_reserved"},
    "holders_of_schedule": {"perdure_runs_slots"},
    "count_parked": {"perdure_runs_gated"},
    "count_ahead": {"perdure_runs_claimable"},
    "lock_leases": {"perdure_runs_pkey"},
    "renew_leases": {"perdure_runs_pkey"},
    "read_leases": {"perdure_runs_pkey"},
    "leases_of_worker": {"perdure_runs_leased", "perdure_history_pkey"},
    "read_commit_ids": {"perdure_history_pkey"},
    "read_keys": {"perdure_keys_pkey"},
    "free_keys": {"perdure_keys_pkey"},
    "find_runs": {"perdure_runs_pkey", "perdure_history_pkey"},
    "find_ids": {"perdure_runs_pkey"},
    "read_history": {"perdure_history_pkey"},
    "count_lanes": {"perdure_runs_claimable"},
    "count_held": {"perdure_runs_leased", "perdure_runs_gated"},
    "count_expired_leases": {"perdure_runs_leased"},
    "count_open_dead_letters": {"perdure_dead_letters_open"},
    "count_schedules": {"perdure_schedules_due"},
    "first_schedule": {"perdure_schedules_due"},
    "read_logs": {"perdure_run_logs_pkey"},
    "insert_logs": {"perdure_runs_pkey"},
    "put_progress": {"perdure_runs_pkey"},
    "trim_logs": {"perdure_run_logs_pkey"},
    "read_progress": {"perdure_run_progress_pkey"},
    "due_schedules": {"perdure_schedules_due"},
    "next_schedule": {"perdure_schedules_due"},
    "read_places": {"perdure_schedules_pkey"},
    "lock_schedules": {"perdure_schedules_pkey"},
    "advance_schedules": {"perdure_schedules_pkey"},
    "get_schedules": {"perdure_schedules_pkey"},
    "list_schedules_defined_by": {"perdure_schedules_defined"},
    "covering_spans": {"perdure_skipped_spans_pkey"},
    "read_spans": {"perdure_skipped_spans_pkey"},
    "delete_spans": {"perdure_skipped_spans_recorded"},
    "unended_runs": {"perdure_runs_unended", "perdure_history_pkey"},
    "runs_at_nominal": {"perdure_runs_nominal", "perdure_history_pkey"},
    "count_ended": {"perdure_runs_finished"},
    "count_pace": {"perdure_runs_finished"},
    "latest_ended": {"perdure_runs_finished"},
    "count_held_by_worker": {"perdure_runs_leased"},
    "count_finished_before": {"perdure_runs_finished"},
    "finished_among": {"perdure_runs_pkey"},
    "finished_before": {"perdure_runs_finished"},
    "closed_before": {"perdure_dead_letters_closed", "perdure_runs_pkey"},
    "opened_before": {"perdure_dead_letters_closed", "perdure_runs_pkey"},
    "count_closed_before": {"perdure_dead_letters_closed"},
    "count_opened_before": {"perdure_dead_letters_closed"},
    "mark_pruned": {"perdure_history_pkey"},
    "delete_history": {"perdure_history_pkey"},
    "long_histories": {"perdure_runs_long"},
    "rows_to_fold": {"perdure_history_pkey"},
    "delete_folded": {"perdure_history_pkey"},
    "mark_folded": {"perdure_runs_pkey"},
    "delete_tags": {"perdure_run_tags_by_run"},
    "delete_batches": {"perdure_batches_pkey"},
    "delete_dead_letters": {"perdure_dead_letters_pkey"},
    "delete_logs": {"perdure_run_logs_pkey"},
    "delete_progress": {"perdure_run_progress_pkey"},
    "delete_runs": {"perdure_runs_pkey"},
    "read_audit": {"perdure_audit_pkey"},
    "read_audit_entry": {"perdure_audit_pkey"},
    "read_audit_head": {"perdure_audit_pkey"},
}
SQLITE_NAMES = {
    "perdure_runs_key_leased": "perdure_runs_leased",
    "perdure_runs_pkey": "sqlite_autoindex_perdure_runs_1",
    "perdure_history_pkey": "sqlite_autoindex_perdure_history_1",
    "perdure_keys_pkey": "keys USING PRIMARY KEY",
    "perdure_limits_pkey": "limits USING PRIMARY KEY",
    "perdure_buckets_pkey": "buckets USING PRIMARY KEY",
    "perdure_run_logs_pkey": "run_logs USING PRIMARY KEY",
    "perdure_run_progress_pkey": "run_progress USING PRIMARY KEY",
    "perdure_schedules_pkey": "schedules USING PRIMARY KEY",
    "perdure_skipped_spans_pkey": "skipped_spans USING PRIMARY KEY",
    "perdure_audit_pkey": "perdure_audit USING PRIMARY KEY",
    "perdure_batches_pkey": "perdure_batches USING PRIMARY KEY",
    "perdure_dead_letters_pkey": "sqlite_autoindex_perdure_dead_letters_1",
}
JUMPING = [
    "claim_candidates",
    "count_lanes",
    "next_claimable",
    "limited_candidates",
    "limited_next_claimable",
]
JUMP = "(environment=? AND (queue,keyed,task,version,priority,claimable_at)>(?,?,?,?,?,?))"
KEY_JUMP = (
    "(environment=? AND queue=? AND "
    "(concurrency_key,task,version,priority,claimable_at)>(?,?,?,?,?))"
)


async def fill(url: str) -> None:
    """Finished runs, and a few of everything that is not."""
    storage = open_storage(url, CLOCK)
    await storage.migrate()
    for _ in range(RUNS // BATCH):
        await stored(storage, *(new_run(idempotency_key=make_token()) for _ in range(BATCH)))
        claimed = await claim(storage, BATCH)
        await stored(storage, *(success(run) for run in claimed.runs))
    await stored(storage, *(new_run(concurrency_key="busy") for _ in range(20)))
    await claim(storage, 10)
    for number in range(SCHEDULES):
        schedule = await scheduled(storage, id=f"schedule{number}", misfire="skip")
        await put(storage, due_step(schedule, NINE + 110 * HOUR))
    await storage.close()


@pytest.fixture(scope="module")
def sqlite_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "runs.db"
    asyncio.run(fill(f"sqlite:///{path}"))
    return path


@pytest.fixture(scope="module", params=["empty", "filled"])
def url(
    request: pytest.FixtureRequest, postgres_server: PostgresServer, postgres_template: str
) -> Iterator[str]:
    name = f"perdure_plans_{secrets.token_hex(6)}"
    url = postgres_server.create_database(name, template=postgres_template)
    if request.param == "filled":
        asyncio.run(fill(url))
        execute(url, "ANALYZE")
    yield url
    postgres_server.drop_database(name)


@pytest.mark.parametrize("name", HOT)
def test_sqlite_finds_it_by_index(sqlite_path: Path, name: str) -> None:
    plan = sqlite_plan(str(sqlite_path), name)

    assert sqlite_full_scans(plan) == []
    for index in HOT[name]:
        assert SQLITE_NAMES.get(index, index) in "\n".join(plan)


@pytest.mark.parametrize("name", HOT)
def test_postgres_finds_it_by_index(url: str, name: str) -> None:
    plan = postgres_plan(url, name)

    assert postgres_full_scans(plan) == []
    assert HOT[name] <= postgres_indexes(plan)


@pytest.mark.parametrize("name", JUMPING)
def test_sqlite_jumps_past_a_lane_in_one_seek(sqlite_path: Path, name: str) -> None:
    assert any(JUMP in line for line in sqlite_plan(str(sqlite_path), name))


@pytest.mark.parametrize("name", JUMPING)
def test_postgres_jumps_past_a_lane_in_one_seek(url: str, name: str) -> None:
    conditions = [node.get("Index Cond", "") for node in postgres_plan(url, name)]

    assert any(
        "ROW(queue, keyed, task, version, priority) > ROW(" in condition for condition in conditions
    )


def test_sqlite_jumps_past_a_key_in_one_seek(sqlite_path: Path) -> None:
    assert any(KEY_JUMP in line for line in sqlite_plan(str(sqlite_path), "fair_lanes"))


def test_postgres_jumps_past_a_key_in_one_seek(url: str) -> None:
    conditions = [node.get("Index Cond", "") for node in postgres_plan(url, "fair_lanes")]

    assert any("ROW(concurrency_key, task, version, priority) > ROW(" in it for it in conditions)


def test_sqlite_finds_each_letter_to_close_by_its_run(sqlite_path: Path) -> None:
    """By the index of closings it would compare every open letter with every closing."""
    plan = sqlite_plan(str(sqlite_path), "close_dead_letters")

    assert any("sqlite_autoindex_perdure_dead_letters_1 (run_id=?)" in line for line in plan), plan


def test_postgres_finds_each_letter_to_close_by_its_run(url: str) -> None:
    """By the index of closings it would compare every open letter with every closing."""
    plan = postgres_plan(url, "close_dead_letters")

    assert postgres_indexes(plan) == {"perdure_dead_letters_pkey"}


def test_postgres_looks_up_histories_only_for_the_runs_of_a_page(url: str) -> None:
    """A page is cut, whatever its plan, before the histories are joined."""
    plan = postgres_plan(url, "find_runs")
    limits = [list(descendants(node)) for node in plan if node["Node Type"] == "Limit"]
    tables = [{node["Relation Name"] for node in it if "Relation Name" in node} for it in limits]

    assert sorted(tables, key=sorted) == [{"perdure_history"}, {"perdure_runs"}]


def test_postgres_reads_the_feed_in_the_order_of_its_index(url: str) -> None:
    plan = postgres_plan(url, "read_changes")

    assert [node["Node Type"] for node in plan] == ["Limit", "Index Scan"]
    assert postgres_indexes(plan) == {"perdure_history_feed"}


def test_sqlite_reads_the_feed_in_the_order_of_its_key(sqlite_path: Path) -> None:
    plan = sqlite_plan(str(sqlite_path), "read_changes")

    assert plan == ["SEARCH perdure_history USING INTEGER PRIMARY KEY (rowid>?)"]


def test_a_full_scan_would_be_noticed(url: str, sqlite_path: Path) -> None:
    assert postgres_full_scans(postgres_plan(url, "count_runs")) == ["Seq Scan perdure_runs"]
    assert sqlite_full_scans(sqlite_plan(str(sqlite_path), "count_runs")) == ["SCAN perdure_runs"]
