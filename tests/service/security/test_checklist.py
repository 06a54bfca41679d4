"""The security checklist, line by line: the tests of each line, and those tests of the service that are in no other
file.
"""

from __future__ import annotations

import ast
import asyncio
import hmac
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from bot.service.host import HostOptions, build
from bot.service.mcp.cors import CrossOrigin
from bot.service.security import auth
from tests.service.builders import ENTRY, assert_refused, make
from tests.service.conftest import START_MS, Box, Caller, OpenBox
from tests.service.mcp.builders import ACCEPT, DISCOVER, assert_told

CLOSE = "trade:close_only"

CHECKLIST: dict[str, list[str]] = {
    "1 keys: form, digest only, an unknown one costs a comparison too": [
        "service/security/test_access.py::test_a_key_has_its_form_and_only_its_digest_is_stored",
        "service/state_machine/test_command_log.py::test_nothing_in_the_file_is_a_usable_secret",
        "service/security/test_secrets.py::test_no_secret_is_in_the_database_or_in_the_log",
        "service/security/test_checklist.py::test_an_unknown_key_is_compared_in_the_same_way_as_a_known_one",
    ],
    "2 revoked and expired keys: the next request, an open stream within two seconds": [
        "service/security/test_access.py::test_a_revoked_key_is_refused_at_once",
        "service/operations/test_keys.py::test_a_key_expires_by_the_services_clock",
        "service/http/test_event_stream.py::test_a_revoked_key_ends_its_stream_within_two_seconds_with_an_error_that_has_no_id",
        "service/http/test_event_stream.py::test_an_expired_key_ends_its_stream_within_two_seconds",
    ],
    "3 close_only neither grows nor flips, in races too": [
        "service/security/test_scope_matrix.py::test_a_key_that_only_closes_never_grows_or_flips_a_position_through_races",
        "service/security/test_access.py::test_a_key_that_only_closes_never_opens",
    ],
    "4 what is another's is not there": [
        "service/security/test_scope_matrix.py::test_an_operation_accepts_its_scopes_and_no_other_caller",
        "service/security/test_checklist.py::test_foreign_objects_and_missing_objects_get_the_same_answer",
    ],
    "5 mass assignment; source gives no rights": [
        "contract/test_every_answer.py::test_an_unknown_name_is_refused_with_the_nearest_known_one",
        "service/security/test_checklist.py::test_a_source_gives_no_rights_and_no_body_names_its_account",
    ],
    "6 wallet views show no plan, key, order or guardian": [
        "service/bodies/test_answers.py::test_a_wallet_is_read_without_a_credential_and_shows_no_plan",
        "service/security/test_scope_matrix.py::test_a_public_route_ignores_credentials",
    ],
    "7 sign-in codes: tries, life, caps, same answer, not in the log": [
        "service/operations/test_sign_in.py::test_a_code_has_five_tries_and_one_use",
        "service/operations/test_sign_in.py::test_a_code_is_valid_for_ten_minutes_of_real_time",
        "service/operations/test_sign_in.py::test_codes_are_capped_by_number_and_by_address_in_real_time",
        "service/operations/test_sign_in.py::test_known_and_unknown_numbers_get_the_same_answer_to_a_code_request",
        "service/security/test_secrets.py::test_no_secret_is_in_the_database_or_in_the_log",
    ],
    "8 device codes: bits, wrong tries, life, a page that says what is asked": [
        "service/operations/test_device.py::test_a_user_code_has_at_least_34_bits",
        "service/operations/test_device.py::test_a_sixth_code_within_a_minute_is_refused",
        "service/operations/test_device.py::test_a_device_code_is_valid_for_ten_minutes",
        "service/http/test_approval_page.py::test_an_owner_signs_in_by_phone_and_approves_with_chosen_scopes",
    ],
    "9 bounds: body, depth, page, header, slow callers, streams": [
        "contract/test_every_answer.py::test_a_body_is_at_most_64_kilobytes_however_it_comes",
        "contract/test_every_answer.py::test_a_body_is_at_most_32_deep",
        "contract/test_bounds.py::test_a_query_is_held_to_its_bounds",
        "service/http/test_connections.py::test_a_slowly_sent_head_ends_with_408",
        "service/http/test_connections.py::test_an_endless_head_gets_a_431",
        "service/http/test_connections.py::test_a_slowly_sent_body_is_cut_off_and_orders_nothing",
        "service/http/test_event_stream.py::test_at_most_sixty_four_streams_are_open_and_an_ended_one_frees_a_slot",
    ],
    "10 numbers are ASCII digits": [
        "contract/test_every_answer.py::test_what_is_no_json_number_is_refused",
        "contract/test_every_answer.py::test_an_amount_is_ascii_digits",
    ],
    "11 SQL has parameters": ["test_house.py::test_make_lint_finds_nothing"],
    "12 no page of another site, no other name": [
        "service/security/test_checklist.py::test_a_page_of_another_site_gets_no_header_that_lets_it_read",
        "service/http/test_gateway.py::test_invalid_headers_are_refused",
        "service/docs/test_documents.py::test_a_browser_shows_the_pages_without_errors_and_runs_no_injected_code",
    ],
    "13 a 500 shows its number only": [
        "service/http/test_gateway.py::test_an_internal_error_is_a_500_that_does_not_say_whether_the_order_was_sent"
    ],
    "14 every pin has a hash": ["test_house.py::test_every_pin_is_exact_and_has_hashes_and_names_no_registry"],
    "15 webhook targets": [
        "service/webhooks/test_address_policy.py::test_a_special_purpose_address_is_never_connected_to",
        "service/webhooks/test_address_policy.py::test_no_spelling_of_loopback_is_accepted",
        "service/webhooks/test_address_policy.py::test_one_bad_address_among_good_ones_refuses_the_name",
        "service/webhooks/test_address_policy.py::test_an_address_of_invalid_form_is_refused",
    ],
    "16 the checked address is the one connected to, by the name's certificate; no redirects; deadlines; a breaker": [
        "service/webhooks/test_webhooks.py::test_tls_is_checked_against_the_name_though_the_connection_goes_to_the_address",
        "service/webhooks/test_webhooks.py::test_a_name_is_resolved_for_each_attempt_and_refused_if_it_becomes_private",
        "service/webhooks/test_webhooks.py::test_any_answer_but_a_2xx_with_a_short_body_is_a_failure_and_is_retried",
        "service/webhooks/test_webhooks.py::test_a_hanging_or_slow_receiver_is_cut_off_at_the_total_deadline",
        "service/webhooks/test_webhooks.py::test_410_disables_at_once_and_drops_the_pending_deliveries",
        "service/webhooks/test_webhooks.py::test_an_endpoint_gets_one_delivery_at_a_time_and_a_long_queue_causes_no_burst",
    ],
    "17 webhook secrets: forms, shown once, encrypted; a receiver may hold two": [
        "service/webhooks/test_webhooks.py::test_a_secret_is_shown_once_and_a_replay_of_its_creation_has_none",
        "service/webhooks/test_webhooks.py::test_the_file_holds_no_secret_and_a_copy_without_its_key_signs_nothing",
        "client/test_webhook_verify.py::test_a_signature_of_the_standard_library_is_valid_in_every_form_of_the_secret",
        "client/test_webhook_verify.py::test_in_a_rotation_either_side_may_have_two_keys",
    ],
    "18 the receiver's helper": [
        "client/test_webhook_verify.py::test_five_minutes_are_allowed_either_way",
        "client/test_webhook_verify.py::test_an_id_is_new_until_it_was_added_and_the_oldest_is_forgotten",
        "client/test_webhook_verify.py::test_no_delivery_makes_verify_raise",
    ],
    "19 private targets only from loopback": [
        "service/webhooks/test_webhooks.py::test_a_service_beyond_loopback_never_calls_a_private_address",
        "service/webhooks/test_address_policy.py::test_a_private_address_is_for_a_service_on_loopback_only",
    ],
    "20 the daemon asks https or this machine, judges certificates, follows nothing elsewhere": [
        "client/test_connections.py::test_https_works_and_certificates_are_checked",
        "client/test_transport.py::test_any_other_base_address_is_an_error_of_the_configuration",
        "client/test_transport.py::test_a_proxy_of_the_environment_is_not_used",
        "client/test_transport.py::test_a_broken_answer_to_an_order_that_arrived_is_unknown",
    ],
    "21 answers are not trusted": [
        "client/test_transport.py::test_an_answer_larger_than_the_cap_is_cut_off",
        "wire/test_resources.py::test_a_text_that_is_no_amount_is_refused",
        "wire/test_model_events.py::test_an_event_of_an_unknown_type_or_subtype_is_not_folded",
        "runtime/alerts/test_notifier.py::test_foreign_text_in_a_notice_is_one_short_line_without_secrets",
    ],
    "22 secrets: by reference, and shown nowhere": [
        "config/test_secrets.py::test_a_file_that_others_can_reach_is_refused",
        "config/test_secrets.py::test_no_message_shows_a_secret_wherever_it_was_put",
        "cli/start/test_notify_config.py::test_doctor_looks_at_each_address_and_shows_none",
        "cli/operate/test_operate.py::test_no_file_answer_or_argument_contains_a_key",
        "runtime/test_daemon.py::test_a_run_appears_in_prometheus_and_in_notices_to_people",
        "runtime/liveness/test_heartbeat_process.py::test_the_credential_is_in_neither_arguments_nor_environment_nor_files",
        "runtime/liveness/test_instance_lock.py::test_a_hardened_process_leaves_no_core_file_and_hides_its_memory",
        "test_logs.py::test_no_secret_gets_into_a_line",
    ],
    "23 files for their owner alone": [
        "cli/operate/test_operate.py::test_the_process_is_private_and_reports_its_true_state_to_systemd"
    ],
    "24 nothing orders past the gate": ["test_house.py::test_only_the_sender_orders"],
    "25 what stops entries is asked again before one leaves": [
        "runtime/test_many_strategies.py::test_an_entry_that_was_written_waits_while_its_strategy_is_paused"
    ],
    "27 mcp: origin, bearer on every POST, metadata, no query tokens, headers that agree with the body": [
        "service/mcp/test_tools.py::test_a_page_of_another_site_is_refused",
        "service/mcp/test_tools.py::test_without_a_credential_mcp_says_where_to_get_one",
        "service/mcp/test_tools.py::test_mcp_has_one_path_and_one_method",
        "service/security/test_checklist.py::test_a_header_that_names_another_call_than_the_body_is_refused",
        "service/security/test_checklist.py::test_only_a_listed_page_may_send_requests_and_read_answers",
    ],
    "28 tools are the same service": [
        "service/mcp/test_tools.py::test_every_tool_accepts_its_scopes_and_no_other",
        "service/mcp/test_tools.py::test_the_caps_of_a_key_apply_to_tools",
        "service/mcp/test_tools.py::test_a_refusal_is_the_error_object",
    ],
    "29 order tools: JSON, a key, done though the caller left": [
        "service/mcp/test_tools.py::test_mcp_has_one_path_and_one_method",
        "service/mcp/test_tools.py::test_an_order_is_planned_confirmed_and_confirmed_only_once",
        "service/security/test_checklist.py::test_an_agent_that_disconnects_during_a_call_leaves_no_partial_effect",
    ],
    "30 hints, and the text of others as data": [
        "service/mcp/test_tools.py::test_both_protocol_versions_list_exactly_the_tools_of_the_table",
        "service/mcp/test_tools.py::test_foreign_text_is_short_and_has_no_control_characters",
    ],
    "31 strategies come from where the config says, and are known by their hash": [
        "runtime/strategy_host/test_loader.py::test_nothing_is_imported_from_the_current_directory",
        "runtime/strategy_host/test_loader.py::test_a_file_and_a_class_of_it_load_with_their_hash",
        "runtime/strategy_host/test_loader.py::test_a_file_that_others_can_change_gives_a_warning",
        "runtime/strategy_host/test_loader.py::test_a_file_of_another_user_gives_a_warning",
    ],
    "33 a strategy that raises anything, hangs or answers nonsense stops no other and no beat": [
        "runtime/strategy_host/test_worker.py::test_an_exception_that_would_end_the_process_quarantines_the_strategy_only",
        "runtime/test_daemon.py::test_a_failing_strategy_stops_no_other",
        "runtime/liveness/test_heartbeat_process.py::test_a_plug_in_that_holds_the_gil_delays_no_heartbeat",
    ],
    "34 a config: no unknown key, no secret, no half of a file": [
        "config/test_problems.py::test_it_is_named_with_line_and_column",
        "config/test_secrets.py::test_a_secret_in_the_file_is_refused_with_the_way_out",
        "config/test_diff.py::test_a_secret_that_changed_is_seen_and_not_shown",
        "cli/test_commands.py::test_write_atomic_replaces_neither_a_pipe_nor_a_link",
    ],
}

