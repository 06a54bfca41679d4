"""Every method of the client against the service itself: each operation of the interface has one, and what it
answers is what the service says.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import httpx
import pytest

from bot.client import Client
from bot.client import account_calls as account_calls_module
from bot.client import client as client_module
from bot.client import control as control_module
from bot.errors import AccessLost, ApiError, Refused
from bot.service.host import HostOptions, Service, build
from bot.service.operations import device as device_module
from bot.service.security import attempt_limits
from bot.wire import (
    CloseRequest,
    GuardianRequest,
    KeyRequest,
    OrderRequest,
    OtpRequest,
    SettingsRequest,
    SuggestRequest,
    VerifyRequest,
    WebhookRequest,
    interface,
)
from bot.wire.interface import Operation

START_MS = 1_750_000_020_000
ORDER = OrderRequest(market="BTC", side="long", usd_amount=Decimal(100))


class ServiceAndClients:
    """A service and clients of it."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.transport = httpx.ASGITransport(service.app)
        self.clients: list[Client] = []

    def client(self, secret: str | None = None) -> Client:
        self.clients.append(Client("http://127.0.0.1", secret, transport=self.transport))
        return self.clients[-1]

    async def owner(self) -> Client:
        return self.client((await self.client().create_sandbox_account(name="owner")).api_key)


@pytest.fixture
async def site() -> AsyncIterator[ServiceAndClients]:
    service = build(HostOptions(clock="manual", start_ms=START_MS, hold_prices=True, markets=("BTC", "ETH")))
    await service.start()
    made = ServiceAndClients(service)
    yield made
    for client in made.clients:
        await client.aclose()
    await service.stop()


def test_every_operation_of_the_interface_has_a_method() -> None:
    """Read from the methods' own text: an operation that no method calls is named here."""
    modules = (client_module, account_calls_module, control_module)
    called = {name for module in modules for name in re.findall(r"interface\.([A-Z_]+)\b", inspect.getsource(module))}
    # `stream`, by way of bot.client.stream
    called.add("EVENT_STREAM")
    wanted = {name for name, row in vars(interface).items() if isinstance(row, Operation) and row.group != "Documents"}
    assert called ^ wanted == {"WATCH_WALLET"}


async def test_onboarding_and_views(site: ServiceAndClients) -> None:
    client = await site.owner()
    assert (await client.changelog()).current_version == "2026-10-19"
    assert "GB" in [one.code for one in await client.countries()]
    address = (await client.account()).address
    await client.place(ORDER, key="k")
    portfolio, home, funding = await client.portfolio(), await client.home(), await client.funding()
    assert (portfolio.address, home.wallet.address, funding.address) == (address, address, address)
    assert [p.coin for p in portfolio.positions] == [p.coin for p in home.portfolio.positions] == ["BTC"]
    assert funding.play_money and not funding.withdrawals
    nobody = site.client()
    wallet = await nobody.wallet(address)
    assert wallet.registered and [p.coin for p in wallet.positions] == ["BTC"]
    assert len((await nobody.wallet_positions(address)).positions) == 1
    assert (await nobody.wallet_pnl(address)).trades == 1
    nav = await nobody.wallet_nav(address, "1d")
    assert (nav.range, nav.series is not None and nav.series[-1].nav_usd) == ("1d", nav.nav_usd)
    page = await nobody.wallet_trades(address, limit=1)
    assert (page.trades[0].symbol, page.trades[0].idempotency_key, page.next_before) == ("BTC", None, None)
    with pytest.raises(Refused):
        await nobody.wallet("0x12")


async def test_keys_settings_and_webhooks(site: ServiceAndClients) -> None:
    owner = await site.owner()
    made = await owner.create_key(KeyRequest(name="reader", scopes=("read",), max_leverage=3), key="one")
    again = await owner.create_key(KeyRequest(name="reader", scopes=("read",), max_leverage=3), key="one")
    assert made.api_key is not None and (again.id, again.api_key) == (made.id, None)
    assert made.api_key not in repr(made)
    assert [one.name for one in await owner.keys()] == ["owner", "reader"]
    reader = site.client(made.api_key)
    assert (await reader.limits()).key is not None
    with pytest.raises(Refused):
        await reader.keys()
    await owner.revoke_key(made.id)
    with pytest.raises(AccessLost):
        await reader.account()
    caps = await owner.change_settings(SettingsRequest(max_trade_usd=Decimal(50), daily_trade_cap_usd=Decimal(75)))
    assert (caps.max_trade_usd, caps.daily_trade_cap_usd) == (Decimal(50), Decimal(75))
    with pytest.raises(Refused) as over:
        await owner.place(ORDER, key="k")
    assert over.value.code == "limit_exceeded"
    await owner.change_settings(SettingsRequest(max_trade_usd=None))
    caps = await owner.settings()
    assert (caps.max_trade_usd, caps.daily_trade_cap_usd) == (None, Decimal(75))
    hook = await owner.create_webhook(WebhookRequest(url="http://127.0.0.1:9/h", types=("settlement",)), key="h")
    assert hook.secret is not None and hook.secret not in repr(hook)
    assert [(one.id, one.types) for one in await owner.webhooks()] == [(hook.id, ("settlement",))]
    await owner.revoke_webhook(hook.id)
    assert await owner.webhooks() == []


