"""Dry runs, their tokens, and the five ways an idempotency key or a token can clash. A repeat never orders twice."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from email.message import Message
from http.client import parse_headers
from typing import Any

import httpx
import pytest

from tests.contract.shapes import judge
from tests.contract.target import Caller, Target, owed

ORDER: dict[str, Any] = {"market": "BTC", "side": "long", "usdAmount": 50}
OwnTarget = Callable[..., Target]


def fills(caller: Caller) -> int:
    return len(caller.get("/v1/events?types=fill")["events"])


def test_a_dry_run_changes_nothing_and_its_plan_comes_true(caller: Caller) -> None:
    before = caller.get("/v1/account")
    body = ORDER | {
        "leverage": 3,
        "bracket": {"stopLoss": {"pct": 2}, "takeProfit": {"r": 2}},
        "requireProtection": True,
    }
    planned = caller.post("/v1/orders", body | {"dryRun": True})
    judge("planned", planned)
    assert caller.get("/v1/account") == before
    plan = planned["plan"]
    assert 8 <= len(planned["confirmToken"]) <= 128
    assert planned["expiresAt"] == before["serverTime"] + 60_000
    assert plan["maxDriftBps"] == 50
    assert (plan["intent"], plan["type"], plan["protected"], plan["leverage"]) == ("open", "market", True, 3)
    done = caller.post("/v1/orders/confirm", {"confirmToken": planned["confirmToken"]}, key="the-key")
    judge("ordered", done)
    assert done["trade"]["idempotencyKey"] == "the-key"
    assert done["trade"]["size"] == plan["size"] == plan["fillSize"]
    assert (done["trade"]["avgPx"], done["trade"]["feeUsd"]) == (plan["estPx"], plan["feeUsd"])
    assert done["position"]["liquidationPx"] == plan["liquidationPx"]
    assert done["position"]["stopPx"] == plan["bracket"]["stopLoss"]["px"]
    assert done["position"]["takeProfitPx"] == plan["bracket"]["takeProfit"]["px"]
    assert done["position"]["riskUsd"] == plan["riskUsd"]


def test_a_token_is_used_once(caller: Caller) -> None:
    token = caller.post("/v1/orders", ORDER | {"dryRun": True})["confirmToken"]
    first = caller.post("/v1/orders/confirm", {"confirmToken": token})
    status, error = caller.refused("POST", "/v1/orders/confirm", {"confirmToken": token})
    assert (status, error["code"], error["retryable"], error["orderSubmitted"]) == (
        409,
        "idempotency_conflict",
        False,
        True,
    )
    assert error["details"]["reason"] == "used_token"
    assert error["details"]["tradeId"] == first["trade"]["id"]
    assert fills(caller) == 1


@pytest.mark.parametrize("ahead", [60_000, 60_001])
def test_a_plan_is_stale_at_its_end(caller: Caller, ahead: int) -> None:
    token = caller.post("/v1/orders", ORDER | {"dryRun": True})["confirmToken"]
    caller.target.advance(ahead)
    for _ in range(2):
        status, error = caller.refused("POST", "/v1/orders/confirm", {"confirmToken": token})
        assert (status, error["code"], error["orderSubmitted"]) == (409, "plan_stale", False)
        assert error["fix"]["action"] == "replan"
    assert fills(caller) == 0


def test_a_plan_lives_to_the_last_millisecond(caller: Caller) -> None:
    token = caller.post("/v1/orders", ORDER | {"dryRun": True})["confirmToken"]
    caller.target.advance(59_999)
    assert caller.post("/v1/orders/confirm", {"confirmToken": token})["trade"]["fillStatus"] == "filled"


@pytest.mark.parametrize(
    ("bps", "px", "stale"),
    [
        (None, "100500", False),
        (None, "100510", True),
        (None, "99500", False),
        (None, "99490", True),
        (1, "100010", False),
        (1, "100020", True),
        (5000, "149000", False),
    ],
)
def test_drift_in_either_direction_is_refused_and_uses_the_token(
    caller: Caller, bps: int | None, px: str, stale: bool
) -> None:
    more = {} if bps is None else {"maxDriftBps": bps}
    token = caller.post("/v1/orders", ORDER | {"dryRun": True} | more)["confirmToken"]
    caller.target.price("BTC", px)
    answer = caller.send("POST", "/v1/orders/confirm", {"confirmToken": token})
    assert answer.status_code == (409 if stale else 200), answer.text
    if stale:
        assert answer.json()["error"]["code"] == "plan_stale"
        caller.target.price("BTC", "100000")
        status, error = caller.refused("POST", "/v1/orders/confirm", {"confirmToken": token})
        assert (status, error["code"], error["orderSubmitted"]) == (409, "plan_stale", False)
    assert fills(caller) == (0 if stale else 1)


def test_a_refusal_at_the_edge_does_not_burn_the_token(caller: Caller) -> None:
    token = caller.post("/v1/orders", ORDER | {"dryRun": True})["confirmToken"]
    caller.refused("POST", "/v1/orders/confirm", {"confirmToken": token, "x": 1})
    caller.send("POST", "/v1/orders/confirm", {"confirmToken": token}, Content_Type="text/plain")
    caller.send("POST", "/v1/orders/confirm", {"confirmToken": token}, Authorization="Bearer x")
    assert caller.post("/v1/orders/confirm", {"confirmToken": token})["orderSubmitted"] is True


@pytest.mark.parametrize("token", ["unknown-token", "x" * 128, "é" * 8, "\x00" * 8, "bbk_test_"])
def test_an_unknown_token_is_404(caller: Caller, token: str) -> None:
    status, error = caller.refused("POST", "/v1/orders/confirm", {"confirmToken": token})
    assert (status, error["code"], error["orderSubmitted"]) == (404, "not_found", False)


def test_the_same_key_and_body_give_the_first_answer_byte_for_byte(caller: Caller) -> None:
    for path, body in (
        ("/v1/orders", ORDER),
        ("/v1/positions/BTC/close", {"fraction": 0.6}),
        ("/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 60}),
        ("/v1/orders", ORDER | {"usdAmount": 5}),
        ("/v1/orders", {"market": "BTC", "side": "long", "usdAmount": 50, "leverage": 50}),
    ):
        key = f"{path}-{body}".replace(" ", "")[:200]
        key = "".join(c for c in key if c.isascii() and c.isprintable())
        first = caller.send("POST", path, body, key=key)
        caller.target.price("BTC", "100100")
        again = caller.send("POST", path, dict(reversed(body.items())), key=f'"{key}"')
        assert (again.status_code, again.content) == (first.status_code, first.content)
        assert again.headers["idempotency-replayed"] == "true"
        assert "idempotency-replayed" not in first.headers
    assert fills(caller) == 2
    assert len(caller.get("/v1/guardians")["guardians"]) == 1


def test_another_body_under_a_key_is_refused_on_every_route(caller: Caller) -> None:
    caller.post("/v1/orders", ORDER, key="k")
    for path, body in (
        ("/v1/orders", ORDER | {"usdAmount": 51}),
        ("/v1/positions/BTC/close", {}),
        ("/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 60}),
    ):
        status, error = caller.refused("POST", path, body, key="k")
        assert (status, error["code"], error["details"]["reason"]) == (422, "idempotency_conflict", "fingerprint")
        assert error.get("retryable", False) is False
    assert fills(caller) == 1
    assert caller.get("/v1/guardians")["guardians"] == []


def test_a_passing_refusal_is_not_kept(caller: Caller) -> None:
    body = ORDER | {"maxSlippageBps": 0}
    status, error = caller.refused("POST", "/v1/orders", body, key="k")
    assert (status, error["retryable"]) == (409, True)
    assert caller.post("/v1/orders", ORDER, key="k")["orderSubmitted"] is True


def test_a_dry_run_ignores_the_key(caller: Caller) -> None:
    first = caller.post("/v1/orders", ORDER | {"dryRun": True}, key="k")
    second = caller.post("/v1/orders", ORDER | {"dryRun": True}, key="k")
    assert first["confirmToken"] != second["confirmToken"]
    assert caller.post("/v1/orders", ORDER, key="k")["trade"]["idempotencyKey"] == "k"
    assert caller.post("/v1/orders", ORDER | {"dryRun": True}, key="k")["dryRun"] is True


def test_a_confirm_repeats_under_its_key(caller: Caller) -> None:
    token = caller.post("/v1/orders", ORDER | {"dryRun": True})["confirmToken"]
    first = caller.send("POST", "/v1/orders/confirm", {"confirmToken": token}, key="c")
    again = caller.send("POST", "/v1/orders/confirm", {"confirmToken": token}, key="c")
    assert again.content == first.content
    assert again.headers["idempotency-replayed"] == "true"
    assert (
        caller.refused("POST", "/v1/orders/confirm", {"confirmToken": token}, key="d")[1]["details"]["reason"]
        == "used_token"
    )


def test_a_stale_confirm_repeats_its_refusal_under_its_key(caller: Caller) -> None:
    token = caller.post("/v1/orders", ORDER | {"dryRun": True})["confirmToken"]
    caller.target.advance(60_000)
    for _ in range(2):
        assert caller.refused("POST", "/v1/orders/confirm", {"confirmToken": token}, key="c")[1]["code"] == "plan_stale"


def test_keys_of_two_accounts_are_independent(site: Target, caller: Caller) -> None:
    caller.post("/v1/orders", ORDER, key="k")
    assert site.caller().post("/v1/orders", ORDER | {"usdAmount": 60}, key="k")["orderSubmitted"] is True


def test_a_reset_fences_earlier_keys_and_only_those(caller: Caller) -> None:
    caller.post("/v1/orders", ORDER, key="k")
    caller.post("/v1/sandbox/accounts/reset")
    for body in (ORDER, ORDER | {"usdAmount": 60}):
        status, error = caller.refused("POST", "/v1/orders", body, key="k")
        assert (status, error["code"], error["details"]["reason"]) == (409, "idempotency_conflict", "account_reset")
        assert (error["retryable"], error["orderSubmitted"]) == (False, False)
    assert caller.post("/v1/orders", ORDER, key="fresh")["orderSubmitted"] is True
    assert fills(caller) == 1


def test_a_late_request_is_refused_and_stays_refused(caller: Caller) -> None:
    now = caller.target.now()
    for path, body in (("/v1/orders", ORDER), ("/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 60})):
        for _ in range(2):
            status, error = caller.refused("POST", path, body, key=f"late{path}", X_Expires_After=str(now - 1))
            assert (status, error["code"], error["details"]["reason"]) == (409, "idempotency_conflict", "expired")
        status, error = caller.refused("POST", path, body, key=f"late{path}")
        assert (status, error["details"]["reason"]) == (409, "expired")
    assert caller.send("POST", "/v1/orders", ORDER, key="timely", X_Expires_After=str(now)).status_code == 200
    caller.target.advance(10)
    again = caller.send("POST", "/v1/orders", ORDER, key="timely", X_Expires_After=str(now))
    assert again.headers["idempotency-replayed"] == "true"
    assert fills(caller) == 1


def test_a_late_confirm_does_not_order(caller: Caller) -> None:
    token = caller.post("/v1/orders", ORDER | {"dryRun": True})["confirmToken"]
    now = caller.target.now()
    status, error = caller.refused(
        "POST", "/v1/orders/confirm", {"confirmToken": token}, key="c", X_Expires_After=str(now - 1)
    )
    assert (status, error["details"]["reason"], error["orderSubmitted"]) == (409, "expired", False)
    assert fills(caller) == 0


def test_everything_said_is_still_so_after_kill_9(start_own: OwnTarget, tmp_path: Any) -> None:
    options: dict[str, Any] = {
        "db": str(tmp_path / "s.db"),
        "clock": "manual",
        "start_ms": 1_750_000_020_000,
        "hold_prices": True,
        "markets": ["BTC", "ETH"],
    }
    site = start_own(**options)
    site.price("BTC", "100000")
    caller = site.caller(name="kept")
    ordered = caller.send("POST", "/v1/orders", ORDER | {"bracket": {"stopLoss": {"pct": 2}}}, key="a")
    refused = caller.send("POST", "/v1/orders", ORDER | {"usdAmount": 5}, key="b")
    guardian = caller.send("POST", "/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 3600}, key="g")
    late = caller.send("POST", "/v1/orders", ORDER, key="l", X_Expires_After="1")
    late_arm = caller.send(
        "POST", "/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 60}, key="m", X_Expires_After="1"
    )
    plan = caller.post("/v1/orders", ORDER | {"dryRun": True})
    used = caller.post("/v1/orders", ORDER | {"dryRun": True})
    done = caller.send("POST", "/v1/orders/confirm", {"confirmToken": used["confirmToken"]}, key="u")
    reads = [
        "/v1/account",
        "/v1/orders",
        "/v1/trades",
        "/v1/events",
        "/v1/guardians",
        "/v1/markets/BTC/book",
        "/v1/markets?view=all",
    ]
    before = {path: caller.send("GET", path).content for path in reads}
    site.kill()
    site = start_own(**options | {"port": int(site.base_url.rpartition(":")[2])})
    caller = Caller(site, caller.opened)
    for path in reads:
        assert caller.send("GET", path).content == before[path], path
    assert (
        caller.send("POST", "/v1/orders", ORDER | {"bracket": {"stopLoss": {"pct": 2}}}, key="a").content
        == ordered.content
    )
    assert (
        caller.send("POST", "/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 3600}, key="g").content
        == guardian.content
    )
    assert (
        caller.send("POST", "/v1/orders/confirm", {"confirmToken": used["confirmToken"]}, key="u").content
        == done.content
    )
    for body, key, first in ((ORDER | {"usdAmount": 5}, "b", refused), (ORDER, "l", late)):
        assert caller.send("POST", "/v1/orders", body, key=key).content == first.content
    assert (
        caller.send("POST", "/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 60}, key="m").content
        == late_arm.content
    )
    assert caller.refused("POST", "/v1/orders", ORDER, key="a")[1]["details"]["reason"] == "fingerprint"
    assert (
        caller.refused("POST", "/v1/orders/confirm", {"confirmToken": used["confirmToken"]})[1]["details"]["reason"]
        == "used_token"
    )
    # Plans are promises, not state: one that outlived the process is honoured or named stale, never lost without a
    # word.
    answer = caller.send("POST", "/v1/orders/confirm", {"confirmToken": plan["confirmToken"]})
    assert answer.status_code in (200, 404, 409)
    assert answer.json().get("error", {}).get("code", "plan_stale") in ("plan_stale", "not_found")


@pytest.fixture
def racing(start_own: OwnTarget) -> Target:
    """A real clock, no limits of rate."""
    return start_own(clock="real", rate_limits=False, hold_prices=True, markets=["BTC"])


async def at_once(target: Target, requests: list[tuple[str, Any, dict[str, str]]]) -> list[httpx.Response]:
    # A connection that was idle for a second is made anew: the service closes one after five, perhaps as it is used.
    limits = httpx.Limits(max_connections=len(requests), max_keepalive_connections=len(requests), keepalive_expiry=1)
    async with httpx.AsyncClient(base_url=target.base_url, limits=limits, timeout=60) as http:
        # connections are up
        await asyncio.gather(*(http.get("/v1/system/status") for _ in requests))
        return list(
            await asyncio.gather(*(http.post(path, json=body, headers=headers) for path, body, headers in requests))
        )


async def test_one_of_sixty_four_confirms_wins(racing: Target) -> None:
    answer = racing.http.post("/v1/sandbox/accounts")
    headers = {"Authorization": f"Bearer {answer.json()['apiKey']}"}
    racing.price("BTC", "100000")
    for keyed in (False, True):
        token = racing.http.post("/v1/orders", json=ORDER | {"dryRun": True}, headers=headers).json()["confirmToken"]
        requests = [
            ("/v1/orders/confirm", {"confirmToken": token}, headers | ({"Idempotency-Key": f"k{n}"} if keyed else {}))
            for n in range(64)
        ]
        answers = await at_once(racing, requests)
        won = [one for one in answers if one.status_code == 200]
        assert len(won) == 1
        trade = won[0].json()["trade"]["id"]
        for one in answers:
            if one is not won[0]:
                error = one.json()["error"]
                assert (one.status_code, error["code"]) == (409, "idempotency_conflict")
                assert error["details"]["reason"] in ("used_token", "in_flight")
                if error["details"]["reason"] == "used_token":
                    assert (error["details"]["tradeId"], error["orderSubmitted"]) == (trade, True)
    trades = racing.http.get("/v1/trades", headers=headers).json()["trades"]
    assert len(trades) == 2


async def test_sixty_four_of_one_key_are_one_order(racing: Target) -> None:
    headers = {"Authorization": f"Bearer {racing.http.post('/v1/sandbox/accounts').json()['apiKey']}"}
    racing.price("BTC", "100000")
    answers = await at_once(racing, [("/v1/orders", ORDER, headers | {"Idempotency-Key": "one"})] * 64)
    good = [one for one in answers if one.status_code == 200]
    assert len({one.content for one in good}) == 1
    for one in answers:
        if one.status_code != 200:
            error = one.json()["error"]
            assert (one.status_code, error["code"], error["details"]["reason"], error["retryable"]) == (
                409,
                "idempotency_conflict",
                "in_flight",
                True,
            )
    assert sum("idempotency-replayed" not in one.headers for one in good) == 1
    assert len(racing.http.get("/v1/trades", headers=headers).json()["trades"]) == 1


async def test_no_two_closes_close_twice(racing: Target) -> None:
    headers = {"Authorization": f"Bearer {racing.http.post('/v1/sandbox/accounts').json()['apiKey']}"}
    racing.price("BTC", "100000")
    racing.http.post("/v1/orders", json=ORDER, headers=headers)
    answers = await at_once(racing, [("/v1/positions/BTC/close", {}, headers)] * 32)
    assert sorted(one.status_code for one in answers) == [200] + [404] * 31
    assert racing.http.get("/v1/account", headers=headers).json()["positions"] == []


def pipelined(target: Target, path: str, key: str, count: int) -> Iterator[tuple[int, Message, Any]]:
    """Status, headers and body of so many answers to requests that ask for nothing. They are all sent before the first
    answer is read: how fast they come is the service's own matter.
    """
    url = httpx.URL(target.base_url)
    with socket.create_connection((url.host, url.port), timeout=60) as ours, ours.makefile("rb") as answers:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {url.host}\r\nAuthorization: Bearer {key}\r\nContent-Type:"
            " application/json\r\n"
        )
        ours.sendall(f"{head}Content-Length: 2\r\n\r\n{{}}".encode() * count)
        for _ in range(count):
            status = int(answers.readline().split()[1])
            headers = parse_headers(answers)
            yield status, headers, json.loads(answers.read(int(headers["content-length"])))


def test_rates_are_limited_each_in_its_bucket(start_own: OwnTarget) -> None:
    site = start_own(clock="real", hold_prices=True, markets=["BTC"])
    key, opened, began = "", 0, time.monotonic()
    while True:
        answer = site.http.post("/v1/sandbox/accounts")
        assert [name for name in owed(answer, site.base_url) if name != "x-sandbox-clock"] == []
        assert "x-sandbox-clock" not in answer.headers
        if answer.status_code != 200:
            break
        key, opened = answer.json()["apiKey"], opened + 1
        assert opened <= 60 + (time.monotonic() - began), "one a second comes back"
    assert opened >= 60
    assert answer.status_code == 429
    assert answer.json()["error"]["retryable"] is True
    assert int(answer.headers["retry-after"]) >= 1
    headers = {"Authorization": f"Bearer {key}"}
    racing = asyncio.run(at_once(site, [("/v1/orders", ORDER | {"dryRun": True}, headers)] * 60))
    assert {one.status_code for one in racing} == {200}
    refusals = pipelined(site, "/v1/orders", key, 1_000)
    before, told, body = next((n, told, body) for n, (status, told, body) in enumerate(refusals) if status == 429)
    error = body["error"]
    assert (error["code"], error["orderSubmitted"], error["retryable"]) == ("rate_limited", False, True)
    assert "retry-after" in told
    assert before > 100
    assert site.http.post("/v1/heartbeat", headers=headers).status_code == 200
    assert site.http.get("/v1/account", headers=headers).status_code == 200
    rates = {one["policy"]: one for one in site.http.get("/v1/account", headers=headers).json()["limits"]["rate"]}
    assert rates["orders"] == rates["orders"] | {"scope": "key", "perSecond": 50, "burst": 200}
    assert rates["default"] == rates["default"] | {"scope": "key", "perSecond": 100, "burst": 400}
    assert rates["public"]["scope"] == "ip"
    assert {"heartbeat", "kill", "accounts"} <= set(rates)
