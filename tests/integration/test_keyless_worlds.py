"""The random worlds over a service whose trades show their keys, as the interface has it, and whose events, orders
and account show none.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from bot.runtime import supervisor
from tests.integration.simulated import Wire, World, lived, template
from tests.integration.virtual import Answer

# without keys
BARE: Final = ("/v1/events", "/v1/account", "/v1/orders")
SHOWN: Final = re.compile(rb',"idempotencyKey":"[^"]*"')


@pytest.mark.soak(worlds=30, full=5_000)
def test_what_is_ours_is_known_where_only_trades_show_keys(
    folder: Path, worlds: int, base_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver, judge = Wire.deliver, World._judge
    seen: Counter[str] = Counter()

    async def bare(wire: Wire, method: str, target: str, *more: Any) -> Answer:
        answer = await deliver(wire, method, target, *more)
        if method != "GET" or target.partition("?")[0] not in BARE:
            return answer
        content, n = SHOWN.subn(b"", answer.content)
        seen["hidden"] += n
        headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
        return Answer(answer.status_code, headers, content)

    async def judged(world: World, one: supervisor.Supervisor) -> None:
        await judge(world, one)
        kernel = one.kernel
        assert not kernel.account.account_state.events_named
        entries = [e for e in world.last_events if (e["type"], e["subtype"]) == ("fill", "entry")]
        for event in entries:
            key = event.get("idempotencyKey")
            ours = key if key is not None and kernel.journal.intents.find(key) is not None else None
            for row in kernel.journal.db.query("SELECT idempotency_key AS key FROM events WHERE id=?", (event["id"],)):
                assert row["key"] == ours, event
                seen["ours" if ours else "anothers"] += 1
            position = kernel.account.account_state.positions.get(event["coin"])
            if ours and position is not None and event["ts"] >= position.opened_ms:
                assert position.owner is not None, position
                seen["owned"] += 1

    monkeypatch.setattr(Wire, "deliver", bare)
    monkeypatch.setattr(World, "_judge", judged)
    template(folder)
    for _world in lived(range(base_seed, base_seed + worlds), folder):
        pass
    # One that is looked at by itself may hold nothing of it.
    if worlds >= 20:
        assert min(seen["hidden"], seen["ours"], seen["owned"]) > worlds // 4, seen
    if worlds >= 400:
        assert seen["anothers"], seen