async def test_a_phone_signs_in_and_out(site: ServiceAndClients) -> None:
    nobody = site.client()
    sent = await nobody.send_code(OtpRequest(phone_number="07911 123456", country="GB"))
    assert sent.sandbox_code is not None
    signed = await nobody.verify(VerifyRequest(phone_number=sent.phone_number, code=sent.sandbox_code, nickname="ada"))
    assert signed.new_user and signed.access_token not in repr(signed)
    session = site.client(signed.access_token)
    assert (await session.account()).nickname == "ada"
    await session.end_session()
    with pytest.raises(AccessLost):
        await session.account()
    with pytest.raises(Refused):
        await (await site.owner()).end_session()


async def test_a_device_waits_for_its_person(site: ServiceAndClients, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [1_000.0]
    for module in (device_module, attempt_limits):
        monkeypatch.setattr(module, "monotonic_ns", lambda: int(seconds[0] * 1_000_000_000))
    owner = await site.owner()
    device = await site.client().start_device()
    waits: list[float] = []

    async def sleep(wait: float) -> None:
        waits.append(wait)
        # The second time it asks too soon.
        seconds[0] += wait if len(waits) != 2 else 1
        if len(waits) == 4:
            await approve(site, device.user_code, owner)

    token = await site.client().wait_for_device(device, sleep=sleep)
    assert waits == [5, 5, 10, 10]
    machine = site.client(token.access_token)
    assert (await machine.account()).address == token.address
    other = await site.client().start_device()
    with pytest.raises(ApiError) as gone:
        await site.client().device_token(other.device_code[:-4] + "AAAA")
    assert gone.value.code in ("unauthorized", "not_found")


async def approve(site: ServiceAndClients, user_code: str, owner: Client) -> None:
    """What a person does in a browser."""
    secret: Any = owner._secret
    async with httpx.AsyncClient(transport=site.transport, base_url="http://127.0.0.1") as http:
        page = await http.get("/device")
        found = re.search(r'name="csrf" value="([^"]+)"', page.text)
        assert found is not None
        for form in (
            {"step": "code", "userCode": user_code},
            {"step": "key", "apiKey": secret.get_secret_value()},
            {"step": "approve", "name": "device", "scope": "read"},
        ):
            origin = {"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "same-origin"}
            answer = await http.post("/device", data={"csrf": found[1], **form}, headers=origin)
            assert answer.status_code == 200, answer.text


async def test_trading_from_the_plan_to_the_kill(site: ServiceAndClients) -> None:
    client = await site.owner()
    assert (await client.start()).apis.rest.base_url
    assert (await client.status()).status == "ok"
    assert [m.coin for m in (await client.markets(view="all")).markets] == ["BTC", "ETH"]
    assert (await client.candles("BTC", "1m", 3)).candles and (await client.book("BTC")).bids
    found = await client.suggest(SuggestRequest(coin="BTC"))
    assert found.feasible
    plan = await client.plan(ORDER)
    made = await client.confirm(plan.confirm_token, key="c")
    resting = await client.place(
        OrderRequest(market="BTC", side="long", usd_amount=Decimal(20), type="limit", limit_px="90000"), key="l"
    )
    assert [one.oid for one in await client.orders("BTC")] == [resting.trade.venue_oid]
    await client.cancel(str(resting.trade.venue_oid))
    assert (await client.cancel_coin("BTC")).canceled_oids == ()
    armed = await client.arm(GuardianRequest(type="dead_man_switch", heartbeat_seconds=60), key="g")
    assert [one.id for one in (await client.heartbeat()).guardians] == [armed.id]
    await client.disarm(armed.id)
    assert (await client.close("BTC", CloseRequest(fraction=Decimal("0.5")), key="x")).trade.intent == "close"
    killed = await client.kill(flatten=True, key="z")
    assert killed.positions == () and (await client.kill(flatten=True, key="z")) == killed
    assert [one.type for one in await client.guardians()] == ["kill_switch"]
    assert {e.type for e in (await client.events()).events} >= {"fill", "guardian", "order"}
    assert (await client.trades(coin="BTC")).trades[-1].id == made.trade.id
    reset = await client.reset()
    assert (reset.epoch, (await client.account()).epoch) == (1, 1)
