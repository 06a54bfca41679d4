"""A dashboard with everything in it: long names, 40 rows, three approvals, 12 runs.

Pages that are looked at empty hide what does not fit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from bot.cli.operate.fleet import Member
from bot.dashboard.app import ADDRESSES, Dashboard
from bot.dashboard.backtests import Backtests
from bot.dashboard.page_models import PageSources
from bot.dashboard.sign_in import DashboardSignIn
from bot.dashboard.sources import DaemonSource, FleetSource, ServiceSource
from bot.dashboard.values.reading import Reading
from bot.errors import Exit
from bot.runtime.journal import proof_files, queries
from bot.strategy import Bracket, Close, Open
from bot.wire.market import BookResult
from bot.wire.resources import Market
from bot.wire.wallets import WalletNavResult, WalletResult
from tests.dashboard.builders import KEY, NOW_MS, Daemon, book, candle, documents, order, position, status, strategy
from tests.faulty_port import FaultyPort
from tests.runtime.builders import make_kernel, minutes

ROWS = 40
LONG = "momentum_of_the_hourly_breakout_with_volume_filter"
MARKET = "event:will-the-federal-reserve-cut-rates-in-march-2027:no"
REASON = "the entry of 123,456.78 USD is more than the 1,999.50 USD left of budget_usd 2000 of the strategy; " * 2
# The values of the addresses of pages; `PATHS` has every page of the dashboard, so a new page is walked at once.
OF_PATHS = {"coin": "BTC", "/explain/{name}": "nothing", "/strategies/{name}": LONG}
RUN = f"2026-11-27_120000_{LONG}"
PATHS = (
    *(
        address.format(coin=OF_PATHS["coin"], name=OF_PATHS.get(address, ""))
        for address, name in ADDRESSES
        if name != "compare"
    ),
    f"/runs/compare?a={RUN}_0&b={RUN}_2",
    "/proof?day=2026-11-27",
    "/trades?strategy=none",
    "/control/kill",
    "/control/pause",
    "/nothing",
)


def answers() -> dict[str, Any]:
    markets = ["BTC", "kPEPE", MARKET, *(f"xyz:LONGNAME{n}" for n in range(ROWS - 3))]
    positions = [
        position(
            market=market,
            side=("long", "short")[n % 2],
            size="123456.789",
            entry_px="0.00012345",
            mark_px=0.00012345,
            stop_px="0.00011111",
            first_stop_px="0.0001",
            unrealized_usd=-12_345.67,
            notional_usd="1234567.89",
            strategy=LONG,
            protected=n != 3,
        )
        for n, market in enumerate(markets)
    ]
    orders = [
        order(oid=str(10**12 + n), market=market, size="123456.789", trigger_px="104310.5", strategy=LONG)
        for n, market in enumerate(markets)
    ]
    orders += [
        order(oid=str(2 * 10**12 + n), kind="limit", action="open", limit_px="104310.5", trigger_px=None)
        for n in range(3)
    ]
    waits = [
        {
            "id": f"MZXW6YTBAAA{n}",
            "strategy": LONG,
            "market": MARKET,
            "side": "short",
            "leverage": 3,
            "size": "123456.789",
            "est_px": "104310.5",
            "notional_usd": "1234567.89",
            "stop_px": None if n else "99999.5",
            "target_px": None,
            "shown_px": "104310.5",
            "asked_ms": 1,
            "plan_expires_ms": 2,
            "not_after_ms": 3,
            "left_s": 7_199,
            "proposed_by": "an assistant with a long name",
            "why": REASON,
        }
        for n in range(3)
    ]
    names = [LONG, *(f"{LONG}_{n}" for n in range(11))]
    strategies = [
        strategy(
            name,
            markets=markets[:12],
            state=("RUNNING", "QUARANTINED", "PAUSED")[n % 3],
            why=REASON if n % 3 else None,
            budget_usd="1234567.89",
            book=book(fees_usd="12345.67", net_usd="-98765.43", day_usd="1234.5", fills=12_345),
            params={
                "a_param_with_a_long_name": 0.00012345,
                "list_of_values": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
            },
        )
        for n, name in enumerate(names)
    ]
    waiting = [
        {"id": f"X{n}", "action": "open", "market": MARKET, "strategy": LONG, "message": REASON} for n in range(3)
    ]
    guardians = [
        {
            "id": f"grd_{10**9 + n}",
            "type": "account_drawdown",
            "market": MARKET,
            "latched": True,
            "blocks_opens": bool(n % 2),
            "active": True,
        }
        for n in range(ROWS)
    ]
    return {
        "/status": status(
            positions=len(positions),
            orders=len(orders),
            name="a daemon with a rather long name of its own",
            why=REASON,
            state="DEGRADED",
            strategies=strategies,
            intents={"open": 1, "in_doubt": 3, "quarantined": 3, "waiting": waiting},
            config="/home/somebody/projects/trading/bot.yaml",
        ),
        "/positions": {"positions": positions},
        "/orders": {"orders": orders},
        "/strategies": {"strategies": strategies},
        "/approvals": {"approvals": waits},
        "/guardians": {"config": [], "guardians": guardians},
    }


def journal(folder: Path) -> None:
    """Trades, refusals and events under a long name."""

    def decide(view: Any, bar: Any) -> list[Any]:
        if view.position("BTC") is not None:
            return [Close("BTC")]
        bracket = Bracket(stop_pct=5, target_r=1.5)
        return [Open("BTC", "long", usd=200, bracket=bracket), Open("BTC", "long", usd=1e6, bracket=bracket)]

    async def trade() -> None:
        from tests.runtime.builders import Scripted

        venue = FaultyPort()
        kernel = make_kernel(venue, path=folder / queries.FILE, strategies=[Scripted(decide, name=LONG)])
        await kernel.recover()
        await minutes(kernel, venue, *["100", "101"] * 10)
        kernel.journal.flush()
        kernel.journal.close()

    asyncio.run(trade())
    # The trades close on the last days, so that the bars of days are there.
    with contextlib.closing(sqlite3.connect(folder / queries.FILE)) as db, db:
        db.execute("UPDATE events SET ts=? - 3 * 3600000 * ((SELECT max(seq) FROM events) - seq)", (NOW_MS,))
        db.execute("UPDATE events SET payload=json_set(payload, '$.ts', ts)")


def runs(folder: Path) -> None:
    for n in range(12):
        run = folder / f"{RUN}_{n}"
        run.mkdir(parents=True)
        figures = {
            "Return [%]": -1234.5,
            "Buy & Hold Return [%]": 100262.87,
            "Max. Drawdown [%]": -99.25,
            "Sharpe Ratio": -12.345,
            "# Trades": 123_456,
            "Win Rate [%]": 34.9,
        }
        course = {"fromMs": 1_736_035_200_000, "toMs": 1_936_726_400_000, "isPartial": n == 1}
        (run / "summary.json").write_text(json.dumps({"figures": figures, "course": course}))


def proofs(folder: Path) -> None:
    difference = {
        "what": "decision",
        "cause": "foreign activity",
        "atMs": NOW_MS,
        "market": MARKET,
        "strategy": LONG,
        "recorded": "open side long, size 123456.789, leverageMode error, type market, bracket {stopLoss {pct 0.2}}",
        "replayed": None,
        "why": REASON,
    }
    measure = {
        "market": MARKET,
        "fills": 123_456,
        "notionalUsd": "123456789.12",
        "slippageUsd": "-12345.678901",
        "feeUsd": "1234.567891",
        "testedFeeUsd": "1234.567891",
    }
    for n in range(1, 28):
        document = {
            "format": proof_files.FORMAT,
            "day": f"2026-11-{n:02d}",
            "counts": {"decisions": 123_456},
            "equalShare": 0.987654,
            "causes": {"timing": 12_345, "foreign activity": 40, "data revised": 3, "unknown": 1},
            "resultUsd": {"outage": "-1234.567891"},
            "measures": [measure | {"hour": hour} for hour in range(24)],
            "differences": [difference] * ROWS,
            "notes": [REASON],
        }
        proof_files.write_proof(folder, document)


def fleet(folder: Path) -> list[Member]:
    """Daemons with long names: some run, some are dead, some do not answer, some have a position without a stop."""
    told = answers()["/status"]
    members = []
    for n in range(ROWS):
        place: Any = Daemon(folder / f"{LONG}-{n}", {})
        state = told | {"unprotected": [MARKET] * (n % 3), "alarms": [{"alarm": "stale_prices"}] * (n % 2), "old_s": n}
        if n % 4 == 3:
            members.append(Member(place, f"{LONG}-{n}", problem=REASON, code=(Exit.NOT_RUNNING, Exit.TIMEOUT)[n % 2]))
        else:
            members.append(Member(place, f"{LONG}-{n}", state))
    return members


def answer_for_the_service(service: ServiceSource) -> None:
    """Put readings in the place of the service's."""
    candles = [candle(n, 104_000.5 + 37 * (n % 11), volume=12_345.678) for n in range(200)]
    levels = tuple({"px": f"{104_310.5 + n}", "sz": f"{1234.56789 + n}"} for n in range(12))
    markets = [{"coin": coin, "mark_px": "104310.5", "change24h_pct": "-3.25"} for coin in ("BTC", "kPEPE", MARKET)]

    def gives(value: Any) -> Any:
        async def answer(*_given: Any) -> Reading[Any]:
            return Reading(value)

        return answer

    # eight days, so that the line of seven days ago is there
    points = [{"ts": NOW_MS + n * 10_800_000, "nav_usd": f"{1_234_567.89 + 97 * (n % 13)}"} for n in range(65)]
    service.wallet = gives(  # type: ignore[method-assign]
        WalletResult.model_validate(
            {
                "address": "0xabc",
                "registered": True,
                "environment": "sandbox",
                "account_value_usd": "1234567.89",
                "unrealized_pnl_usd": "-4",
                "positions": (),
                "updated_at": NOW_MS,
            }
        )
    )
    service.nav = gives(  # type: ignore[method-assign]
        WalletNavResult.model_validate(
            {"address": "0xabc", "registered": True, "range": "1d", "nav_usd": "1", "series": points}
        )
    )
    service.markets = gives(tuple(Market.model_construct(**one) for one in markets))  # type: ignore[method-assign]
    book = BookResult.model_validate({"coin": "BTC", "bids": levels[::-1], "asks": levels})
    service.book = gives(book)  # type: ignore[method-assign]
    service.candles = gives(candles)  # type: ignore[method-assign]


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The dashboard on a port of its own; gives a link that opens it once."""
    # Playwright runs a loop in this thread.
    writer = threading.Thread(target=journal, args=(folder,))
    writer.start()
    writer.join()
    runs(folder / "runs")
    proofs(folder)
    sign_in = DashboardSignIn(KEY, "run", now_s=lambda: NOW_MS // 1000)
    service = ServiceSource()
    answer_for_the_service(service)
    sources = PageSources(
        DaemonSource(Daemon(folder, answers())), service, Backtests(folder / "runs"), FleetSource(lambda: fleet(folder))
    )
    dashboard = Dashboard(sources, documents(has_charts=False), sign_in, control=True)
    started = threading.Event()

    class Quick(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            started.set()

        async def shutdown(self, sockets: Any = None) -> None:
            dashboard.stopping.set()
            await super().shutdown(sockets)

    server = Quick(uvicorn.Config(dashboard.app(), port=0, log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert started.wait(30)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/sign-in#{sign_in.code()}"
    finally:
        server.should_exit = True
        thread.join(30)
