"""The port of a drill: the service's own operations over a network that fails as the faults say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Final, TypeVar, cast

from bot.backtest.engine.candle_readers import SeriesReader
from bot.client.calls import fault_error
from bot.client.faults import FailureKind as NoAnswer
from bot.client.faults import TransportFault
from bot.drill.faults import FATES, DrillFault, Fate, Point
from bot.drill.service_port import ServicePort
from bot.drill.simulated_clock import RealTimeClock, SimulatedTime, span_of
from bot.errors import ApiError
from bot.service.bodies import event_bodies
from bot.service.bodies.responses import ServiceAnswer
from bot.service.operations.executor import Context
from bot.wire import CandlesResult, EventsPage, OrderResult
from bot.wire.base import Resource

R = TypeVar("R", bound=Resource)

# the name of the requests that make an order
ORDER: Final = OrderResult.__name__.removesuffix("Result")
# The latency of a request and its reply together.
LATENCY_MS: Final = (5, 400)
# time after which a request without a connection ends, as the client's do
CONNECT_MS: Final = 3_000
# time after which a request without a reply ends
TOTAL_MS: Final = 15_000
# the time after which a request arrives although nobody waits for it
LATE_MS: Final = (200, 45_000)


class Killed(BaseException):
    """The daemon's process has ended. No `except` of the daemon catches this."""


class DrillPort(ServicePort):
    """`at_point` is called before and after each request that arrives; it may raise Killed."""

    def __init__(
        self,
        time: SimulatedTime,
        series_readers: Sequence[SeriesReader],
        faults: tuple[DrillFault, ...],
        chance: Random,
    ) -> None:
        super().__init__(time.exchange, series_readers)
        self.clock = RealTimeClock(time.exchange.clock)
        self.time = time
        self.at_point: Callable[[Point], None] = lambda _point: None
        # requests that brought no answer
        self.failed = 0
        self.met: Counter[Fate] = Counter()
        # what was sent under each key, as hashes
        self.bodies: dict[str, set[str]] = {}
        # the request ids of what arrived when nobody waited any more
        self.late_ids: set[str] = set()
        # a page of events that a cache between the daemon and the service keeps
        self._old_page: EventsPage | None = None
        self._outages = tuple(fault for fault in faults if fault.kind == "outage")
        self._lossy = tuple(fault for fault in faults if fault.kind == "lossy")
        self._silences = tuple(fault for fault in faults if fault.kind in ("silence", "outage"))
        self._chance = chance
        self._refuses = chance.random() < 0.5

    # -- reads

    async def candles(self, coin: str, interval: str, limit: int) -> CandlesResult:
        self._before("candles", reads=True)
        return await super().candles(coin, interval, limit)

    def _context(self, body: bytes, key: str | None = None, expires_ms: int | None = None) -> Context:
        context = super()._context(body, key, expires_ms)
        if key is not None:
            self.bodies.setdefault(key, set()).add(context.fingerprint)
        return context

    # -- the network

    def can_beat(self) -> bool:
        """Whether a heartbeat reaches the service now."""
        return span_of(self._silences, self.time.now_ms()) is None

    def _ask(self, model: type[R], operation: Callable[[], ServiceAnswer], *, reads: bool = False) -> R:
        name = model.__name__.removesuffix("Result")
        fate = self._before(name, reads=reads)

        def arrive() -> R:
            self.at_point("before_request")
            answer = super(DrillPort, self)._ask(model, operation, reads=reads)
            self.time.observe()
            self.at_point("after_request")
            return answer

        match fate:
            case "lost":
                with suppress(ApiError):
                    arrive()
                self._no_answer(NoAnswer.READ, self._chance.choice((100, TOTAL_MS)), reads=reads)
            case "double":
                with suppress(ApiError):
                    arrive()
            case "stale" if model is EventsPage and self._old_page is not None:
                self.time.pass_ms(self._chance.randint(*LATENCY_MS) // 2)
                return cast("R", self._old_page)
            case "late" if not reads:
                self.time.at(
                    self.time.now_ms() + self._chance.randint(*LATE_MS), lambda: self._arrive_late(name, operation)
                )
                self._no_answer(NoAnswer.READ_TIMEOUT, TOTAL_MS, reads=False)
        answer = arrive()
        if self._old_page is None and isinstance(answer, EventsPage) and answer.events:
            self._old_page = answer
        self.time.pass_ms(
            self._chance.randint(*LATENCY_MS) // 2 + (self._chance.randint(500, 10_000) if fate == "slow" else 0)
        )
        return answer

    def _arrive_late(self, name: str, operation: Callable[[], ServiceAnswer]) -> None:
        self.time.say(f"network: {name} arrives late")
        count = self.time.exchange.count
        # Nobody hears a refusal.
        with suppress(Exception):
            operation()
        for event in self.time.exchange.event_buffer.events[count:]:
            self.late_ids.add(event_bodies.event(event).get("requestId", ""))

    def _before(self, name: str, *, reads: bool) -> Fate | None:
        """What becomes of a request that is sent now. Raises the error of one that does not arrive."""
        now_ms, chance = self.time.now_ms(), self._chance
        if span_of(self._outages, now_ms) is not None:
            if self._refuses:
                self._no_answer(NoAnswer.CONNECT, 1, reads=reads)
            self._no_answer(NoAnswer.CONNECT_TIMEOUT, CONNECT_MS, reads=reads)
        lossy = span_of(self._lossy, now_ms)
        fate: Fate | None = chance.choice(FATES) if lossy is not None and chance.random() < lossy.share else None
        if fate is not None:
            self.met[fate] += 1
            self.time.say(f"network: {name}: {fate}")
        self.time.pass_ms(chance.randint(*LATENCY_MS) // 2)
        match fate:
            case "unsent":
                self._no_answer(NoAnswer.WRITE, 100, reads=reads)
            case "busy":
                self._refused("rate_limited", 429, reads=reads)
            case "down":
                self._refused("service_unavailable", 503, reads=reads)
            case "denied" if name == ORDER:
                self._refused("forbidden", 403, reads=reads)
        return fate

    def _refused(self, code: str, status: int, *, reads: bool) -> None:
        """Raise the error of a request that something before the service refuses."""
        self.failed += 1
        raise ApiError.of(
            code,
            "not now",
            request_id="req_network",
            order_submitted=False,
            retryable=status != 403,
            status=status,
            reads=reads,
        )

    def _no_answer(self, fault: NoAnswer, after_ms: int, *, reads: bool) -> None:
        """A request ends without an answer, `after_ms` after it was sent: the error that the client raises for it."""
        self.failed += 1
        self.time.pass_ms(after_ms)
        raise fault_error(TransportFault(fault, "injected by the drill"), reads=reads)