# a dashboard; a strategy in a process of its own
NOT_THERE = {26, 32}


def test_every_line_of_the_checklist_names_existing_tests(repository: Path) -> None:
    lines = {int(line.split(" ", 1)[0]) for line in CHECKLIST}
    assert lines == set(range(1, 35)) - NOT_THERE
    known: dict[str, set[str]] = {}
    for name in {test for tests in CHECKLIST.values() for test in tests}:
        file, _, test = name.partition("::")
        if file not in known:
            tree = ast.parse((repository / "tests" / file).read_text(encoding="utf-8"))
            known[file] = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert test in known[file], f"no test {name}"


async def test_an_unknown_key_is_compared_in_the_same_way_as_a_known_one(
    box: Box, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[int, int]] = []

    def compare(one: str, other: str) -> bool:
        compared.append((len(one), len(other)))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(auth, "hmac", type("Watched", (), {"compare_digest": staticmethod(compare)}))
    known = caller.opened["apiKey"]
    wrong = [
        known[:-1] + ("0" if known[-1] != "0" else "1"),
        "bbk_test_99999999_" + "0" * 43 + "_000000",
        "nonsense",
        "bbs_test_99999999_" + "0" * 43 + "_000000",
    ]
    for token in (known, *wrong):
        auth.authenticate(box.service.machine.state, f"Bearer {token}", START_MS)
    assert compared == [(64, 64)] * 5


