"""Answers of the exchange as neutral values, and those that are in no known form."""

from __future__ import annotations

import ast
import asyncio
import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bot.exchanges.hyperliquid import form
from bot.exchanges.hyperliquid.account import HyperliquidAccount
from bot.exchanges.protocol import UnknownForm
from bot.money import format_e8, parse_e8
from tests.exchanges.sources import account_of
from tests.local_exchange.exchanges import ANN, BOB, BTC, Venue, limit, trigger

CLOID = "0x" + "1" * 32


@pytest.fixture
def venue() -> Venue:
    """An account with a long position, its stop, a resting bracket, and fills."""
    venue = Venue(switches={"children_rows": "twice"})
    venue.place(ANN, limit(BTC, "B", "0.05", "110000", "Ioc", cloid=CLOID), limit(BTC, "A", "0.01", "90000", "Ioc"))
    venue.place(ANN, trigger(BTC, "A", "0", "90000", "sl"), grouping="positionTpsl")
    venue.place(ANN, limit(BTC, "B", "0.02", "99000"), trigger(BTC, "A", "0.02", "80000", "sl"), grouping="normalTpsl")
    return venue


async def test_an_account_is_read_as_it_is(venue: Venue) -> None:
    _, account = account_of(venue)
    standing = await account.standing()
    (position,) = standing.positions
    assert (position.market, format_e8(position.signed_size)) == ("BTC", "0.04")
    assert standing.cash + position.signed_size * venue.exchange.coins["BTC"].market.mark // 10**8 == standing.value
    orders = {(one.kind, one.is_waiting): one for one in await account.open_orders()}
    assert set(orders) == {("stop", False), ("limit", False), ("stop", True)}
    assert orders["stop", False].is_for_position
    assert orders["stop", False].trigger_px == parse_e8("90000")
    fills = (await account.fills(0, standing.at_ms)).reports
    assert fills[0].position_before == 0
    assert fills[-1].position_after == position.signed_size
    assert fills[0].client_order_id == CLOID
    assert (await account.budget()).used == venue.exchange.users[ANN].requests


@pytest.mark.parametrize("switch", ["once", "twice"])
async def test_a_waiting_child_is_one_order_however_often_it_is_told(venue: Venue, switch: str) -> None:
    venue.control("switch", name="children_rows", value=switch)
    _, account = account_of(venue)
    orders = await account.open_orders()
    assert sorted(one.is_waiting for one in orders) == [False, False, True]


# Request -> how it is read.
READERS: dict[str, Callable[[Any], Any]] = {
    "meta": form.listings,
    "clearinghouseState": form.standing,
    "frontendOpenOrders": form.open_orders,
    "userFillsByTime": lambda answer: form.fills(answer, ANN),
    "userRateLimit": form.request_budget,
    "l2Book": form.book_time,
    "userRole": form.address_report,
    "extraAgents": form.agents,
    "userAbstraction": form.account_mode,
    "perpDexs": form.dex_names,
}
WRONG: tuple[Any, ...] = (
    None,
    True,
    -1,
    1.5,
    10**30,
    "",
    "1e5",
    "NaN",
    "0.123456789",
    "x" * 5_000,
    [],
    {},
    [None],
    [[]],
)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Places of all values in an answer."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, one in inner:
        yield from leaves(one, (*path, key))


