"""Metrics for Prometheus, read from the daemon at each scrape. The kernel's own figures are the source; nothing is counted twice.

`Meter` counts passes (a few attribute writes per pass, no library). `Figures` collects it with the figures of account state,
attribution, heartbeat and journal. prometheus-client is imported when the port is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bot.clock import boot_ns
from bot.errors import ConfigError
from bot.runtime.control_plane.status import WORDS
from bot.runtime.model.intents import FINAL, IN_DOUBT

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from bot.runtime.alerts.notifier import Notifier
    from bot.runtime.kernel import Kernel
    from bot.runtime.liveness.heartbeat import HeartbeatProcess

PREFIX: Final = "bracketbot"
PASS_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
STUCK_S: Final = 20.0  # without a pass for this long the kernel counts as stuck, as for the watchdog and the heartbeat


@dataclass(slots=True)
class Meter:
    """Passes of the kernel: how many, how long, how late. In seconds of real time."""

    passes: int = 0
    failed: int = 0
    seconds_sum: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(PASS_BUCKETS_S) + 1))
    lag_s: float = 0.0  # of the newest pass
    lag_max_s: float = 0.0  # since the last scrape
    ended_ns: int | None = None  # boot time of the end of the newest pass
    restarts: int = 0  # of the heartbeat process

    def passed(self, *, seconds: float, lag_s: float, now_ns: int) -> None:
        self.passes += 1
        self.seconds_sum += seconds
        self.lag_s = lag_s
        self.lag_max_s = max(self.lag_max_s, lag_s)
        self.ended_ns = now_ns
        place = next((n for n, bound in enumerate(PASS_BUCKETS_S) if seconds <= bound), len(PASS_BUCKETS_S))
        self.buckets[place] += 1

    def age_s(self, now_ns: int) -> float | None:
        """Seconds since the end of the newest pass."""
        return None if self.ended_ns is None else (now_ns - self.ended_ns) / 1e9


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the figures come from. `state` is the daemon's state word; `is_recovered` is True once it knows the account."""

    meter: Meter
    kernel: Kernel
    heartbeat: Callable[[], HeartbeatProcess | None]
    notifier: Notifier | None
    state: Callable[[], str]
    is_recovered: Callable[[], bool]


# Gauge of each strategy -> its help text, and the attribute of the strategy's book.
PROFIT: Final[Mapping[str, tuple[str, str]]] = {
    "realized_usd": ("Realised profit, before fees.", "realized_usd"),
    "unrealized_usd": ("Unrealised profit at mark.", "unrealized_usd"),
    "fees_usd": ("Fees paid.", "fees_usd"),
    "funding_usd": ("Funding received less paid.", "funding_usd"),
    "margin_lost_usd": ("Margin that liquidations took.", "margin_lost_usd"),
    "net_usd": ("All in: realised and unrealised, less fees and lost margin, with funding.", "net_usd"),
    "day_usd": ("Result since 00:00 UTC, net of fees and funding.", "day_usd"),
    "notional_usd": ("Notional of its positions at entry.", "notional_usd"),
}
Sample = tuple[Sequence[str], float]


def is_live(sources: Sources, now_ns: int) -> bool:
    """True if the kernel makes progress. A start that waits for its service is alive too."""
    age_s = sources.meter.age_s(now_ns)
    return age_s is None or age_s < STUCK_S


def is_ready(sources: Sources, now_ns: int) -> bool:
    """True if the daemon has recovered, makes progress, and is not stopping."""
    return sources.is_recovered() and is_live(sources, now_ns) and sources.state() not in ("STARTING", "STOPPING")


def registry_of(sources: Sources) -> CollectorRegistry:
    """A registry with the daemon's figures and this process's memory, CPU and files. ConfigError without the package."""
    try:
        from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
    except ImportError as error:
        raise ConfigError(
            "metrics: needs the package prometheus-client: install bracketbot[metrics], or remove the section"
        ) from error
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(Figures(sources))
    return registry