async def test_foreign_objects_and_missing_objects_get_the_same_answer(box: Box, caller: Caller) -> None:
    other = await box.caller()
    await other.post("/v1/orders", ENTRY)
    oid = (await other.get("/v1/orders"))["orders"][0]["oid"]
    guardian = (await other.post("/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 60}))["id"]
    hook = (await other.post("/v1/webhooks", {"url": "http://127.0.0.1:9/h", "types": ["settlement"]}))["id"]
    token = (await other.post("/v1/orders", ENTRY | {"dryRun": True}))["confirmToken"]
    pairs = [
        ("DELETE", f"/v1/orders/{oid}", f"/v1/orders/{int(oid) + 7}", None, None),
        ("DELETE", f"/v1/guardians/{guardian}", f"/v1/guardians/{guardian[:-1]}9", None, None),
        ("DELETE", f"/v1/webhooks/{hook}", f"/v1/webhooks/{hook[:-1]}9", None, None),
        ("DELETE", f"/v1/keys/{other.opened['keyId']}", "/v1/keys/key_00000099", None, None),
        ("POST", "/v1/orders/confirm", "/v1/orders/confirm", token, token[:-2] + "zz"),
    ]
    for method, theirs, nobodys, one, two in pairs:
        said = []
        for path, sent in ((theirs, one), (nobodys, two)):
            body = None if sent is None else {"confirmToken": sent}
            answer = await caller.send(method, path, body)
            error = assert_refused(answer, 404, "not_found")
            named = sent or path.rsplit("/", 1)[1]
            said.append(json.dumps(error).replace(error["requestId"], "").replace(named, "ID"))
        assert said[0] == said[1], theirs
    assert (await other.get("/v1/account"))["orders"][0]["oid"] == oid


async def test_a_source_gives_no_rights_and_no_body_names_its_account(box: Box, caller: Caller) -> None:
    closer = await make(caller, scopes=["read", CLOSE])
    for source in ("dashboard", "agent", "api"):
        assert_refused(await closer.send("POST", "/v1/orders", ENTRY | {"source": source}), 403, "forbidden")
    other = await box.caller()
    for field, value in (
        ("accountId", caller.opened["accountId"]),
        ("address", caller.opened["address"]),
        ("owner", True),
        ("scopes", ["trade"]),
        ("key", caller.opened["keyId"]),
    ):
        error = assert_refused(await other.send("POST", "/v1/orders", ENTRY | {field: value}), 400, "invalid_input")
        assert error["details"]["fields"][0]["field"] == field
    for body in ({"owner": True}, {"account": caller.opened["accountId"]}, {"source": "sandbox"}):
        assert_refused(await other.send("POST", "/v1/keys", body), 400, "invalid_input")
    assert (await caller.get("/v1/trades"))["trades"] == []


async def test_a_page_of_another_site_gets_no_header_that_lets_it_read(box: Box, caller: Caller) -> None:
    origin = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    for path in ("/v1/orders", "/v1/account", "/mcp", "/v1/markets", "/device", "/sandbox/v1/clock"):
        answers = [await box.http.options(path, headers=origin)]
        answers.append(await box.http.get(path, headers=caller.headers | origin))
        assert answers[0].status_code == 405
        for answer in answers:
            assert [name for name in answer.headers if name.startswith("access-control")] == [], path


async def test_only_a_listed_page_may_send_requests_and_read_answers(open_box: OpenBox) -> None:
    page, evil = "https://app.example", "https://evil.example"
    box = await open_box(origins=(page + "/",))
    caller = await box.caller()
    app = box.service.asgi_app
    assert isinstance(app, CrossOrigin)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
        asked = {"Origin": page, "Access-Control-Request-Method": "POST"}
        before = await http.options("/mcp", headers=asked)
        assert before.headers["access-control-allow-origin"] == page
        assert "authorization" in before.headers["access-control-allow-headers"].lower()
        assert (before.status_code, before.content, before.headers.get("allow")) == (204, b"", None)
        everywhere = {"x-api-version", "x-request-id", "ratelimit", "ratelimit-policy", "x-sandbox-clock"}
        assert everywhere - set(before.headers) == set()
        done = await http.post("/mcp", json=DISCOVER, headers=caller.headers | ACCEPT | {"Origin": page})
        assert (done.status_code, done.headers["access-control-allow-origin"]) == (200, page)
        barred = await http.post("/mcp", json=DISCOVER, headers=ACCEPT | {"Origin": page})
        assert_told(barred, 401, "unauthorized")
        for path, origin in (("/mcp", evil), ("/v1/account", page), ("/v1/orders", page)):
            answer = await http.options(path, headers=asked | {"Origin": origin})
            assert (answer.status_code, answer.headers.get("access-control-allow-origin")) == (405, None)
        foreign = await http.post("/mcp", json=DISCOVER, headers=caller.headers | ACCEPT | {"Origin": evil})
        assert_told(foreign, 403, "forbidden")


async def test_a_header_that_names_another_call_than_the_body_is_refused(box: Box, caller: Caller) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "kill_switch", "arguments": {}, "_meta": meta}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    right = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "kill_switch"}
    for name, other in (
        ("Mcp-Method", "tools/list"),
        ("Mcp-Name", "get_account"),
        ("MCP-Protocol-Version", "1999-01-01"),
    ):
        answer = await box.http.post("/mcp", json=call, headers=caller.headers | ACCEPT | right | {name: other})
        assert answer.status_code == 400, name
    assert (await caller.get("/v1/guardians"))["guardians"] == []
    assert (await box.http.post("/mcp", json=call, headers=caller.headers | ACCEPT | right)).status_code == 200
    assert len((await caller.get("/v1/guardians"))["guardians"]) == 1


