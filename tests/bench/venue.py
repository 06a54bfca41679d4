"""What the venue costs in process: `python -m tests.bench.venue [--trades N]` prints figures and judges none of them.

Each figure is the best of a few rounds of CPU time: the machine's other work only ever adds to it.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import time
from collections.abc import Callable
from dataclasses import dataclass

from bot.venue.apply import apply
from bot.venue.model import commands as c
from bot.venue.model import state as s
from bot.venue.model.numbers import E8
from bot.venue.prices import index
from bot.venue.prices.quiet_band import band_of
from bot.venue.storage import codec

START_MS = 1_750_000_000_000 // s.HOUR_MS * s.HOUR_MS
MINUTE_MS = 60_000
COIN = "BTC"
PX = 100_000 * E8
# As a session sets the collector: the event log only grows, nothing in it forms a cycle.
SESSION_GC = (20_000, 20, 1_000)
# 1 %
STOP = s.LegSpec(pct=E8)
TARGET = s.LegSpec(r=2 * E8)


@dataclass(slots=True)
class VenueDriver:
    """One market, one account, and a clock."""

    state: s.State
    now_ms: int = START_MS
    trips: int = 0

    def say(self, command: c.Command) -> object:
        self.now_ms += 1
        return apply(self.state, command, self.now_ms).answer


def venue(*, spread: bool = True, fill_at: str = "now") -> VenueDriver:
    """A BTC market with the book of a large venue (or a costless one) and an account of a million."""
    state = s.State()
    made = VenueDriver(state)
    book = {"half_spread": 1_000, "level_step": 2_000, "level_size": 20 * E8, "level_growth": E8 // 10}
    spec = s.MarketSpec(COIN, **(book if spread else {}))
    made.say(c.SetRules(s.Rules(fill_at=fill_at)))
    made.say(c.ListMarket(spec, PX))
    made.say(c.OpenAccount("acc", "0x" + "0" * 40, None, 1_000_000 * E8))
    return made


def order(side: int = 1) -> s.OrderSpec:
    return s.OrderSpec(
        COIN, side, usd=1_000 * E8, leverage=2, stop=STOP, target=TARGET, require_protection=True, source="api"
    )


def point(at: VenueDriver, px: int) -> None:
    at.say(c.PricePoint(COIN, px, step=1))


def direct(at: VenueDriver) -> None:
    """One round trip: a market order with its bracket; the price goes to the stop or the target in turn; the exit
    fills.
    """
    at.trips += 1
    at.say(c.PlaceOrder("acc", order(), idempotency_key=f"k{at.trips}"))
    point(at, PX * 103 // 100 if at.trips % 2 else PX * 98 // 100)
    point(at, PX)


def planned(at: VenueDriver) -> None:
    """The same by plan and confirm, as the daemon does."""
    at.trips += 1
    token = f"t{at.trips}"
    at.say(c.StorePlan("acc", order(), token, 60_000))
    at.say(c.ConfirmPlan("acc", token, idempotency_key=f"k{at.trips}"))
    point(at, PX * 103 // 100 if at.trips % 2 else PX * 98 // 100)
    point(at, PX)


def barred(at: VenueDriver) -> None:
    """The same in a session: the order waits for the next bar's open, whole bars drive the market."""
    at.trips += 1
    at.now_ms = at.now_ms // MINUTE_MS * MINUTE_MS + 3 * MINUTE_MS
    apply(at.state, c.PlaceOrder("acc", order(), idempotency_key=f"k{at.trips}"), at.now_ms)
    far = PX * 103 // 100 if at.trips % 2 else PX * 98 // 100
    bar = c.PassBar(COIN, at.now_ms, PX, max(PX, far), min(PX, far), PX, E8)
    at.now_ms += MINUTE_MS
    apply(at.state, bar, at.now_ms)


def timed(work: Callable[[], object], number: int, rounds: int = 5) -> float:
    """Seconds a call, the best of the rounds."""
    best = float("inf")
    for _ in range(rounds):
        gc.collect()
        gc.freeze()
        start = time.process_time()
        for _ in range(number):
            work()
        best = min(best, (time.process_time() - start) / number)
        gc.unfreeze()
    return best


def floor() -> float:
    """Milliseconds of a fixed bare loop: how fast this machine is just now."""

    def work() -> int:
        total = 0
        for number in range(1_000_000):
            total += number & 7
        return total

    return timed(work, 1) * 1e3


