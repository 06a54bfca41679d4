"""What a service with live prices says of them, in the log, in `bot status` and in the metrics.

The service's answers are given by hand.
"""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from bot.cli.common.event_lines import Narrator
from bot.cli.operate.status import _price_lines
from bot.errors import ApiError
from bot.runtime.control_plane.metrics import Figures
from bot.runtime.control_plane.price_watch import PriceWatch
from bot.wire.market import StatusResult

NOW_MS = 1_746_057_600_000
OPEN = {"coin": "ETH", "symbol": "ETH/USDT:USDT", "open": True, "quotedAt": NOW_MS - 2_500, "refused": {}}
CLOSED = {
    "coin": "BTC",
    "symbol": "BTC/USDT:USDT",
    "open": False,
    "reason": "no price for 30 s",
    "since": NOW_MS - 10_000,
    "quotedAt": NOW_MS - 40_000,
    "refused": {"crossed": 2, "jump": 1},
}
LOST = {
    "source": "ccxt:binance",
    "connected": False,
    "trouble": "no answer\ncheck the network",
    "markets": [CLOSED, OPEN],
}
BACK = LOST | {
    "connected": True,
    "trouble": None,
    "transport": "websocket",
    "clockDifferenceMs": -2_000,
    "missing": {"funding": "it has none"},
    "markets": [CLOSED | {"open": True, "reason": None, "since": None}, OPEN],
}


class Service:
    """Gives the next of some answers; an error is raised."""

    def __init__(self, *answers: dict[str, Any] | ApiError | None) -> None:
        self.answers = list(answers)
        self.clock = SimpleNamespace(now_ms=lambda: NOW_MS)

    async def status(self) -> StatusResult:
        answer = self.answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return StatusResult.model_validate({"status": "ok"} | ({} if answer is None else {"prices": answer}))


async def watched(*answers: dict[str, Any] | ApiError | None) -> tuple[PriceWatch, list[Any]]:
    """A watch that has had these answers, and what it has logged."""
    service: Any = Service(*answers)
    watch = PriceWatch(service)

    async def sleep(_seconds: float) -> None:
        if not service.answers:
            raise StopAsyncIteration

    with capture_logs() as logged, suppress(StopAsyncIteration):
        await watch.run(sleep)
    assert not service.answers
    return watch, logged


async def test_a_service_without_live_prices_is_asked_once() -> None:
    watch, logged = await watched(None)
    assert (watch.document(), logged) == (None, [])


async def test_a_lost_source_and_its_return_are_logged_once_each_in_words_for_a_person() -> None:
    away = ApiError("connect", "refused")
    _, logged = await watched(LOST, LOST, away, BACK)
    assert [one["event"] for one in logged] == [
        "prices.disconnected",
        "prices.market_closed",
        "prices.connected",
        "prices.market_opened",
    ]
    lines: list[str] = []
    narrator = Narrator(lambda line, _style: lines.append(line[10:]))
    for one in logged:
        narrator(one | {"level": one["log_level"]})
    assert lines == [
        "warning           ccxt:binance is not connected: no answer",
        "warning    BTC    no position may be opened: no price for 30 s",
        "prices            ccxt:binance is connected by websocket",
        "prices     BTC    prices come; positions may be opened",
    ]


async def test_a_start_without_the_source_is_logged_again_when_the_reason_is_known() -> None:
    starting = LOST | {"trouble": None, "markets": []}
    _, logged = await watched(starting, starting, LOST | {"markets": []}, LOST | {"markets": [], "trouble": "again"})
    assert [one["message"] for one in logged] == ["it has sent no price yet", "no answer\ncheck the network"]


async def test_status_says_what_is_lost_since_when_and_why() -> None:
    watch, _ = await watched(LOST)
    assert list(_price_lines(watch.document())) == [
        (
            "  prices      ccxt:binance NOT CONNECTED since 2025-05-01T00:00:00.000Z: no answer; 2 markets, oldest"
            " price 40 s"
        ),
        (
            "  prices      BTC CLOSED FOR OPENINGS since 2025-04-30T23:59:50.000Z: no price for 30 s; quotes refused: 2"
            " crossed, 1 jump"
        ),
    ]
    watch, _ = await watched(LOST, BACK)
    assert list(_price_lines(watch.document())) == [
        (
            "  prices      ccxt:binance connected by websocket since 2025-05-01T00:00:00.000Z, its clock is 2.0 s off;"
            " 2 markets, oldest price 40 s"
        ),
        "  prices      without funding: it has none",
        "  prices      BTC quotes refused: 2 crossed, 1 jump",
    ]
    assert list(_price_lines(None)) == []


async def test_the_metrics_have_age_closure_and_refused_quotes_of_each_market() -> None:
    pytest.importorskip("prometheus_client")
    watch, _ = await watched(LOST)
    sources: Any = SimpleNamespace(prices=watch)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in Figures(sources)._prices()
        for sample in family.samples
    }
    assert samples == {
        ("bracketbot_prices_connected", "ccxt:binance"): 0.0,
        ("bracketbot_price_age_seconds", "BTC"): 40.0,
        ("bracketbot_price_age_seconds", "ETH"): 2.5,
        ("bracketbot_price_closed", "BTC"): 1.0,
        ("bracketbot_price_closed", "ETH"): 0.0,
        ("bracketbot_prices_refused_total", "BTC", "crossed"): 2.0,
        ("bracketbot_prices_refused_total", "BTC", "jump"): 1.0,
    }