@pytest.mark.parametrize("how", ["disconnect", "cancel"])
async def test_an_agent_that_disconnects_during_a_call_leaves_no_partial_effect(
    box: Box, caller: Caller, how: str
) -> None:
    """After any number of turns of the event loop, the order exists once and complete, and a repeated call gets its
    answer.
    """
    (await box.http.post("/mcp", json=DISCOVER, headers=caller.headers | ACCEPT)).raise_for_status()
    left = 0
    with capture_logs() as logs:
        for turns in range(40):
            side = "short" if turns % 2 else "long"
            plan = await caller.post("/v1/orders", {"market": "BTC", "side": side, "usdAmount": 50, "dryRun": True})
            arguments = {"confirmToken": plan["confirmToken"], "idempotencyKey": f"{how}{turns}"}
            call = {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {"name": "confirm_order", "arguments": arguments},
            }
            left += await cut(box, caller, call, turns, how)
            before = (await caller.get("/v1/trades?limit=1"))["trades"]
            was_done = bool(before) and before[0]["idempotencyKey"] == f"{how}{turns}"
            again = await box.http.post("/mcp", json=call, headers=caller.headers | ACCEPT)
            result = again.json()["result"]
            assert result["isError"] is False, (turns, result)
            assert again.headers.get("idempotency-replayed") == ("true" if was_done else None)
    trades = (await caller.get("/v1/trades?limit=200"))["trades"]
    assert sorted(t["idempotencyKey"] for t in trades) == sorted(f"{how}{turns}" for turns in range(40))
    assert {t["fillStatus"] for t in trades} == {"filled"}
    assert left >= 5, "nobody left in the middle"
    assert [line for line in logs if line["log_level"] in ("error", "critical")] == []


