"""Access: keys, scopes, the owner, the control's token."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from bot.errors import Refusal
from bot.service.operations import webhooks
from bot.service.security.auth import OWNER_SCOPES, Principal, authenticate, mint, refuse_access
from bot.venue.model.commands import RevokeKey
from bot.venue.model.state import State, VenueKey
from bot.wire.interface import Access
from tests.service.builders import ENTRY, assert_refused, owner, scoped
from tests.service.conftest import START_MS, Box, Caller, OpenBox


def test_a_key_has_its_form_and_only_its_digest_is_stored() -> None:
    minted = mint(42)
    assert re.fullmatch(r"bbk_test_24000000_[0-9A-Za-z]{43}_[0-9A-Za-z]{6}", minted.secret)
    assert minted.prefix == minted.secret[:12]
    assert minted.key_id == "key_00000042"
    assert mint(42).secret != minted.secret
    state = State()
    state.keys[minted.key_id] = VenueKey(
        minted.key_id, "a", "k", minted.prefix, minted.digest, ("read",), 0, "key", expires_ms=10
    )
    known = authenticate(state, f"Bearer {minted.secret}", 9)
    assert isinstance(known, Principal)
    assert minted.secret not in repr(state)
    expired = authenticate(state, f"Bearer {minted.secret}", 10)
    assert isinstance(expired, Refusal)
    assert expired.code == "session_expired"
    for wrong in (minted.secret[:-1], minted.secret.replace("24000000", "14000000"), minted.secret + "x", "", "é"):
        refused = authenticate(state, f"Bearer {wrong}", 9)
        assert isinstance(refused, Refusal), wrong
        assert refused.code == "unauthorized"


@pytest.mark.parametrize("access", list(Access))
def test_the_scopes_allow_exactly_the_rights_of_the_table(access: Access) -> None:
    allowed = {
        Access.NONE: {"read", "trade", "trade:close_only", "outcomes", "owner"},
        Access.READ: {"read"},
        Access.TRADE: {"trade"},
        # the operation checks which
        Access.SHRINK: {"trade", "trade:close_only", "outcomes"},
        Access.ANY: {"read", "trade", "trade:close_only", "outcomes", "owner"},
        Access.OWNER: {"owner"},
        Access.CONTROL: {"read", "trade", "trade:close_only", "outcomes", "owner"},
    }[access]
    for scope in ("read", "trade", "trade:close_only", "outcomes", "owner"):
        principal = Principal("a", "k", frozenset({scope}), owner=scope == "owner")
        assert (refuse_access(principal, access) is None) == (scope in allowed), scope


async def test_trade_does_not_imply_read_nor_read_trade(box: Box, caller: Caller) -> None:
    reader, trader = scoped(box, caller, "read"), scoped(box, caller, "trade")
    assert (await reader.send("GET", "/v1/account")).status_code == 200
    answer = await reader.send("POST", "/v1/orders", ENTRY)
    error = assert_refused(answer, 403, "forbidden")
    assert error["orderSubmitted"] is False
    assert 'error="insufficient_scope", scope="trade"' in answer.headers["www-authenticate"]
    assert_refused(await trader.send("GET", "/v1/account"), 403, "forbidden")
    assert (await trader.send("POST", "/v1/orders", ENTRY)).status_code == 200
    assert_refused(await trader.send("POST", "/v1/sandbox/accounts/reset", {}), 403, "forbidden")


async def test_a_key_that_only_closes_never_opens(box: Box, caller: Caller) -> None:
    closer = scoped(box, caller, "read", "trade:close_only")
    assert (await closer.send("POST", "/v1/orders", ENTRY)).status_code == 403
    await caller.post("/v1/orders", ENTRY)
    assert (await closer.send("POST", "/v1/orders", ENTRY)).status_code == 403
    against = {"market": "BTC", "side": "short", "usdAmount": 900_000}
    made = (await closer.send("POST", "/v1/orders", against)).json()
    # Cut to the position: it never flips.
    assert made["position"] is None
    assert made["trade"]["reduceOnly"] is True
    plan = await caller.post("/v1/orders", ENTRY | {"dryRun": True})
    stolen = await closer.send("POST", "/v1/orders/confirm", {"confirmToken": plan["confirmToken"]})
    assert_refused(stolen, 403, "forbidden")
    # The token is not used up.
    await caller.post("/v1/orders/confirm", {"confirmToken": plan["confirmToken"]})
    stop = (await caller.get("/v1/orders"))["orders"][0]["oid"]
    assert_refused(await closer.send("DELETE", f"/v1/orders/{stop}"), 403, "forbidden")
    # No other spelling of it gets past that.
    for other in (f"0{stop}", f"00{stop}", f"{stop}%20", f"+{stop}"):
        assert_refused(await closer.send("DELETE", f"/v1/orders/{other}"), 404, "not_found")
    resting = await caller.post(
        "/v1/orders", ENTRY | {"type": "limit", "limitPx": "90000", "usdAmount": 100, "leverage": 5}
    )
    entry = next(o["oid"] for o in resting["orders"] if o["kind"] == "limit")
    canceled = (await closer.send("DELETE", "/v1/orders", {"coin": "BTC"})).json()
    assert canceled == {"coin": "BTC", "canceledOids": [entry], "unprotected": False}
    assert len((await closer.get("/v1/orders"))["orders"]) == 2
    assert_refused(await closer.send("POST", "/v1/guardians", {"type": "kill_switch"}), 403, "forbidden")
    armed = await closer.send("POST", "/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 60})
    assert armed.status_code == 200
    assert_refused(await closer.send("DELETE", f"/v1/guardians/{armed.json()['id']}"), 403, "forbidden")
    assert (await closer.send("POST", "/v1/heartbeat", {})).status_code == 200
    assert (await closer.send("POST", "/v1/positions/BTC/close", {})).status_code == 200


@pytest.mark.parametrize(("meanwhile", "left"), [(None, "0.005"), ("part", None), ("all", None), ("turned", "0.02")])
async def test_a_close_only_key_confirms_only_reducing_plans_of_any_key(
    box: Box, caller: Caller, meanwhile: str | None, left: str | None
) -> None:
    """Reduce-only, after any change of the position: cut to the position, and refused if nothing is left to close."""
    closer = scoped(box, caller, "read", "trade:close_only")
    exit_ = {"market": "BTC", "side": "short", "size": "0.01"}
    await caller.post("/v1/orders", {"market": "BTC", "side": "long", "size": "0.015"})
    turning = await caller.post("/v1/orders", exit_ | {"size": "0.016", "dryRun": True})
    assert_refused(
        await closer.send("POST", "/v1/orders/confirm", {"confirmToken": turning["confirmToken"]}), 403, "forbidden"
    )
    plan = await caller.post("/v1/orders", exit_ | {"dryRun": True})
    if meanwhile == "part":
        await caller.post("/v1/positions/BTC/close", {"size": "0.006"})
    elif meanwhile == "all":
        await caller.post("/v1/positions/BTC/close", {})
    elif meanwhile == "turned":
        await caller.post("/v1/orders", exit_ | {"size": "0.035"})
    done = await closer.send("POST", "/v1/orders/confirm", {"confirmToken": plan["confirmToken"]})
    if meanwhile in ("all", "turned"):
        assert assert_refused(done, 403, "forbidden")["fix"] == {"action": "replan"}
    else:
        trade = done.json()["trade"]
        assert (trade["reduceOnly"], trade["intent"]) == (True, "close")
        assert trade["filledSize"] == ("0.009" if meanwhile else "0.01")
    held = (await caller.get("/v1/account"))["positions"]
    assert (held[0]["size"] if held else None) == left


async def test_a_revoked_key_is_refused_at_once(box: Box, caller: Caller) -> None:
    reader = scoped(box, caller, "read")
    assert (await reader.send("GET", "/v1/account")).status_code == 200
    box.service.machine.run(RevokeKey(caller.opened["accountId"], reader.opened["keyId"]))
    assert_refused(await reader.send("GET", "/v1/account"), 401, "unauthorized")


@pytest.mark.parametrize("way", ["revoked key", "expired key", "ended session"])
async def test_a_credential_that_ends_while_its_request_arrives_has_no_effect(
    box: Box, caller: Caller, way: str
) -> None:
    expires = {"expiresAt": START_MS + 1_000} if way == "expired key" else {}
    key = Caller(box.http, await caller.post("/v1/keys", {"scopes": ["read", "trade"], **expires}))
    asking = await owner(box) if way == "ended session" else key

    async def ends() -> None:
        if way == "revoked key":
            await caller.delete(f"/v1/keys/{key.opened['id']}")
        elif way == "expired key":
            await box.advance(1_000)
        else:
            await asking.delete("/v1/auth/session")

    before = (await box.digest())["events"]
    answer = await box.post_slowly(asking, "/v1/orders", ENTRY, meanwhile=ends)
    error = assert_refused(answer, 401, "session_expired" if way == "expired key" else "unauthorized")
    assert error["orderSubmitted"] is False
    assert answer.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    # key_revoked alone
    assert (await box.digest())["events"] - before == (1 if way == "revoked key" else 0)


async def test_a_key_that_is_revoked_while_a_name_is_looked_up_registers_no_webhook(
    box: Box, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await owner(box)

    async def slowly(*_: Any, **__: Any) -> list[str]:
        await first.delete("/v1/auth/session")
        return ["127.0.0.1"]

    monkeypatch.setattr(webhooks, "addresses_of", slowly)
    assert_refused(await first.send("POST", "/v1/webhooks", {"url": "http://127.0.0.1:9/"}), 401, "unauthorized")
    assert box.service.machine.state.webhooks == {}


async def test_the_control_requires_its_own_token(box: Box, caller: Caller, open_box: OpenBox) -> None:
    for headers in ({}, caller.headers, {"Authorization": "Bearer bbc_tes"}, {"Authorization": "Bearer "}):
        assert_refused(await box.http.get("/sandbox/v1/clock", headers=headers), 401, "unauthorized")
    off = replace(await open_box())
    off.service.app._control_token = None
    for token in ("", "None", "bbc_test"):
        answer = await off.http.get("/sandbox/v1/clock", headers={"Authorization": f"Bearer {token}"})
        assert_refused(answer, 401, "unauthorized")


async def test_minting_a_key_opens_the_embedded_account_once_and_revokes_the_key_before(box: Box) -> None:
    async def make(account: str | None = None) -> Any:
        return (await box.http.post("/sandbox/v1/keys", json={"accountId": account}, headers=box.control)).json()

    first, second = await make(), await make()
    assert first["accountId"] == second["accountId"]
    assert first["address"] == second["address"]
    assert_refused(await Caller(box.http, first).send("GET", "/v1/account"), 401, "unauthorized")
    caller = Caller(box.http, second)
    assert (await caller.get("/v1/account"))["nickname"] == "embedded"
    assert set((await caller.get("/v1/limits"))["key"]["scopes"]) == set(OWNER_SCOPES)
    third = await make(first["accountId"])
    assert third["accountId"] == first["accountId"]
    gone = await box.http.post("/sandbox/v1/keys", json={"accountId": "acc_99"}, headers=box.control)
    assert_refused(gone, 404, "not_found")
    # More than an account may have at once, so earlier keys have ended.
    for _ in range(60):
        third = await make()
    assert "apiKey" in third


async def test_an_account_of_that_name_is_not_the_embedded_one(box: Box) -> None:
    other = await box.caller(name="embedded")
    own = Caller(box.http, await other.post("/v1/keys", {"name": "embedded daemon"}))
    minted = [(await box.http.post("/sandbox/v1/keys", json={}, headers=box.control)).json() for _ in range(2)]
    assert {one["accountId"] for one in minted} == {"acc_00000002"}
    await box.http.post("/sandbox/v1/keys", json={"accountId": "acc_00000001"}, headers=box.control)
    # Another key of that name does not end.
    assert (await own.get("/v1/account"))["accountId"] == other.opened["accountId"]
    later = (await box.http.post("/sandbox/v1/keys", json={}, headers=box.control)).json()
    assert later["accountId"] == "acc_00000002"
