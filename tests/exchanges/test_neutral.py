"""Every word of an exchange stands in the folder of that exchange."""

from __future__ import annotations

import re
from pathlib import Path

from bot.exchanges.link.values import KINDS, packed, unpacked
from bot.exchanges.protocol import (
    AccountStanding,
    ExecutionReport,
    FundingReport,
    LinkHealth,
    LiquidationReport,
    OpenOrders,
    OrderUpdate,
    TransferReport,
)
from bot.market_data.source import Page, Quote, Row
from tests.exchanges.reports import report

WORDS = re.compile(
    r"hyperliquid|\bdex\b|szDecimals|clearinghouse|cloid|\boid\b|tpsl|noop|l2Book|allMids|USDC", re.IGNORECASE
)


def test_the_neutral_modules_contain_no_word_of_an_exchange(repository: Path) -> None:
    folder = repository / "bot/exchanges"
    neutral = [path for path in folder.rglob("*.py") if "hyperliquid" not in path.relative_to(folder).parts]
    assert {"protocol.py", "registry.py", "websocket.py", "process.py", "client.py"} <= {path.name for path in neutral}
    for path in neutral:
        found = [line for line in path.read_text().splitlines() if WORDS.search(line)]
        assert found == [], path


def test_each_value_is_the_same_on_the_other_side_of_the_link() -> None:
    fill = report(-3, 5, 7)
    values = [
        fill,
        Quote("BTC", None, 1.5, None, None),
        Page([Row(1, 1.0, 2.0, 0.5, 1.5, 3.0)], 60_000),
        AccountStanding(1, -(10**18), 2, 3, 4, (), "x"),
        OpenOrders("", ()),
        FundingReport("BTC", 1, -2, -3, 4),
        TransferReport("x", 1, "unknown", None),
        LiquidationReport("x", 1, "", True, (("BTC", -1),)),
        OrderUpdate("1", None, "BTC", 1, "canceled", "user"),
        LinkHealth(1, 2, 3, 4, 5, 6, None, None),
    ]
    for value in values:
        assert unpacked(packed(value)) == value
        assert type(unpacked(packed(value))) is type(value)
    assert len({kind.__name__ for kind in KINDS}) == len(KINDS)
    assert isinstance(unpacked(packed(fill)), ExecutionReport)