async def cut(box: Box, caller: Caller, call: Any, turns: int, how: str) -> bool:
    """Sends a call and disconnects after `turns` turns of the event loop; answers whether that was before the
    answer.
    """
    body = json.dumps(call).encode()
    gone = asyncio.Event()
    said: list[Any] = []
    unread = True

    async def receive() -> dict[str, Any]:
        nonlocal unread
        if unread:
            unread = False
            return {"type": "http.request", "body": body, "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        said.append(message)

    names = {"Host": "127.0.0.1", "Content-Type": "application/json"} | caller.headers | ACCEPT
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "query_string": b"",
        "root_path": "",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
        "headers": [(name.lower().encode(), value.encode()) for name, value in names.items()],
    }
    running = asyncio.create_task(box.service.app(scope, receive, send))
    for _ in range(turns):
        await asyncio.sleep(0)
    early = not said
    gone.set()
    if how == "cancel":
        running.cancel()
    await asyncio.wait([running], timeout=10)
    assert running.done()
    if not running.cancelled():
        assert running.exception() is None
    return early


def test_the_pages_in_the_list_must_be_origins() -> None:
    for wrong in ("app.example", "https://app.example/path", "ftp://app.example", "*", ""):
        with pytest.raises(Exception, match="is not an origin"):
            build(HostOptions(clock="manual", origins=(wrong,)))