def changed(answer: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    found = copy.deepcopy(answer)
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return found


def refusal(kind: str, answer: Any) -> str | None:
    try:
        READERS[kind](answer)
    except UnknownForm as error:
        return str(error)
    return None


@pytest.mark.parametrize("kind", READERS)
async def test_any_wrong_value_in_any_place_is_read_or_refused_with_its_place(venue: Venue, kind: str) -> None:
    source, _ = account_of(venue)
    answer = await source.info({"type": kind, "user": ANN, "coin": "BTC", "startTime": 0})
    assert refusal(kind, answer) is None
    refused = 0
    for path in leaves(answer):
        for value in WRONG:
            said = refusal(kind, changed(answer, path, value))
            assert said is None or (said.startswith(kind) and len(said) < 400)
            refused += said is not None
    assert refused > len(WRONG) // 2


@pytest.mark.parametrize(
    ("kind", "path", "value", "words"),
    [
        (
            "userFillsByTime",
            (0, "px"),
            "0.123456789",
            "userFillsByTime[0].px: expected a decimal with at most 8 decimals",
        ),
        ("userFillsByTime", (0, "sz"), "0.0", "userFillsByTime[0].sz: expected a positive size"),
        ("userFillsByTime", (1, "side"), "C", "userFillsByTime[1].side: expected one of B, A"),
        ("userFillsByTime", (0, "tid"), "7", "userFillsByTime[0].tid: expected a whole number from 0"),
        (
            "clearinghouseState",
            ("assetPositions", 0, "type"),
            "hedge",
            "assetPositions[0].type: expected one of oneWay",
        ),
        ("frontendOpenOrders", (0, "orderType"), "Iceberg", "frontendOpenOrders[0].orderType: expected one of Limit"),
        ("userRole", ("role",), "king", "userRole.role: expected one of user, agent"),
    ],
)
async def test_a_form_that_is_unknown_is_refused_with_its_field(
    venue: Venue, kind: str, path: tuple[Any, ...], value: Any, words: str
) -> None:
    source, _ = account_of(venue)
    answer = await source.info({"type": kind, "user": ANN, "startTime": 0})
    with pytest.raises(UnknownForm) as caught:
        READERS[kind](changed(answer, path, value))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "fill"),
        ({"liquidation": {"liquidatedUser": ANN.upper().replace("0X", "0x"), "method": "market"}}, "liquidation"),
        ({"liquidation": {"liquidatedUser": ANN, "method": "backstop"}}, "backstop"),
        ({"liquidation": {"liquidatedUser": BOB, "method": "market"}}, "fill"),
        ({"dir": "Auto-Deleveraging"}, "adl"),
    ],
)
async def test_a_fill_is_a_liquidation_only_if_the_account_itself_was_liquidated(
    venue: Venue, changes: dict[str, Any], kind: str
) -> None:
    source, _ = account_of(venue)
    answer = await source.info({"type": "userFillsByTime", "user": ANN, "startTime": 0})
    assert form.fills([answer[0] | changes], ANN)[0].kind == kind


def test_fills_of_spot_and_outcomes_are_left_out(venue: Venue) -> None:
    source, _ = account_of(venue)
    answer = asyncio.run(source.info({"type": "userFillsByTime", "user": ANN, "startTime": 0}))
    for coin in ("PURR/USDC", "@107", "#5"):
        assert len(form.fills([answer[0] | {"coin": coin}, *answer[1:]], ANN)) == len(answer) - 1
    assert len(form.fills([answer[0] | {"coin": "xyz:TSLA"}, *answer[1:]], ANN)) == len(answer)


@pytest.mark.parametrize("kind", ["meta", "userRateLimit", "userRole", "extraAgents", "l2Book"])
def test_recorded_answers_of_the_exchange_are_read(shared: Path, kind: str) -> None:
    file = shared / "data" / "hyperliquid" / "recorded" / f"{kind}.json"
    if not file.is_file():
        pytest.skip("the recorded answers are not here")
    for recording in json.loads(file.read_text())["recordings"]:
        READERS[kind](recording["response"])


def test_neutral_modules_contain_no_word_of_an_exchange(repository: Path) -> None:
    folder = repository / "bot" / "exchanges"
    named = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
    words = {
        path: [word for word in ("hyperliquid", "cloid", "oid", "tpsl", "dex") if word in names(path)]
        for path in (folder / name for name in named)
    }
    assert named and not any(words.values()), words


def names(path: Path) -> set[str]:
    """Every identifier and every word of the texts of a module, in lower case."""
    tree = ast.parse(path.read_text())
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    fields = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return {word.lower().strip("`.,:;") for text in [*texts, *fields] for word in text.split()}


def test_account_has_no_method_that_changes_anything() -> None:
    public = {name for name in vars(HyperliquidAccount) if not name.startswith("_")}
    assert public == {
        "address_report",
        "agents",
        "budget",
        "dex_names",
        "exchange_ms",
        "fills",
        "funding",
        "ledger",
        "listings",
        "mode",
        "open_orders",
        "order",
        "reading",
        "standing",
    }
