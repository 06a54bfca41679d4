"""The sandbox's control over the whole state: seed, snapshot, restore, fork, reset; exact, durable, and the same
again after a kill.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from bot import clock
from bot.clock import SystemClock
from tests.integration.virtual import Clocks
from tests.service import serving
from tests.service.builders import ENTRY, assert_refused
from tests.service.conftest import CONTROL_TOKEN, START_MS, Box, Caller, OpenBox


async def control(box: Box, method: str, path: str, body: Any = None) -> httpx.Response:
    return await box.http.request(method, f"/sandbox/v1{path}", json=body or {}, headers=box.control)


async def candles(box: Box, coin: str = "ETH") -> Any:
    return (await box.http.get(f"/v1/markets/{coin}/candles?interval=1m&limit=30")).json()["candles"]


@pytest.mark.parametrize("durable", [False, True])
async def test_a_restore_is_exact_and_the_same_commands_give_the_same_events(
    open_box: OpenBox, tmp_path: Path, durable: bool
) -> None:
    box = await open_box(hold_prices=False, db=tmp_path / "s.db" if durable else ":memory:")
    await box.price("BTC", "100000", volume="2")
    caller = await box.caller()
    first = await caller.post("/v1/orders", ENTRY, key="before")
    await caller.post("/v1/guardians", {"type": "dead_man_switch", "heartbeatSeconds": 600})
    await box.advance(150_000)
    kept = (await control(box, "POST", "/snapshot", {"name": "one"})).json()
    assert kept == {"name": "one", "digest": (await box.digest())["digest"], "at": START_MS + 150_000}
    account = await caller.get("/v1/account")

    async def on() -> tuple[Any, ...]:
        await box.price("BTC", "101000")
        await caller.post("/v1/orders", ENTRY, key="after")
        await box.advance(900_000)
        page = await caller.get("/v1/events?limit=200")
        for happened in page["events"]:
            happened.pop("requestId", None)
        return page, (await caller.get("/v1/trades"))["trades"][0]["id"], await candles(box), await candles(box, "BTC")

    once = await on()
    assert (await box.digest())["digest"] != kept["digest"]
    back = await control(box, "POST", "/restore", {"name": "one"})
    assert back.json() == kept
    assert (await box.digest()) == {
        "digest": kept["digest"],
        "events": (await box.digest())["events"],
        "now": kept["at"],
    }
    assert await caller.get("/v1/account") == account
    assert await on() == once
    assert await caller.post("/v1/orders", ENTRY, key="before") == first


async def test_a_restore_forgets_an_answer_stored_after_the_snapshot(open_box: OpenBox, tmp_path: Path) -> None:
    box = await open_box(db=tmp_path / "s.db")
    await box.price("BTC", "100000")
    caller = await box.caller()
    await control(box, "POST", "/snapshot", {"name": "a"})
    await caller.post("/v1/orders", ENTRY, key="k")
    await control(box, "POST", "/restore", {"name": "a"})
    again = await caller.send("POST", "/v1/orders", ENTRY, key="k")
    assert again.status_code == 200
    assert "idempotency-replayed" not in again.headers
    assert len((await caller.get("/v1/trades"))["trades"]) == 1


async def test_a_restored_answer_is_repeated_after_a_restart(open_box: OpenBox, tmp_path: Path) -> None:
    box = await open_box(db=tmp_path / "s.db")
    await box.price("BTC", "100000")
    caller = await box.caller()
    await control(box, "POST", "/snapshot", {"name": "empty"})
    first = await caller.post("/v1/orders", ENTRY, key="k")
    await control(box, "POST", "/snapshot", {"name": "ready"})
    await control(box, "POST", "/restore", {"name": "empty"})
    await box.service.stop()
    box = await open_box(db=tmp_path / "s.db")
    caller.http = box.http
    await control(box, "POST", "/restore", {"name": "ready"})
    # The log is asked first, because a second answer under the key would end the process.
    assert box.service.machine.log.reply(caller.opened["accountId"], "k") is not None
    again = await caller.send("POST", "/v1/orders", ENTRY, key="k")
    assert (again.json(), again.headers["idempotency-replayed"]) == (first, "true")
    assert len((await caller.get("/v1/trades"))["trades"]) == 1


async def test_a_new_key_after_a_restore_does_not_inherit_the_usage_of_its_ids_former_key(
    box: Box, caller: Caller
) -> None:
    await control(box, "POST", "/snapshot", {"name": "a"})
    before = await caller.post("/v1/keys", {})
    await box.advance(60_000)
    await Caller(box.http, before).get("/v1/account")
    await control(box, "POST", "/restore", {"name": "a"})
    after = await caller.post("/v1/keys", {})
    assert after["id"] == before["id"]
    assert_refused(await Caller(box.http, before).send("GET", "/v1/account"), 401, "unauthorized")
    assert [key["lastUsedAt"] for key in (await caller.get("/v1/keys"))["keys"]] == [START_MS, None]


async def test_a_restored_file_opens_restored_and_keeps_its_snapshots(open_box: OpenBox, tmp_path: Path) -> None:
    box = await open_box(db=tmp_path / "s.db", hold_prices=False)
    await box.price("BTC", "100000")
    caller = await box.caller()
    await caller.post("/v1/orders", ENTRY)
    await box.advance(300_000)
    kept = (await control(box, "POST", "/snapshot", {"name": "a"})).json()
    shown = await candles(box), await candles(box, "BTC"), await caller.get("/v1/account")
    await box.price("BTC", "90000")
    await box.advance(600_000)
    await control(box, "POST", "/restore", {"name": "a"})
    await box.service.stop()
    again = await open_box(db=tmp_path / "s.db", hold_prices=False)
    caller.http = again.http
    assert (await again.digest())["digest"] == kept["digest"]
    assert (await candles(again), await candles(again, "BTC"), await caller.get("/v1/account")) == shown
    await again.advance(60_000)
    await caller.post("/v1/orders", ENTRY)
    assert (await control(again, "POST", "/restore", {"name": "a"})).json() == kept


@pytest.mark.soak(kills=2, full=20)
def test_a_restore_survives_a_kill_right_after_its_answer(tmp_path: Path, kills: int) -> None:
    env = {"BOT_CONTROL_TOKEN": CONTROL_TOKEN}
    options: dict[str, Any] = {"port": 0, "clock": "60x", "db": tmp_path / "s.db", "markets": ["BTC"], "seed": 1}
    kept: Any = None
    for _ in range(kills):
        served = serving.start(env=env, **options)
        try:
            with httpx.Client(
                base_url=served.base_url, timeout=60, headers={"Authorization": f"Bearer {CONTROL_TOKEN}"}
            ) as http:
                if kept is None:
                    assert http.post("/sandbox/v1/seed", json={"seed": 7}).status_code == 200
                    opened = http.post("/v1/sandbox/accounts").json()
                    kept = http.post("/sandbox/v1/snapshot", json={"name": "a"}).json()
                key = {"Authorization": f"Bearer {opened['apiKey']}"}
                assert http.post("/v1/orders", json=ENTRY, headers=key).status_code == 200
                assert http.post("/sandbox/v1/restore", json={"name": "a"}).json() == kept
        finally:
            served.kill()
            serving.end(served)
        served = serving.start(env=env, **options)
        try:
            with httpx.Client(base_url=served.base_url, timeout=60) as http:
                key = {"Authorization": f"Bearer {opened['apiKey']}"}
                assert http.get("/v1/trades", headers=key).json()["trades"] == []
                said = http.get("/sandbox/v1/digest", headers={"Authorization": f"Bearer {CONTROL_TOKEN}"}).json()
                assert said["digest"] == kept["digest"]
        finally:
            served.kill()
            serving.end(served)


async def test_a_fork_is_a_separate_service(box: Box, caller: Caller) -> None:
    await caller.post("/v1/orders", ENTRY, key="k")
    kept = (await control(box, "POST", "/snapshot", {"name": "here"})).json()
    await caller.post("/v1/orders", ENTRY)
    made = (await control(box, "POST", "/fork", {"name": "here"})).json()
    assert (made["name"], made["digest"]) == ("here", kept["digest"])
    async with httpx.AsyncClient(base_url=made["baseUrl"], timeout=60, headers=caller.headers) as http:
        trades = (await http.get("/v1/trades")).json()["trades"]
        assert len(trades) == 1
        kept_answer = await http.post("/v1/orders", json=ENTRY, headers={"Idempotency-Key": "k"})
        assert kept_answer.headers["idempotency-replayed"] == "true"
        moved = await http.post("/sandbox/v1/clock/advance", json={"ms": 5000}, headers=box.control)
        assert moved.json()["now"] == kept["at"] + 5000
    assert (await box.http.get("/sandbox/v1/clock", headers=box.control)).json()["now"] == kept["at"]
    assert len((await caller.get("/v1/trades"))["trades"]) == 2
    await control(box, "POST", "/reset")
    async with httpx.AsyncClient() as http:
        with pytest.raises(httpx.TransportError):
            await http.get(made["baseUrl"])


@pytest.mark.parametrize("durable", [False, True])
async def test_a_fork_answers_a_repeated_webhook_registration_by_its_key(
    open_box: OpenBox, tmp_path: Path, durable: bool
) -> None:
    box = await open_box(db=tmp_path / "s.db" if durable else ":memory:")
    caller = await box.caller()
    hook = {"url": "http://127.0.0.1:9/hook", "secret": "a secret of eight or more"}
    made = await caller.post("/v1/webhooks", hook, key="hook")
    await control(box, "POST", "/snapshot", {"name": "here"})
    fork = (await control(box, "POST", "/fork", {"name": "here"})).json()
    async with httpx.AsyncClient(base_url=fork["baseUrl"], timeout=60, headers=caller.headers) as http:
        again = await http.post("/v1/webhooks", json=hook, headers={"Idempotency-Key": "hook"})
        assert (again.status_code, again.headers["idempotency-replayed"]) == (200, "true")
        assert again.json() == made | {"secret": None}
        other = await http.post(
            "/v1/webhooks", json=hook | {"secret": "another one"}, headers={"Idempotency-Key": "hook"}
        )
        assert_refused(other, 422, "idempotency_conflict")


@pytest.mark.parametrize("durable", [False, True])
async def test_a_reset_gives_the_state_at_the_start(open_box: OpenBox, tmp_path: Path, durable: bool) -> None:
    options: dict[str, Any] = {"hold_prices": False, "db": tmp_path / "s.db" if durable else ":memory:"}
    box = await open_box(**options)

    async def day() -> tuple[Any, ...]:
        caller = await box.caller()
        await box.price("BTC", "100000")
        await caller.post("/v1/orders", ENTRY)
        await box.advance(300_000)
        return caller, await candles(box), (await caller.get("/v1/account"))["balanceUsd"]

    start = await box.digest()
    caller, *once = await day()
    await control(box, "POST", "/snapshot", {"name": "a"})
    await control(box, "POST", "/faults", {"op": "*", "kind": "status_500"})
    said = (await control(box, "POST", "/reset")).json()
    assert said == {"digest": start["digest"], "now": START_MS}
    assert await box.digest() == start
    assert (await caller.send("GET", "/v1/account")).status_code == 401
    assert_refused(await control(box, "POST", "/restore", {"name": "a"}), 404, "not_found")
    assert (await day())[1:] == tuple(once)
    if durable:
        before = await box.digest()
        await box.service.stop()
        box = await open_box(**options)
        assert await box.digest() == before


async def test_a_seed_changes_the_prices_and_is_refused_after_the_first_command(
    open_box: OpenBox, tmp_path: Path
) -> None:
    async def hour(box: Box, seed: int | None) -> Any:
        if seed is not None:
            assert (await control(box, "POST", "/seed", {"seed": seed})).json() == {"seed": seed}
        await box.advance(600_000)
        return await candles(box)

    seeded = await open_box(hold_prices=False, seed=1, db=tmp_path / "s.db")
    seven = await hour(seeded, 7)
    assert seven == await hour(await open_box(hold_prices=False, seed=7), None)
    assert seven != await hour(await open_box(hold_prices=False, seed=1), None)
    await seeded.caller()
    assert_refused(await control(seeded, "POST", "/seed", {"seed": 8}), 400, "invalid_input")
    await seeded.service.stop()
    again = await open_box(hold_prices=False, seed=1, db=tmp_path / "s.db")
    assert await candles(again) == seven
    await control(again, "POST", "/reset")
    assert await hour(again, None) == seven
    pushed = await open_box()
    await pushed.price("BTC", "1000")
    assert_refused(await control(pushed, "POST", "/seed", {"seed": 8}), 400, "invalid_input")


async def test_names_and_seeds_have_bounds(box: Box) -> None:
    for path in ("/snapshot", "/restore", "/fork"):
        for body in (
            {},
            {"name": ""},
            {"name": "a b"},
            {"name": "../x"},
            {"name": "x" * 65},
            {"name": 1},
            {"name": None},
        ):
            assert_refused(await control(box, "POST", path, body), 400, "invalid_input")
    for path in ("/restore", "/fork"):
        assert_refused(await control(box, "POST", path, {"name": "never"}), 404, "not_found")
    for body in ({}, {"seed": -1}, {"seed": 1.5}, {"seed": "1"}, {"seed": 2**63}):
        assert_refused(await control(box, "POST", "/seed", body), 400, "invalid_input")
    for number in range(64):
        assert (await control(box, "POST", "/snapshot", {"name": f"n{number}"})).status_code == 200
    assert_refused(await control(box, "POST", "/snapshot", {"name": "n64"}), 400, "invalid_input")
    assert (await control(box, "POST", "/snapshot", {"name": "n1"})).status_code == 200


async def test_a_stream_ends_with_a_resync_when_the_service_is_restored(box: Box, caller: Caller) -> None:
    served = box.service.streams
    bell = served.enter(caller.opened["accountId"])
    before = served.generation
    await control(box, "POST", "/snapshot", {"name": "a"})
    await control(box, "POST", "/restore", {"name": "a"})
    assert served.generation == before + 1
    assert bell.is_set()
    served.leave(caller.opened["accountId"], bell)


async def test_a_restored_real_clock_reports_that_it_differs_from_the_wall_clock(open_box: OpenBox) -> None:
    box = await open_box(clock="real", start_ms=None, hold_prices=False)
    kept = (await control(box, "POST", "/snapshot", {"name": "a"})).json()
    assert "x-sandbox-clock" not in (await box.http.get("/v1/system/status")).headers
    assert (await control(box, "POST", "/restore", {"name": "a"})).json() == kept
    assert (await box.http.get("/v1/system/status")).headers["x-sandbox-clock"].endswith("; speed=1")


async def test_a_real_clock_ahead_of_the_wall_clock_reports_its_time(
    open_box: OpenBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = Clocks()
    monkeypatch.setattr(clock, "time", wall)
    box = await open_box(clock="real", start_ms=None, hold_prices=False)
    before_ms = SystemClock().now_ms()
    wall.jumped_ns -= 3600 * 10**9
    told = (await box.http.get("/v1/system/status")).headers["x-sandbox-clock"]
    assert told == f"{before_ms}; speed=1", (
        "a caller that uses the wall clock would send a request that is too old here"
    )
    wall.jumped_ns = 0
    assert "x-sandbox-clock" not in (await box.http.get("/v1/system/status")).headers


async def test_a_request_whose_account_is_removed_while_it_arrives_does_nothing(box: Box, caller: Caller) -> None:

    async def gone() -> None:
        assert (await control(box, "POST", "/reset")).status_code == 200

    answer = await box.post_slowly(caller, "/v1/orders", ENTRY, meanwhile=gone)
    assert_refused(answer, 503, "service_unavailable")
    assert box.service.machine.fault is None
    assert (await box.digest())["events"] == 0


async def test_after_a_reset_the_clock_follows_the_wall_clock_again(open_box: OpenBox) -> None:
    box = await open_box(clock="real", start_ms=None, hold_prices=False)
    await box.http.patch("/sandbox/v1/clock", json={"speed": 60}, headers=box.control)
    assert "x-sandbox-clock" in (await box.http.get("/v1/system/status")).headers
    await control(box, "POST", "/reset")
    assert "x-sandbox-clock" not in (await box.http.get("/v1/system/status")).headers
