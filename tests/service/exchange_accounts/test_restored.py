"""A service with the database of a backup: what it has asked for since then is found at the exchange, and not repeated.

It cannot be set to another time, either.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from bot.cli.app import call
from bot.local_exchange.server import http as exchange_http
from bot.runtime.journal.backup import write_copy
from bot.testing.hyperliquid import LocalExchange
from tests.service.conftest import CONTROL_TOKEN
from tests.service.exchange_accounts.followers import (
    ADDRESS,
    FUNDED,
    account_of,
    is_in_step,
    options_of,
    running,
    until,
)
from tests.service.exchange_accounts.traders import can_send, owner, trading, trading_options

BRACKET = {"bracket": {"stopLoss": {"pct": 2}}}
KEY = {"Idempotency-Key": "k"}


async def market_entry(http: httpx.AsyncClient) -> httpx.Response:
    order = {"market": "ETH", "side": "long", "size": "0.1", **BRACKET}
    return await http.post("/v1/orders", json=order, headers=KEY)


async def waiting_entry(http: httpx.AsyncClient) -> httpx.Response:
    order = {"market": "ETH", "side": "long", "type": "limit", "size": "0.1", "limitPx": "2000", **BRACKET}
    return await http.post("/v1/orders", json=order, headers=KEY)


async def close(http: httpx.AsyncClient) -> httpx.Response:
    return await http.post("/v1/positions/BTC/close", json={"fraction": 0.25}, headers=KEY)


def placed(exchange: LocalExchange) -> list[tuple[Any, ...]]:
    """All that the exchange has of us: fills and orders with an id of ours."""
    rows = exchange.info("userFills", user=ADDRESS) + exchange.info("frontendOpenOrders", user=ADDRESS)
    return sorted((row["coin"], row["oid"], row["sz"]) for row in rows if row.get("cloid"))


def restore(folder: Path) -> None:
    for path in folder.glob("a.db*"):
        path.unlink()
    (folder / "backup.db").rename(folder / "a.db")


Wish = Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]


@FUNDED
@pytest.mark.parametrize("wish", [market_entry, waiting_entry, close])
async def test_a_repeated_request_is_known_by_its_key(hyperliquid: LocalExchange, tmp_path: Path, wish: Wish) -> None:
    async with trading(hyperliquid, tmp_path) as trader:
        await trader.trade(0.04)
        write_copy(tmp_path / "a.db", tmp_path / "backup.db")
        answer = await wish(trader.http)
        assert answer.status_code == 200, answer.text
        before = placed(hyperliquid)
    restore(tmp_path)
    async with running(trading_options(hyperliquid, tmp_path)) as service:
        await until(lambda: can_send(service))
        async with owner(service) as http:
            again = await wish(http)
            assert (again.status_code, again.json()["error"]["code"]) == (409, "idempotency_conflict"), again.text
            assert again.json()["error"]["details"] == {"reason": "expired"}
        assert placed(hyperliquid) == before


def hide_fills(exchange: LocalExchange, patch: pytest.MonkeyPatch) -> None:
    """The exchange does not show its fills, as if it were behind with them."""
    usual = exchange_http.Application.info

    async def info(self: Any, scope: Any, body: Any) -> Any:
        is_hidden = body.get("type") == "userFillsByTime"
        return exchange_http.json_reply([]) if is_hidden else await usual(self, scope, body)

    patch.setattr(exchange_http.Application, "info", info)
    exchange.fault("socket_message", "lost", channel="userFills", count=1_000)


@FUNDED
async def test_a_close_is_looked_up_before_it_is_sent_while_fills_are_missing(
    hyperliquid: LocalExchange, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with trading(hyperliquid, tmp_path) as trader:
        await trader.trade(0.04)
        write_copy(tmp_path / "a.db", tmp_path / "backup.db")
        assert (await close(trader.http)).status_code == 200
        before = placed(hyperliquid)
    restore(tmp_path)
    hide_fills(hyperliquid, monkeypatch)
    async with running(trading_options(hyperliquid, tmp_path)) as service:
        known = account_of(service).exchange
        assert known is not None
        await until(lambda: known.link == "behind" and bool(known.signer), show=lambda: (known.link, known.link_reason))
        async with owner(service) as http:
            answer = await close(http)
            assert answer.json()["error"]["details"] == {"reason": "doubt"}, answer.text
            (action,) = known.actions.values()
            assert (action.kind, action.status) == ("place", "placed")
        assert placed(hyperliquid) == before


REFUSED = {
    "/sandbox/v1/restore": {"name": "a"},
    "/sandbox/v1/fork": {"name": "a"},
    "/sandbox/v1/reset": {},
    "/sandbox/v1/seed": {"seed": 7},
    "/sandbox/v1/clock/advance": {"ms": 1},
    "/sandbox/v1/markets/BTC/price": {"px": "1"},
    "/v1/sandbox/accounts/reset": {},
}


@FUNDED
async def test_its_past_its_time_and_its_prices_cannot_be_set(hyperliquid: LocalExchange, tmp_path: Path) -> None:
    async with running(options_of(hyperliquid, tmp_path / "a.db")) as service:
        await until(lambda: is_in_step(service))
        async with owner(service) as http:
            control = {"Authorization": f"Bearer {CONTROL_TOKEN}"}
            digest = (await http.get("/sandbox/v1/digest", headers=control)).json()["digest"]
            for path, body in REFUSED.items():
                answer = await http.post(path, json=body, headers=control if path.startswith("/sandbox") else None)
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (403, "forbidden"), (path, answer.text)
                assert "an exchange" in error["message"]
            speed = await http.patch("/sandbox/v1/clock", json={"speed": 60}, headers=control)
            assert (speed.status_code, speed.json()["error"]["code"]) == (403, "forbidden")
            assert (await http.get("/sandbox/v1/digest", headers=control)).json()["digest"] == digest
            listed = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
            accept = {"Accept": "application/json, text/event-stream"}
            tools = (await http.post("/mcp", json=listed, headers=accept)).json()["result"]["tools"]
            words = ("reset", "restore", "fork", "seed", "advance")
            assert [tool["name"] for tool in tools if any(word in tool["name"] for word in words)] == []


PLACE = ("--exchange-account", f"hyperliquid:3001:{ADDRESS}")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--db", ":memory:"), "needs a database file; name one with --db"),
        (("--seed", "7"), "cannot be set; remove --clock, --data, --seed and --start"),
        (("--clock", "60x"), "cannot be set; remove --clock, --data, --seed and --start"),
        (("--start", "1"), "cannot be set; remove --clock, --data, --seed and --start"),
        (("--real-money", "mainnet"), "--real-money needs an --exchange-account of mainnet"),
    ],
)
def test_options_that_would_set_them_are_refused(
    tmp_path: Path, options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    db = () if "--db" in options else ("--db", str(tmp_path / "a.db"))
    assert call(["sandbox", "--port", "0", *PLACE, *db, *options]) != 0
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error
