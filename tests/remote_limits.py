"""Which tests of the conformance suite cannot run over HTTP, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

SUITE = Path(__file__).parent / "storage"
DATABASE_ITSELF = "looks into the database itself, past the adapter"
"""The reason of every test that asks for `storage_url`."""

_ONE_ENVIRONMENT = "a key belongs to one environment, and the test needs two"
_NO_PUSH = "the outbox is the server's, which holds all environments' runs"
_NO_PRUNING = "the server's maintenance prunes, since that is for all environments"
_NO_FORGERY = "whoever could write the audit log could forge it"

NOT_APPLICABLE: dict[str, str] = {
    "test_what_is_no_sequence_is_an_invariant_violation": (
        "JSON tells a number from a text by itself; test_remote_storage proposes -1"
    ),
    "test_environments_do_not_see_each_other": _ONE_ENVIRONMENT,
    "test_keys_belong_to_an_environment_and_a_task": _ONE_ENVIRONMENT,
    "test_a_dead_letter_opens_with_the_run_that_ends_so": _ONE_ENVIRONMENT,
    "test_limits_belong_to_an_environment": _ONE_ENVIRONMENT,
    "test_runs_are_counted_by_any_filter_and_only_so_far": _ONE_ENVIRONMENT,
    "test_what_ended_is_counted_step_by_step": _ONE_ENVIRONMENT,
    "test_holders_are_as_many_as_were_asked_for_and_of_one_environment": _ONE_ENVIRONMENT,
    "test_each_filter_finds_its_runs": _ONE_ENVIRONMENT,
    "test_a_backlog_tells_due_later_parked_and_leased_apart": _ONE_ENVIRONMENT,
    "test_a_schedule_comes_back_as_it_was_stored": _ONE_ENVIRONMENT,
    "test_due_schedules_come_longest_due_first_and_tell_when_to_look_again": _ONE_ENVIRONMENT,
    "test_a_webhook_is_kept_as_it_was_handed_in": _ONE_ENVIRONMENT,
    "test_only_deliveries_to_pushed_queues_leave_an_outbox_row": _NO_PUSH,
    "test_a_refused_commit_leaves_no_outbox_row_and_frees_no_key": _NO_PUSH,
    "test_a_new_run_can_be_dispatched_with_its_creation": _NO_PUSH,
    "test_due_runs_are_reserved_each_with_a_delivery_in_the_outbox": _NO_PUSH,
    "test_what_would_be_pruned_is_counted_and_only_so_far": _NO_PRUNING,
    "test_what_a_run_said_is_pruned_with_it": _NO_PRUNING,
    "test_spans_are_found_by_any_part_and_pruned_by_age": _NO_PRUNING,
    "test_the_keys_of_pruned_occurrences_go_and_how_far_is_known": _NO_PRUNING,
    "test_what_was_pruned_later_but_lies_earlier_takes_nothing_back": _NO_PRUNING,
    "test_who_prunes_and_who_decides_do_not_wait_for_each_other_in_a_circle": _NO_PRUNING,
    "test_pruning_leaves_word_of_how_far_it_went": _NO_PRUNING,
    "test_pruning_older_runs_later_does_not_take_it_back": _NO_PRUNING,
    "test_nothing_pruned_lies_behind_the_latest_change": _NO_PRUNING,
    "test_audit_entries_are_kept_as_they_were_sealed": _NO_FORGERY,
    "test_of_two_entries_for_one_place_the_second_is_refused": _NO_FORGERY,
    "test_entries_whose_answer_was_lost_are_stored_once": _NO_FORGERY,
    "test_however_many_write_at_once_the_trail_is_whole": _NO_FORGERY,
}
"""By the name of the test."""


def may_run_over_http(metafunc: pytest.Metafunc) -> bool:
    function = metafunc.function
    is_of_suite = metafunc.module.__name__.startswith("test_conformance_")
    asks_for_it = "storage_url" in function.__code__.co_varnames
    return is_of_suite and not asks_for_it and function.__name__ not in NOT_APPLICABLE
