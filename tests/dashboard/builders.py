"""Answers of a daemon and of a service, as the pages read them, and a dashboard over them without a port."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from bot.dashboard.app import Dashboard
from bot.dashboard.backtests import Backtests
from bot.dashboard.documents import PageFiles
from bot.dashboard.page_models import PageSources
from bot.dashboard.sign_in import DashboardSignIn
from bot.dashboard.sources import DaemonSnapshot, DaemonSource, FleetSource, ServiceSource
from bot.wire import Candle

BASE = "http://127.0.0.1:8710"
NOW_MS = 1_795_132_800_000
KEY = bytes(range(32))


def book(**amounts: str) -> dict[str, Any]:
    zeros = dict.fromkeys(
        ("fees_usd", "funding_usd", "realized_usd", "unrealized_usd", "margin_lost_usd", "net_usd", "day_usd"), "0"
    )
    return {"fills": 0, "is_halted": False, **zeros, **amounts}


def strategy(name: str = "trend", **members: Any) -> dict[str, Any]:
    return {
        "name": name,
        "use": "trend:Trend",
        "markets": ["BTC"],
        "interval": "1m",
        "budget_usd": "2000",
        "max_leverage": 3,
        "state": "RUNNING",
        "why": None,
        "book": book(),
        "resting": [],
        **members,
    }


def status(**members: Any) -> dict[str, Any]:
    return {
        "state": "RUNNING",
        "why": None,
        "name": "demo",
        "at_ms": NOW_MS,
        "pid": 7,
        "old_s": 0.1,
        "epoch": 0,
        "base_url": "http://127.0.0.1:9",
        "address": "0xabc",
        "service": {"now_ms": NOW_MS, "speed": 1, "skew_ms": 0, "environment": "sandbox"},
        "account": {"value_usd": 10_000.0, "free_usd": 9_000.0, "balance_usd": "9990"},
        "positions": 0,
        "orders": 0,
        "last_pass_ms": 120,
        "intents": {"open": 0, "in_doubt": 0, "quarantined": 0, "waiting": []},
        "guardians": [],
        "blocked_by": [],
        "heartbeat": {
            "alive": True,
            "armed": True,
            "lapsed": False,
            "failures": 0,
            "deadline_s": 20.0,
            "age_s": 10.0,
            "next_deadline_ms": NOW_MS + 20_000,
        },
        "health": {
            "loop_lag_s": 0.01,
            "cursor_lag_s": 0.0,
            "rates": [{"policy": "default", "left": 380, "requests": 400}],
            "journal_fault": None,
        },
        "strategies": [strategy()],
        "other_books": [],
        **members,
    }


def position(**members: Any) -> dict[str, Any]:
    return {
        "market": "BTC",
        "side": "long",
        "size": "0.5",
        "entry_px": "100",
        "mark_px": 104.0,
        "unrealized_usd": 2.0,
        "notional_usd": "50",
        "leverage": 2,
        "strategy": "trend",
        "shares": {},
        "stop_px": "98",
        "target_px": "106",
        "first_stop_px": "98",
        "trailing_stops": [],
        "protected": True,
        "needs_stop": True,
        "opened_ms": NOW_MS - 60_000,
        **members,
    }


def order(**members: Any) -> dict[str, Any]:
    return {
        "oid": "7",
        "market": "BTC",
        "kind": "take_profit",
        "side": "long",
        "action": "close",
        "size": "0.5",
        "filled": "0",
        "limit_px": None,
        "trigger_px": "106",
        "trade_id": "trd_1",
        "intent": None,
        "created_ms": NOW_MS,
        "strategy": "trend",
        **members,
    }


def snapshot(**members: Any) -> DaemonSnapshot:
    parts = {name: tuple(members.pop(name, ())) for name in ("positions", "orders", "strategies")}
    return DaemonSnapshot(NOW_MS, status=status(**members), **parts)


def candle(n: int, close: float, *, volume: float = 1.0) -> Candle:
    return Candle(ts=NOW_MS + n * 60_000, open=close - 1, high=close + 2, low=close - 2, close=close, volume=volume)


@cache
def documents(*, has_charts: bool) -> PageFiles:
    return PageFiles(has_charts=has_charts)


EMPTY: dict[str, Any] = {"/guardians": {"config": [], "guardians": []}, "/approvals": {"approvals": []}}


class Daemon:
    """The control socket of a daemon: gives the prepared answers and notes the requests for changes."""

    def __init__(self, folder: Path, answers: Mapping[str, Any]) -> None:
        self.folder = folder
        self.answers: dict[str, Any] = {**EMPTY, **answers}
        self.changes: list[tuple[str, Any]] = []
        self.asked: list[str] = []

    def ask(self, method: str, path: str, body: Any = None, query: Any = None, *, within_s: float | None = None) -> Any:
        self.asked.append(path)
        if method != "GET":
            self.changes.append((path, body))
        found = self.answers[path]
        if isinstance(found, Exception):
            raise found
        return found


class Browser:
    """A browser on one dashboard: keeps its cookie, and sends what a page of the dashboard would send."""

    def __init__(
        self,
        daemon: Daemon,
        *,
        control: bool = False,
        has_charts: bool = True,
        fleet: Callable[[], Sequence[Any]] | None = None,
    ) -> None:
        self.daemon = daemon
        self.now_s = NOW_MS // 1000
        self.sign_in = DashboardSignIn(KEY, "run", now_s=lambda: self.now_s)
        others = None if fleet is None else FleetSource(fleet)
        self.sources = PageSources(DaemonSource(daemon), ServiceSource(), Backtests(daemon.folder / "runs"), others)
        self.dashboard = Dashboard(self.sources, documents(has_charts=has_charts), self.sign_in, control=control)
        transport = httpx.ASGITransport(self.dashboard.app())
        self.http = httpx.AsyncClient(transport=transport, base_url=BASE, headers={"Accept": "text/html"})

    async def signed_in(self) -> Browser:
        answer = await self.post("/sign-in", code=self.sign_in.code())
        assert answer.status_code == 303, answer.text
        return self

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.http.get(path, headers=headers)

    async def post(self, path: str, headers: Mapping[str, str] | None = None, **form: str) -> httpx.Response:
        return await self.http.post(path, data=form, headers={"Origin": BASE} if headers is None else headers)

    async def stamp(self, path: str) -> str:
        """The stamp of what a control acts on, as the page that asks for the word has it."""
        return (await self.get(path)).text.partition('name="of" value="')[2].partition('"')[0]

    @property
    def token(self) -> str:
        return self.sign_in.change_token(self.http.cookies[self.sign_in.cookie_name])
