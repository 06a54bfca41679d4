"""The public page of a wallet: its figures are those of the interface, it keeps what is private, and it works
without JavaScript.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from html import unescape
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.service.docs.nav_chart import BOTTOM, TOP, ValuePoint, chart
from bot.service.docs.wallet_page import RANGES, TRADES_SHOWN
from tests.service import serving
from tests.service.conftest import Box, Caller

HOUR_MS = 3_600_000


async def trader(box: Box, trades: int) -> Caller:
    """An account that has made so many trades, has a position with a stop, and has existed for a while."""
    await box.price("BTC", "100000")
    caller = await box.caller(name="ada", startingBalanceUsd=10_000)
    stop = {"stopLoss": {"px": "91234"}}
    for number in range(trades):
        order = {"market": "BTC", "side": "long", "usdAmount": 100 + 2 * number, "bracket": stop}
        await caller.post("/v1/orders", order)
    for px in ("104000", "99000", "102000"):
        await box.advance(3 * HOUR_MS)
        await box.price("BTC", px)
    return caller


async def page_of(box: Box, caller: Caller, query: str = "") -> str:
    answer = await box.http.get(f"/watch/{caller.opened['address']}{query}")
    assert answer.status_code == 200, answer.text
    return answer.text


def cells(page: str, title: str) -> list[dict[str, str]]:
    """The rows of the table below a heading: column -> text."""
    section = page.split(f"<h2>{title}</h2>")[1].split("<h2>")[0]
    rows = re.findall(r"<tr>(<td.*?)</tr>", section)
    return [
        {
            column: unescape(re.sub(r"<[^>]+>", "", value))
            for column, value in re.findall(r'<td data-column="([^"]+)"[^>]*>(.*?)</td>', row)
        }
        for row in rows
    ]


async def test_the_page_has_a_chart_of_each_range_with_the_values_of_the_interface(box: Box) -> None:
    caller = await trader(box, trades=1)
    address = caller.opened["address"]
    gains = (await box.http.get(f"/v1/wallets/{address}/pnl")).json()["ranges"]
    for span, words in RANGES.items():
        page = await page_of(box, caller, f"?range={span}")
        assert re.findall(r'<a href="\?range=(\w+)"', page) == list(RANGES)
        assert re.findall(r'<a href="\?range=(\w+)" aria-current="page">', page) == [span]
        series = (await box.http.get(f"/v1/wallets/{address}/nav?range={span}")).json()["series"]
        drawn = re.findall(r'<polyline class="line" points="([^"]+)"', page)
        assert [len(line.split()) for line in drawn] == [len(series)]
        assert [row["Value, USD"] for row in cells(page, "Account value")] == [
            f"{Decimal(one['navUsd']):,.2f}" for one in reversed(series)
        ]
        start = Decimal(series[-1]["navUsd"]) - Decimal(gains[span])
        assert f"{words}: from {start:,.2f} to {Decimal(series[-1]['navUsd']):,.2f} USD" in page


async def test_the_page_has_positions_and_the_parts_of_the_result_and_no_stop(box: Box) -> None:
    caller = await trader(box, trades=2)
    page = await page_of(box, caller)
    (held,) = cells(page, "Positions")
    (position,) = (await caller.get("/v1/account"))["positions"]
    assert (held["Market"], held["Side"], held["Size"]) == ("BTC", "long 1x", position["size"])
    assert held["Unrealised, USD"] == f"+{Decimal(position['unrealizedPnlUsd']):,.2f}"
    assert position["stopPx"] == "91234"
    assert "91234" not in page.replace(",", "")
    parts = {row["Part"]: row["Amount, USD"] for row in cells(page, "Profit and loss")}
    pnl = (await box.http.get(f"/v1/wallets/{caller.opened['address']}/pnl")).json()
    assert parts["Fees"] == f"\u2212{Decimal(pnl['feesUsd']):,.2f}"
    assert parts["Net"] == f"+{Decimal(pnl['netPnlUsd']):,.2f}"


async def test_older_trades_are_on_the_next_pages_each_once(box: Box) -> None:
    caller = await trader(box, trades=TRADES_SHOWN + 3)
    first = await page_of(box, caller, "?range=1d")
    assert len(cells(first, "Trades")) == TRADES_SHOWN
    assert "Newest" not in first
    (older,) = re.findall(r'<a href="([^"]+)">Older</a>', first)
    assert "range=1d" in older
    second = await page_of(box, caller, unescape(older))
    sizes = [row["Filled"] for page in (first, second) for row in cells(page, "Trades")]
    assert len(set(sizes)) == len(sizes) == TRADES_SHOWN + 3
    assert ">Older<" not in second
    assert ">Newest<" in second


async def test_a_wrong_range_is_refused_and_a_new_account_has_no_chart(box: Box) -> None:
    caller = await box.caller()
    assert "<svg" not in await page_of(box, caller)
    answer = await box.http.get(f"/watch/{caller.opened['address']}?range=1y")
    assert answer.json()["error"]["code"] == "invalid_input"
    assert "1d" in answer.text


@given(st.lists(st.integers(0, 10**7), min_size=2, max_size=30), st.integers(0, 10**7))
def test_the_chart_keeps_every_value_inside_its_lines(cents: list[int], start: int) -> None:
    points = [ValuePoint(1_767_225_600_000 + n * HOUR_MS, Decimal(one) / 100) for n, one in enumerate(cents)]
    drawn = chart(points, Decimal(start) / 100, "value")
    spots = [
        tuple(map(float, one.split(","))) for one in re.findall(r'class="line" points="([^"]+)"', drawn)[0].split()
    ]
    assert [x for x, _ in spots] == sorted(x for x, _ in spots)
    assert (spots[0][0], spots[-1][0]) == (0, 1_000)
    assert all(TOP <= y <= BOTTOM for _, y in spots)
    labels = [Decimal(one.replace(",", "")) for one in re.findall(r">(-?[\d,.]+)</text>", drawn)]
    assert len(labels) == len(set(labels)) >= 2
    low, high = min(*points, key=lambda one: one.usd).usd, max(*points, key=lambda one: one.usd).usd
    assert min(labels) <= low
    assert max(labels) >= high


@pytest.fixture
def served() -> Iterator[serving.Served]:
    made = serving.start({"BOT_CONTROL_TOKEN": "bbc_test"}, clock="manual", port=0, markets=["BTC"], rate_limits=False)
    yield made
    serving.end(made)


def test_a_phone_without_javascript_shows_the_page_in_the_dark_and_changes_the_range(
    served: serving.Served, browser: Any
) -> None:
    opened = httpx.post(f"{served.base_url}/v1/sandbox/accounts", json={}).json()
    owner = {"Authorization": f"Bearer {opened['apiKey']}"}
    order = {"market": "BTC", "side": "long", "usdAmount": 500}
    assert httpx.post(f"{served.base_url}/v1/orders", json=order, headers=owner).is_success
    control = {"Authorization": "Bearer bbc_test"}
    assert httpx.post(
        f"{served.base_url}/sandbox/v1/clock/advance", json={"ms": 6 * HOUR_MS}, headers=control
    ).is_success
    phone = {"viewport": {"width": 390, "height": 844}, "java_script_enabled": False, "color_scheme": "dark"}
    page = browser.new_page(**phone)
    page.goto(f"{served.base_url}/watch/{opened['address']}")
    seven = page.locator("figure svg").first
    assert seven.bounding_box()["width"] > 250
    described = seven.get_attribute("aria-label")
    page.get_by_role("link", name="1 day").click()
    page.wait_for_url("**range=1d")
    assert page.locator("figure svg").first.get_attribute("aria-label") != described
    assert page.locator("td[data-column=Market]").first.bounding_box()["width"] <= 390
    assert page.locator("h1").evaluate("one => getComputedStyle(document.body).backgroundColor") == "rgb(18, 23, 30)"