def trips(name: str, trip: Callable[[VenueDriver], None], number: int, **made: object) -> None:
    at = venue(**made)
    each = timed(lambda: trip(at), number)
    account = at.state.accounts["acc"]
    assert not account.positions
    assert not account.orders
    assert len(account.trades) == 2 * at.trips
    print(f"{name:<58} {1 / each:12,.0f} /s {each * 1e6:9.2f} us")


def calm_bars(number: int) -> None:
    """A market where nothing can happen: skipped by its band, or passed as a bar, with an idle account and with a
    position held.
    """
    for held in (False, True):
        at = venue()
        if held:
            at.say(c.PlaceOrder("acc", order()))
        state = at.state
        band = band_of(state, COIN)
        name = "position held" if held else "nobody holds"
        bar = c.PassBar(COIN, START_MS + MINUTE_MS, PX, PX + E8, PX - E8, PX, E8)
        low, high, end = bar.low / E8, bar.high / E8, bar.at_ms + MINUTE_MS

        def skip(number: int = number) -> None:
            lo, hi, until_ms = band  # noqa: B023 - called before the next turn
            for _ in range(number):
                assert lo < low and high < hi and end <= until_ms  # noqa: B023 - the test that a session makes each bar

        def passed() -> None:
            state.now_ms = START_MS  # noqa: B023
            assert not apply(state, bar, bar.at_ms + MINUTE_MS).events  # noqa: B023

        figures = (
            ("skip test", timed(skip, 1) / number),
            ("PassBar, calm", timed(passed, number // 10)),
            ("calm() itself", timed(lambda: band_of(state, COIN), number // 10)),  # noqa: B023
        )
        for what, each in figures:
            print(f"{f'{what}, {name}':<58} {1 / each:12,.0f} /s {each * 1e6:9.3f} us")


def flat(most: int) -> None:
    """Is a trade as cheap after many as after few?"""
    before = gc.get_threshold()
    gc.set_threshold(*SESSION_GC)
    at = venue()
    done = 0
    for upto in (1_000, 10_000, 30_000, 100_000):
        if upto > most:
            break
        gc.collect()
        gc.freeze()
        number = upto // 2 - done
        start = time.process_time()
        for _ in range(number):
            direct(at)
        each = (time.process_time() - start) / (2 * number)
        done += number
        print(f"{f'a trade, up to {upto:,} trades':<58} {1 / each:12,.0f} /s {each * 1e6:9.2f} us")
    gc.unfreeze()
    gc.set_threshold(*before)
    account = at.state.accounts["acc"]
    start = time.process_time()
    digest = codec.digest(list(account.events))
    took = time.process_time() - start
    print(
        f"{f'digest of {len(account.events):,} events':<58} {len(account.events) / took:12,.0f} /s {took:9.2f} s  "
        f" {digest[:16]}"
    )
    start = time.process_time()
    index.rebuild(at.state)
    print(f"{'indexes made again from the state':<58} {'':>12}    {(time.process_time() - start) * 1e6:9.0f} us")


def profile(number: int) -> None:
    at = venue()
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(number):
        planned(at)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(28)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trips", type=int, default=2_000, help="round trips a round")
    parser.add_argument("--trades", type=int, default=100_000, help="how long the history may grow")
    parser.add_argument("--profile", action="store_true", help="show where plan + confirm spends its time instead")
    given = parser.parse_args(arguments)
    if given.profile:
        profile(given.trips)
        return
    print(f"{'floor: a million turns of an integer sum':<58} {floor():12.1f} ms")
    print("Bracketed round trips (entry, stop and target armed, one fires)")
    trips("place, costless book", direct, given.trips, spread=False)
    trips("place, book of 20 levels", direct, given.trips)
    trips("plan + confirm, book of 20 levels", planned, given.trips)
    before = gc.get_threshold()
    gc.set_threshold(*SESSION_GC)
    trips("place, collector as in a session", direct, given.trips)
    trips("plan + confirm, collector as in a session", planned, given.trips)
    gc.set_threshold(*before)
    trips("place, filled at the next bar's open, whole bars", barred, given.trips, fill_at="next")
    print("Bars of a market where nothing can happen")
    calm_bars(50 * given.trips)
    print("Length of history")
    flat(given.trades)


if __name__ == "__main__":
    main()