def exposition(registry: CollectorRegistry) -> bytes:
    """The text that Prometheus reads."""
    from prometheus_client import generate_latest

    return generate_latest(registry)


class Figures:
    """A collector that reads the daemon at each scrape."""

    def __init__(self, sources: Sources) -> None:
        self._of = sources

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        def gauge(name: str, what: str, samples: Iterable[Sample], labels: Sequence[str] = ()) -> Metric:
            family = GaugeMetricFamily(f"{PREFIX}_{name}", what, labels=labels)
            for values, figure in samples:
                family.add_metric(values, figure)
            return family

        def counter(name: str, what: str, samples: Iterable[Sample], labels: Sequence[str] = ()) -> Metric:
            family = CounterMetricFamily(f"{PREFIX}_{name}", what, labels=labels)
            for values, figure in samples:
                family.add_metric(values, figure)
            return family

        now_ns = boot_ns()
        meter = self._of.meter
        yield gauge("ready", "1 once recovered and while passes are made.", [((), float(is_ready(self._of, now_ns)))])
        state = self._of.state()
        yield gauge(
            "state",
            "1 for the state that the daemon is in.",
            [((one,), float(one == state)) for one in WORDS],
            ["state"],
        )
        yield gauge(
            "degraded", "Reasons why nothing is opened.",
            [((reason,), 1.0) for reason in sorted(self._of.kernel.health.degraded)], ["reason"],
        )  # fmt: skip
        yield counter("passes", "Completed passes.", [((), meter.passes)])
        yield counter("passes_failed", "Passes that ended because the service did not answer.", [((), meter.failed)])
        family = HistogramMetricFamily(f"{PREFIX}_pass_seconds", "How long a pass takes.")
        total, buckets = 0, []
        for bound, count in zip([*map(str, PASS_BUCKETS_S), "+Inf"], meter.buckets, strict=True):
            total += count
            buckets.append((bound, float(total)))
        family.add_metric((), buckets, meter.seconds_sum)
        yield family
        yield gauge("loop_lag_seconds", "How late the newest pass began.", [((), meter.lag_s)])
        yield gauge(
            "loop_lag_max_seconds", "How late the latest pass since the last scrape began.", [((), meter.lag_max_s)]
        )
        meter.lag_max_s = 0.0
        age_s = meter.age_s(now_ns)
        yield gauge("pass_age_seconds", "Since the newest pass ended.", [] if age_s is None else [((), age_s)])
        if self._of.is_recovered():  # Before that a 0 would be taken for the account's figure.
            yield from self._trading(gauge)
        yield from self._guards(gauge, counter, now_ns)
        yield from self._strategies(gauge, counter)

    def _trading(self, gauge: Callable[..., Metric]) -> Iterator[Metric]:
        kernel = self._of.kernel
        mirror, live = kernel.account.mirror, list(kernel.execution.live.values())
        yield gauge("account_value_usd", "Cash and unrealised profit.", [((), mirror.equity_usd)])
        yield gauge("account_epoch", "Resets of the account so far.", [((), mirror.epoch)])
        yield gauge("positions", "Open positions.", [((), len(mirror.positions))])
        yield gauge("orders", "Resting orders, with stops and targets.", [((), len(mirror.orders))])
        yield gauge(
            "unprotected_positions", "Own positions without a stop that need one.",
            [((), sum(kernel.context.requires_protection(one) for one in mirror.unprotected()))],
        )  # fmt: skip
        yield gauge("intents_open", "Intents that are not final.", [((), sum(one.state not in FINAL for one in live))])
        yield gauge(
            "intents_in_doubt", "Intents that may or may not have become orders.",
            [((), sum(one.state in IN_DOUBT for one in live))],
        )  # fmt: skip
        yield gauge(
            "intents_quarantined", "Intents that wait for a person.",
            [((), sum(one.state == "quarantined" for one in live))],
        )  # fmt: skip
        yield gauge("behind", "1 while the events cannot be read to their end.", [((), float(kernel.state.behind))])
        yield gauge(
            "cursor_lag_seconds",
            "How long the events could not be read to their end, in seconds.",
            [((), kernel.state.lag_s(kernel.budget.pacer.mono_ms()))],
        )

    def _guards(self, gauge: Callable[..., Metric], counter: Callable[..., Metric], now_ns: int) -> Iterator[Metric]:
        kernel = self._of.kernel
        fallen = {one.name for one in kernel.guardians.fallen()}
        yield gauge(
            "guardian_stands", "1 for a guardian of the config that is armed at the service.",
            [((one.name,), float(one.name not in fallen)) for one in kernel.guardians.wanted], ["guardian"],
        )  # fmt: skip
        heartbeat = self._of.heartbeat()
        if heartbeat is not None:
            lease = heartbeat.lease(now_ns)
            yield gauge("heartbeat_armed", "1 while a dead-man switch is armed.", [((), float(lease.armed))])
            yield gauge("heartbeat_failures", "Failed heartbeats in a row.", [((), lease.failures)])
            yield counter("heartbeats", "Heartbeats that were tried.", [((), lease.beats)])
            yield counter(
                "heartbeat_restarts",
                "Starts of the heartbeat process after the first.",
                [((), self._of.meter.restarts)],
            )
            if lease.deadline_boot_ns is not None:
                left_s = (lease.deadline_boot_ns - now_ns) / 1e9
                yield gauge(
                    "heartbeat_deadline_seconds",
                    "Time until the dead-man switch fires if no heartbeat comes.",
                    [((), left_s)],
                )
                age_s = heartbeat.lengths.deadline_ns / 1e9 - left_s
                yield gauge("heartbeat_age_seconds", "Time since the newest heartbeat that counted.", [((), age_s)])
        if self._of.notifier is not None:
            deliveries = self._of.notifier.deliveries
            yield counter(
                "notifications_sent", "Messages that a target accepted.",
                [((one.target.name,), one.sent_total) for one in deliveries], ["target"],
            )  # fmt: skip
            yield counter(
                "notifications_failed", "Messages that a target did not accept; they are tried again.",
                [((one.target.name,), one.failed_total) for one in deliveries], ["target"],
            )  # fmt: skip
        journal = kernel.journal
        yield gauge(
            "journal_bytes", "Size of the journal's file and its write-ahead log.", [((), _bytes(journal.path))]
        )
        yield gauge(
            "journal_fault", "1 while the journal's file cannot be written.", [((), float(journal.fault is not None))]
        )

    def _strategies(self, gauge: Callable[..., Metric], counter: Callable[..., Metric]) -> Iterator[Metric]:
        kernel = self._of.kernel
        names = [instance.name for instance in kernel.strategy_host.instances]
        attribution = {
            name: kernel.account.attribution.of(name)
            for name in dict.fromkeys([*names, *kernel.account.attribution.names()])
        }
        for name, (what, figure) in PROFIT.items():
            samples = [((one,), float(getattr(book, figure))) for one, book in attribution.items()]
            yield gauge(f"strategy_{name}", what, samples, ["strategy"])
        yield counter(
            "strategy_fills", "Fills.", [((one,), book.fills) for one, book in attribution.items()], ["strategy"]
        )
        yield gauge(
            "strategy_paused", "1 for a strategy that opens nothing, because a person paused it or for its daily loss.",
            [((instance.name,), float(kernel.conditions.strategy_stopped(instance.name, kernel.now_ms()) is not None)) for instance in kernel.strategy_host.instances], ["strategy"],
        )  # fmt: skip
        yield gauge(
            "strategy_quarantined", "1 for a strategy in quarantine, whose hooks are not called.",
            [((instance.name,), float(instance.quarantined is not None)) for instance in kernel.strategy_host.instances], ["strategy"],
        )  # fmt: skip


def _bytes(path: Any) -> float:
    if path is None:
        return 0.0
    total = 0
    for suffix in ("", "-wal"):
        try:
            total += path.with_name(path.name + suffix).stat().st_size
        except OSError:
            continue
    return float(total)
