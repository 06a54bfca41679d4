"""Which test kills which component at which moment. A new test of a kill or a crash gets a cell here; a cell names a
test that exists.

Each cell is (component, moment): the tests that cover it, as path::name. Kills of the operator (`bot kill`) are orders
and are not listed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

MATRIX: dict[tuple[str, str], tuple[str, ...]] = {
    ("any writer of a whole file", "between its bytes and its name"): (
        "test_files.py::test_a_killed_writer_keeps_the_old_file",
    ),
    ("exchange link", "at a stream"): (
        "exchanges/link/test_process.py::test_a_killed_link_ends_every_operation_with_one_sentence",
    ),
    ("service with an exchange link", "at a stream"): (
        "exchanges/link/test_process.py::test_a_killed_service_ends_its_link",
    ),
    ("exchange link", "while the service follows an account"): (
        "service/exchange_accounts/test_follower.py::test_a_killed_link_is_started_again_and_nothing_is_lost",
    ),
    ("exchange link", "with an action on its way"): (
        "service/exchange_accounts/test_action_sending.py::test_a_link_that_is_killed_with_an_action_on_its_way_places_it_once",
    ),
    ("service with an exchange account", "while fills come"): (
        "service/exchange_accounts/test_follower.py::test_kill_9_of_the_service_loses_and_repeats_no_fill",
    ),
    ("service with an exchange account", "any commit or call of an action"): (
        "service/exchange_accounts/test_action_kills.py::test_kill_9_at_each_commit_and_call_of_a_close_does_it_once_and_tells_it",
        "service/exchange_accounts/test_action_kills.py::test_kill_9_at_each_commit_and_call_of_an_entry_does_it_once_and_leaves_its_stop",
    ),
    ("exchange link", "any commit or call of an action"): (
        "service/exchange_accounts/test_action_kills.py::test_kill_9_at_each_commit_and_call_of_a_close_does_it_once_and_tells_it",
        "service/exchange_accounts/test_action_kills.py::test_kill_9_at_each_commit_and_call_of_an_entry_does_it_once_and_leaves_its_stop",
    ),
    ("daemon on an exchange account", "after the entry has filled"): (
        "cli/run/test_trading_account.py::test_a_daemon_opens_a_bracketed_trade_survives_kill_9_and_its_books_equal_the_exchange",
    ),
    ("service with an exchange account", "at random, with its link, wire and exchange"): (
        "service/exchange_accounts/test_worlds.py::test_worlds",
    ),
    ("demo from the wheel", "without calls that only Linux has"): (
        "test_install_anywhere.py::test_without_these_calls_the_demo_trades_is_killed_and_continues",
    ),
    ("parent of a process", "while the child runs"): (
        "test_operating_system.py::test_a_child_ends_with_its_killed_parent",
    ),
    ("local exchange", "after an answer"): ("local_exchange/test_served.py::test_kill_9_keeps_what_a_client_was_told",),
    ("local exchange", "random, under load"): (
        "local_exchange/test_kills.py::test_after_kill_9_under_load_each_acknowledged_order_exists_once",
    ),
    # The daemon and its journal.
    ("daemon", "before and after each call to the service and to the journal"): (
        "runtime/test_kernel_crashes.py::test_every_crash_point_ends_in_the_fills_of_the_uncrashed_run",
    ),
    ("daemon", "any statement of the journal or request of one order"): (
        "integration/test_kill_points.py::test_a_crash_at_any_statement_or_request_ends_in_the_same_orders",
    ),
    ("daemon", "any statement or request between an entry and its last target"): (
        "integration/test_targets.py::test_a_crash_at_any_statement_or_request_ends_in_the_same_target_orders",
    ),
    ("daemon", "any system call of one order"): (
        "integration/test_kill_points.py::test_a_kill_at_any_system_call_ends_in_exactly_one_order",
    ),
    ("daemon", "recovery"): ("runtime/test_kernel_crashes.py::test_a_second_crash_during_recovery_changes_nothing",),
    ("daemon", "an answer that names no key"): (
        "runtime/reconciliation/test_services_without_keys.py::test_a_kill_between_the_answer_and_the_naming_leaves_neither",
    ),
    ("daemon", "an order that waits for a person"): (
        "runtime/test_degraded.py::test_a_kill_after_the_event_of_an_order_that_waits_for_a_person_leaves_it_to_the_next_start",
    ),
    ("daemon", "an entry that waits for approval, before and after the answer"): (
        "runtime/execution/test_approvals.py::test_a_kill_leaves_the_question_or_its_answer_and_nothing_is_sent_twice",
    ),
    ("daemon", "an agent between its question and its order"): (
        "agents/test_agent_strategy.py::test_a_kill_between_question_and_answer_costs_the_question_and_a_kill_after_it_doubles_nothing",
    ),
    ("daemon", "a plan whose token the next run cannot read"): (
        "runtime/execution/test_token_secrecy.py::test_the_api_key_alone_reads_the_tokens_of_a_killed_run",
        "runtime/execution/test_token_secrecy.py::test_a_killed_run_under_another_api_key_plans_what_waits_anew",
        "runtime/execution/test_token_secrecy.py::test_a_killed_run_under_another_api_key_settles_an_order_in_doubt_without_a_second_one",
    ),
    ("daemon", "an assistant's proposal, before its plan and before the answer"): (
        "runtime/control_plane/test_proposal_route.py::test_a_kill_before_the_plan_keeps_the_proposal_and_its_reason",
        "cli/assistants/test_daemon_tools.py::test_a_proposal_survives_a_kill_and_only_a_person_sends_it",
    ),
    ("daemon", "a halt of several strategies"): (
        "runtime/test_many_strategies.py::test_a_kill_in_the_middle_of_a_halt_leaves_it_to_be_halted_and_told_by_the_next_run",
    ),
    ("daemon", "a strategy's warm-up"): (
        "runtime/test_long_warm_up.py::test_what_a_start_that_is_killed_had_still_to_tell_is_told_by_the_next",
    ),
    ("daemon", "a reload"): (
        "runtime/control_plane/test_hot_reload.py::test_events_for_a_strategy_survive_a_kill_while_it_is_being_built",
    ),
    ("daemon", "a strategy that holds the interpreter"): (
        "e2e/test_stuck.py::test_what_held_the_interpreter_until_the_daemon_was_killed_is_in_quarantine_in_the_next_life",
    ),
    ("daemon", "random, one bar at a time"): (
        "e2e/test_kill_lockstep.py::test_a_run_that_is_killed_trades_as_one_that_is_not",
    ),
    ("daemon", "random, while the clock runs"): (
        "e2e/test_kill_free.py::test_a_daemon_killed_at_random_loses_nothing_and_doubles_nothing",
    ),
    ("daemon", "random, beside faults of network and disk, in virtual time"): (
        "integration/test_worlds.py::test_nothing_is_doubled_lost_stuck_or_naked",
    ),
    ("daemon", "beside the service that it started"): (
        "cli/run/test_processes.py::test_a_killed_daemon_leaves_its_service_running_with_its_stops_until_services_stops_it",
        "e2e/test_demo.py::test_a_killed_demo_is_continued_by_the_next_start_with_its_account_and_its_service",
        "market_data/test_paper.py::test_a_killed_run_continues_with_its_account_and_leaves_nothing_running_at_its_end",
    ),
    ("daemon", "under systemd"): (
        "e2e/test_systemd.py::test_a_unit_is_ready_after_its_account_keeps_its_secret_and_comes_back_from_a_kill_and_a_hang",
    ),
    ("journal", "a write"): ("runtime/journal/test_journal.py::test_no_sent_intent_is_lost_by_kill_9",),
    ("journal", "a fault of the disk"): (
        "runtime/journal/test_journal_faults.py::test_an_exit_sent_during_a_fault_is_not_sent_again_after_a_crash",
    ),
    ("journal", "a power cut between two syncs"): (
        "integration/test_power_cuts.py::test_no_power_cut_forgets_an_intent",
    ),
    ("heartbeat process", "while the daemon runs"): (
        "runtime/test_daemon.py::test_heartbeats_go_on_after_the_progress_file_was_removed_and_the_process_killed",
    ),
    ("heartbeat process", "the daemon is killed"): (
        "runtime/liveness/test_heartbeat_process.py::test_the_process_ends_with_a_killed_daemon",
    ),
    # The service.
    ("dashboard", "while it serves"): (
        "dashboard/test_process.py::test_a_record_of_a_dashboard_that_was_killed_names_none",
    ),
    ("service", "orders under load"): (
        "service/state_machine/test_kills.py::test_after_kill_9_under_load_each_acknowledged_order_exists_once_and_guardians_stay_armed",
    ),
    ("service", "any answer, as a client sees it"): (
        "contract/test_plans_and_keys.py::test_everything_said_is_still_so_after_kill_9",
    ),
    ("service", "a guardian fires"): (
        "service/state_machine/test_guardian_fires_once.py::test_kill_9_while_a_guardian_fires_leaves_exactly_one_flatten",
    ),
    ("service", "a schedule is due"): (
        "service/state_machine/test_guardian_fires_once.py::test_over_a_kill_a_schedule_runs_no_minute_twice_and_skips_the_downtime",
    ),
    ("service", "its start"): (
        "service/state_machine/test_command_log.py::test_a_start_killed_during_catch_up_leaves_its_downtime_to_the_next_start",
    ),
    ("service", "a snapshot"): (
        "service/state_machine/test_snapshots.py::test_the_log_stays_short_however_often_the_service_is_killed",
    ),
    ("service", "a restore"): ("service/sandbox/test_state.py::test_a_restore_survives_a_kill_right_after_its_answer",),
    ("service", "a webhook is sent"): (
        "service/webhooks/test_webhook_process.py::test_no_event_is_lost_to_a_kill_9_and_each_comes_under_its_own_id",
    ),
    ("service", "a webhook waits for its next try"): (
        "service/webhooks/test_webhook_process.py::test_the_retry_schedule_continues_after_kill_9",
    ),
    ("service", "time passes"): ("service/test_process.py::test_time_never_goes_back_over_a_kill",),
    ("service", "random, one bar at a time"): (
        "e2e/test_kill_lockstep.py::test_a_run_that_is_killed_trades_as_one_that_is_not",
    ),
    ("service", "random, while the clock runs"): (
        "e2e/test_kill_service.py::test_a_service_killed_at_random_keeps_what_it_acknowledged",
    ),
    ("service", "under a running demo"): (
        "e2e/test_demo.py::test_a_service_that_is_killed_is_started_again_under_the_running_demo",
    ),
    # Commands.
    ("bot restore", "before each file that it moves or writes"): (
        "cli/operate/test_backup.py::test_a_restore_that_is_stopped_anywhere_loses_nothing_and_can_be_repeated",
    ),
    ("daemon", "after a backup, which another folder continues"): (
        "cli/operate/test_backup.py::test_a_backup_of_a_running_daemon_is_restored_and_traded_on",
    ),
    ("candle store", "a write"): (
        "backtest/data/test_store.py::test_a_writer_that_is_killed_leaves_the_old_file_and_the_next_one_clears_up",
    ),
    # The history of markets.
    ("pull", "random, between two pages, and again"): (
        "market_data/test_pull.py::test_a_killed_pull_goes_on_without_a_hole_or_a_double",
    ),
    ("feeder", "an unanswered request"): (
        "market_data/test_feeder.py::test_a_feeder_that_is_killed_answers_the_waiting_request_with_an_error",
    ),
    # Research.
    ("sweep", "random, between two trials"): (
        "research/test_sweep.py::test_a_sweep_killed_with_9_goes_on_and_ctrl_c_keeps_what_has_ended",
    ),
    ("sweep", "trials that a sampler has asked for"): (
        "research/test_sweep.py::test_trials_that_a_killed_sampler_left_running_are_run_again",
    ),
    ("sweep worker", "in a trial, once and each time"): (
        "research/test_sweep.py::test_a_killed_worker_is_replaced_and_its_trial_run_again",
        "research/test_sweep.py::test_a_trial_that_kills_each_worker_fails_and_the_others_are_complete",
    ),
    ("cluster worker", "while trials run"): (
        "research/test_sweep.py::test_a_cluster_of_which_a_worker_is_killed_gives_the_table_of_one_process",
    ),
}

# Tests whose name speaks of a kill or a crash and that are about what is shown of it afterwards.
SHOWN = frozenset(
    (
        "cli/operate/test_daemon_client.py::test_a_daemon_that_was_killed_leaves_a_note_that_finds_nobody",
        "cli/operate/test_demo_folders.py::test_what_was_killed_is_continued_unless_a_fresh_run_is_wanted_whose_service_is_another",
        "runtime/test_daemon.py::test_the_next_run_reports_a_killed_run_and_not_one_that_ended_in_order",
        "runtime/test_last_run.py::test_a_killed_run_was_heard_of_last_at_its_newest_pass",
        "runtime/test_last_run.py::test_runs_that_are_killed_again_and_again_are_told_of_once_in_a_while",
    )
)
KILLS = re.compile(r"kill_9|killed|crash_|_crash|power_cut")


TEST = re.compile(r"^ *(?:async )?def (test_\w+)\(", re.MULTILINE)


@pytest.fixture(scope="module")
def tests(repository: Path) -> set[str]:
    """Every test of the suite, as path::name."""
    folder = repository / "tests"
    return {
        f"{file.relative_to(folder)}::{name}"
        for file in folder.rglob("test_*.py")
        for name in TEST.findall(file.read_text())
    }


def test_each_cell_names_tests_that_exist(tests: set[str]) -> None:
    assert {name for names in MATRIX.values() for name in names} - tests == set()
    assert SHOWN - tests == set()


def test_no_kill_is_without_a_cell(tests: set[str]) -> None:
    listed = {name for names in MATRIX.values() for name in names} | SHOWN
    found = {name for name in tests if KILLS.search(name.partition("::")[2])}
    assert sorted(found - listed) == []
