"""A day of a daemon against a sandbox, with its journal: what a replay and a proof begin with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from bot.checks.config_check import checked_config
from bot.client import Client
from bot.runtime.journal.opening import open_journal
from bot.runtime.kernel.assembly import place_strategies, source_digests, wanted_guardians
from bot.runtime.kernel.kernel import Kernel
from bot.runtime.reconciliation.daemon_run import KernelSettings
from bot.runtime.strategy_host import fingerprints
from bot.service.host import HostOptions, Service, build
from tests.backtest.builders import MINUTE_MS
from tests.fakes import FakePacer

STRATEGIES = Path(__file__).resolve().parent / "strategies"
CONTROL = {"Authorization": "Bearer bbc_replay"}
# candles of a recorded file that are past when a sandbox starts
HISTORY = 200
BARS = 160


def config(folder: Path, name: str = "mine.yaml", **params: Any) -> Path:
    path = folder / name
    path.write_text(
        f"account: {{base_url: embedded}}\nname: mine\ndead_man: off\nstrategies_dir: {STRATEGIES}\nstate_dir:"
        f" {folder / 'state'}\nstrategies:\n  - {{name: one, use: replaying, markets: [BTC], budget_usd: 1000, params:"
        f" {json.dumps(params)}}}\n"
    )
    return path


async def lived(
    file: Path,
    data: Path,
    *,
    between: Callable[[int, Kernel], None] | None = None,
    prepare: Callable[[Service], None] | None = None,
    late_ms: Callable[[int], int] = lambda _number: 0,
) -> None:
    """The parts of a daemon against a sandbox whose clock moves from minute to minute; its journal is at the path of
    the config. `between` is called before each minute, `prepare` with the service; `late_ms` says how long after each
    close the daemon comes.
    """
    settings = checked_config(file).settings
    settings.state_dir.mkdir()
    options = HostOptions(clock="manual", data=(("BTC", data),), markets=("BTC",), rate_limits=False)
    service = build(options, control_token="bbc_replay")
    await service.start()
    if prepare is not None:
        prepare(service)
    transport = httpx.ASGITransport(service.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        account = (await http.post("/v1/sandbox/accounts", json={"name": "mine"})).json()
        client = Client("http://127.0.0.1", account["apiKey"], transport=transport)
        snapshot = await client.account()
        journal = open_journal(settings.state_dir / "journal.db", address=snapshot.address)
        now_ms = client.clock.now_ms
        placed = place_strategies(settings)
        fingerprints.note_run(
            journal,
            fingerprints.mark_of(settings, source_digests(placed)),
            at_ms=now_ms(),
            epoch=snapshot.epoch,
            balance_usd=snapshot.balance_usd,
            config=file,
        )
        kernel = Kernel(
            port=client,
            journal=journal,
            specs=placed,
            pacer=FakePacer(),
            settings=KernelSettings(guardians=wanted_guardians(settings)),
        )
        await kernel.recover()
        await kernel.cycle()
        for number in range(BARS):
            if between is not None:
                between(number, kernel)
            to_ms = now_ms() // MINUTE_MS * MINUTE_MS + MINUTE_MS + late_ms(number)
            await http.post("/sandbox/v1/clock/advance", json={"toMs": to_ms}, headers=CONTROL)
            await client.status()
            await kernel.cycle()
        journal.close()
        await client.aclose()
    await service.stop()
