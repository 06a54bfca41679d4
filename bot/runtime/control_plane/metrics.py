"""Metrics for Prometheus, read from the daemon at each scrape. The kernel's own figures are the source; nothing is
counted twice.

`Meter` counts passes (a few attribute writes per pass, no library). `Figures` collects it with the figures of account
state, attribution, heartbeat and journal. prometheus-client is imported when the port is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from bot.clock import boot_ns
from bot.errors import ConfigError
from bot.extras import install
from bot.runtime.alerts.alarms import ALARMS
from bot.runtime.alerts.alarms import METRIC as ALARM_METRIC
from bot.runtime.control_plane.status import WORDS
from bot.runtime.model.intents import FINAL, IN_DOUBT
from bot.runtime.model.protection_rules import PROTECTIONS
from bot.runtime.strategy_host.asker import ThreadAsker
from bot.wire.exchange_facts import FIGURES

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from bot.runtime.alerts.notifier import Notifier
    from bot.runtime.control_plane.alarm_watch import AlarmWatch
    from bot.runtime.control_plane.price_watch import PriceWatch
    from bot.runtime.kernel.kernel import Kernel
    from bot.runtime.liveness.heartbeat import HeartbeatProcess

PREFIX: Final = "bracketbot"
PASS_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
# time without a pass after which the kernel counts as stuck, as for the watchdog and the heartbeat
STUCK_S: Final = 20.0


@dataclass(slots=True)
class Meter:
    """Passes of the kernel: how many, how long, how late. In seconds of real time."""

    passes: int = 0
    failed: int = 0
    seconds_sum: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(PASS_BUCKETS_S) + 1))
    # The lag of the newest pass.
    lag_s: float = 0.0
    # since the last scrape
    lag_max_s: float = 0.0
    # boot time of the end of the newest pass
    ended_ns: int | None = None
    # The restarts of the heartbeat process.
    restarts: int = 0

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
class MetricSources:
    """Where the figures come from.

    `state` is the daemon's state word; `is_recovered` is True once it knows the account.
    """

    meter: Meter
    kernel: Kernel
    heartbeat: Callable[[], HeartbeatProcess | None]
    notifier: Notifier | None
    state: Callable[[], str]
    is_recovered: Callable[[], bool]
    prices: PriceWatch | None = None
    alarms: AlarmWatch | None = None


class MetricText(NamedTuple):
    """Kind, help text and labels of one metric."""

    kind: Literal["gauge", "counter", "histogram"]
    text: str
    labels: tuple[str, ...] = ()


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

# Every metric by its name without the prefix. The reference of the documentation is made of this table.
METRICS: Final[Mapping[str, MetricText]] = {
    "ready": MetricText("gauge", "1 once recovered and while passes are made."),
    "state": MetricText("gauge", "1 for the state that the daemon is in.", ("state",)),
    "degraded": MetricText("gauge", "Reasons why nothing is opened.", ("reason",)),
    ALARM_METRIC: MetricText(
        "gauge",
        "1 for an alarm that stands, with its market, strategy or entry; 0 for one that does not.",
        ("alarm", "subject"),
    ),
    "passes": MetricText("counter", "Completed passes."),
    "passes_failed": MetricText("counter", "Passes that ended because the service did not answer."),
    "pass_seconds": MetricText("histogram", "How long a pass takes."),
    "loop_lag_seconds": MetricText("gauge", "How late the newest pass began."),
    "loop_lag_max_seconds": MetricText("gauge", "How late the latest pass since the last scrape began."),
    "pass_age_seconds": MetricText("gauge", "Since the newest pass ended."),
    "account_value_usd": MetricText("gauge", "Cash and unrealised profit."),
    "account_epoch": MetricText("gauge", "Resets of the account so far."),
    "exchange_in_step": MetricText(
        "gauge", "1 if the service knows everything of the account at the exchange that it follows; else 0."
    ),
    **{name: MetricText("gauge", figure.help) for name, figure in FIGURES.items()},
    "positions": MetricText("gauge", "Open positions."),
    "orders": MetricText("gauge", "Resting orders, with stops and targets."),
    "unprotected_positions": MetricText("gauge", "Own positions without a stop that need one."),
    "intents_open": MetricText("gauge", "Intents that are not final."),
    "intents_in_doubt": MetricText("gauge", "Intents that may or may not have become orders."),
    "intents_quarantined": MetricText("gauge", "Intents that wait for a person."),
    "approvals_waiting": MetricText("gauge", "Entries that wait for a person."),
    "approvals": MetricText("counter", "Questions to a person or a policy, and their answers.", ("outcome",)),
    "agent_asks": MetricText("counter", "Questions to a language model.", ("strategy", "outcome")),
    "agent_tokens": MetricText("counter", "Tokens of the questions and answers.", ("strategy",)),
    "agent_usd": MetricText("counter", "Spend on the language model.", ("strategy",)),
    "agent_ask_seconds": MetricText("counter", "Time from question to reply, summed up.", ("strategy",)),
    "behind": MetricText("gauge", "1 while the events cannot be read to their end."),
    "cursor_lag_seconds": MetricText("gauge", "How long the events could not be read to their end, in seconds."),
    "guardian_stands": MetricText(
        "gauge", "1 for a guardian of the config that is armed at the service.", ("guardian",)
    ),
    "heartbeat_armed": MetricText("gauge", "1 while a dead-man switch is armed."),
    "heartbeat_failures": MetricText("gauge", "Failed heartbeats in a row."),
    "heartbeats": MetricText("counter", "Heartbeats that were tried."),
    "heartbeat_restarts": MetricText("counter", "Starts of the heartbeat process after the first."),
    "heartbeat_deadline_seconds": MetricText("gauge", "Time until the dead-man switch fires if no heartbeat comes."),
    "heartbeat_age_seconds": MetricText("gauge", "Time since the newest heartbeat that counted."),
    "notifications_sent": MetricText("counter", "Messages that a target accepted.", ("target",)),
    "notifications_failed": MetricText(
        "counter", "Messages that a target did not accept; they are tried again.", ("target",)
    ),
    "journal_bytes": MetricText("gauge", "Size of the journal's file and its write-ahead log."),
    "journal_fault": MetricText("gauge", "1 while the journal's file cannot be written."),
    "prices_connected": MetricText("gauge", "1 while the source of the service's prices is connected.", ("source",)),
    "prices_clock_difference_seconds": MetricText("gauge", "The clock of the source of prices less the service's."),
    "price_age_seconds": MetricText("gauge", "Since the newest price of a market; up to 5 s too high.", ("market",)),
    "price_closed": MetricText("gauge", "1 for a market that opens no position for want of a price.", ("market",)),
    "prices_refused": MetricText(
        "counter", "Quotes that gave no price, since the start of the service.", ("market", "reason")
    ),
    **{f"strategy_{name}": MetricText("gauge", text, ("strategy",)) for name, (text, _) in PROFIT.items()},
    "strategy_fills": MetricText("counter", "Fills.", ("strategy",)),
    "strategy_paused": MetricText(
        "gauge", "1 for a strategy that opens nothing, because a person paused it or for its daily loss.", ("strategy",)
    ),
    "protection_waits": MetricText(
        "gauge",
        "1 while a protection refuses entries. No strategy: of the account; no market: of all.",
        ("strategy", "protection", "market"),
    ),
    "protection_refusals": MetricText(
        "gauge",
        "Entries that a protection has refused, in the newest refusals of the journal.",
        ("strategy", "protection"),
    ),
    "strategy_quarantined": MetricText(
        "gauge", "1 for a strategy in quarantine, whose hooks are not called.", ("strategy",)
    ),
}
Sample = tuple[Sequence[str], float]


def is_live(sources: MetricSources, now_ns: int) -> bool:
    """True if the kernel makes progress. A start that waits for its service is alive too."""
    age_s = sources.meter.age_s(now_ns)
    return age_s is None or age_s < STUCK_S


def is_ready(sources: MetricSources, now_ns: int) -> bool:
    """True if the daemon has recovered, makes progress, and is not stopping."""
    return sources.is_recovered() and is_live(sources, now_ns) and sources.state() not in ("STARTING", "STOPPING")


def registry_of(sources: MetricSources) -> CollectorRegistry:
    """A registry with the daemon's figures and this process's memory, CPU and files.

    ConfigError without the package.
    """
    try:
        from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
    except ImportError as error:
        raise ConfigError(
            f"metrics: needs the package prometheus-client: {install('metrics')}, or remove the section"
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

    def __init__(self, sources: MetricSources) -> None:
        self._of = sources

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        now_ns = boot_ns()
        meter = self._of.meter
        yield _family("ready", [((), float(is_ready(self._of, now_ns)))])
        state = self._of.state()
        yield _family("state", [((word,), float(word == state)) for word in WORDS])
        yield _family("degraded", [((reason,), 1.0) for reason in sorted(self._of.kernel.health.degraded)])
        if self._of.alarms is not None:
            yield _family(ALARM_METRIC, _alarms(self._of.alarms))
        yield _family("passes", [((), meter.passes)])
        yield _family("passes_failed", [((), meter.failed)])
        yield _pass_seconds(meter)
        yield _family("loop_lag_seconds", [((), meter.lag_s)])
        yield _family("loop_lag_max_seconds", [((), meter.lag_max_s)])
        meter.lag_max_s = 0.0
        age_s = meter.age_s(now_ns)
        yield _family("pass_age_seconds", [] if age_s is None else [((), age_s)])
        # Before the recovery a 0 would be taken for the account's figure.
        if self._of.is_recovered():
            yield from self._trading()
            yield from self._strategies()
        yield from self._guards(now_ns)
        yield from self._prices()
        yield from self._exchange()

    def _trading(self) -> Iterator[Metric]:
        kernel = self._of.kernel
        account_state, live = kernel.account.account_state, list(kernel.intents.live.values())
        unprotected = sum(kernel.run.requires_protection(position) for position in kernel.account.seen_unprotected())
        yield _family("account_value_usd", [((), account_state.equity_usd)])
        yield _family("account_epoch", [((), account_state.epoch)])
        link = account_state.place.link
        yield _family("exchange_in_step", [] if link is None else [((), float(link == "in_step"))])
        yield _family("positions", [((), len(account_state.positions))])
        yield _family("orders", [((), len(account_state.orders))])
        yield _family("unprotected_positions", [((), unprotected)])
        yield _family("intents_open", [((), sum(intent.state not in FINAL for intent in live))])
        yield _family("intents_in_doubt", [((), sum(intent.state in IN_DOUBT for intent in live))])
        yield _family("intents_quarantined", [((), sum(intent.state == "quarantined" for intent in live))])
        yield _family("approvals_waiting", [((), len(kernel.approvals.waiting()))])
        yield _family("approvals", [((outcome,), count) for outcome, count in sorted(kernel.approvals.counts.items())])
        yield from self._agents()
        yield _family("behind", [((), float(kernel.state.behind))])
        yield _family("cursor_lag_seconds", [((), kernel.state.lag_s(kernel.budget.pacer.mono_ms()))])

    def _agents(self) -> Iterator[Metric]:
        asker = self._of.kernel.strategy_host.asker
        totals = asker.totals if isinstance(asker, ThreadAsker) else {}
        counts = [
            ((name, word), getattr(total, word)) for name, total in totals.items() for word in ("answered", "failed")
        ]
        yield _family("agent_asks", counts)
        yield _family("agent_tokens", [((name,), total.tokens) for name, total in totals.items()])
        yield _family("agent_usd", [((name,), total.usd) for name, total in totals.items()])
        yield _family("agent_ask_seconds", [((name,), total.seconds) for name, total in totals.items()])

    def _guards(self, now_ns: int) -> Iterator[Metric]:
        kernel = self._of.kernel
        # Before the recovery nobody knows which guardians are armed.
        if self._of.is_recovered():
            fallen = {guardian.name for guardian in kernel.guardians.fallen()}
            stands = [((guardian.name,), float(guardian.name not in fallen)) for guardian in kernel.guardians.wanted]
            yield _family("guardian_stands", stands)
        heartbeat = self._of.heartbeat()
        if heartbeat is not None:
            lease = heartbeat.lease(now_ns)
            yield _family("heartbeat_armed", [((), float(lease.armed))])
            yield _family("heartbeat_failures", [((), lease.failures)])
            yield _family("heartbeats", [((), lease.beats)])
            yield _family("heartbeat_restarts", [((), self._of.meter.restarts)])
            if lease.deadline_boot_ns is not None:
                left_s = (lease.deadline_boot_ns - now_ns) / 1e9
                yield _family("heartbeat_deadline_seconds", [((), left_s)])
                yield _family("heartbeat_age_seconds", [((), heartbeat.lengths.deadline_ns / 1e9 - left_s)])
        if self._of.notifier is not None:
            deliveries = self._of.notifier.deliveries
            yield _family(
                "notifications_sent", [((delivery.target.name,), delivery.sent_total) for delivery in deliveries]
            )
            yield _family(
                "notifications_failed", [((delivery.target.name,), delivery.failed_total) for delivery in deliveries]
            )
        journal = kernel.journal
        yield _family("journal_bytes", [((), _bytes(journal.path))])
        yield _family("journal_fault", [((), float(journal.fault is not None))])

    def _prices(self) -> Iterator[Metric]:
        """The source of the service's prices, if the service names one."""
        watch = self._of.prices
        if watch is None or (now := watch.newest) is None:
            return
        yield _family("prices_connected", [((now.source,), float(now.connected))])
        if now.clock_difference_ms is not None:
            yield _family("prices_clock_difference_seconds", [((), now.clock_difference_ms / 1_000)])
        ages = [((market.coin,), age_s) for market in now.markets if (age_s := watch.age_s(market)) is not None]
        yield _family("price_age_seconds", ages)
        yield _family("price_closed", [((market.coin,), float(not market.open)) for market in now.markets])
        refused = [((market.coin, reason), count) for market in now.markets for reason, count in market.refused.items()]
        yield _family("prices_refused", refused)

    def _exchange(self) -> Iterator[Metric]:
        """The account at an exchange, if the service follows one. What is not known has no sample."""
        watch = self._of.prices
        if watch is None or watch.exchange is None:
            return
        for name, figure in FIGURES.items():
            value = figure.value(watch.exchange, watch.told_ms)
            yield _family(name, [] if value is None else [((), value)])

    def _strategies(self) -> Iterator[Metric]:
        kernel = self._of.kernel
        instances = kernel.strategy_host.instances
        names = [instance.name for instance in instances]
        attribution = {
            name: kernel.account.attribution.of(name)
            for name in dict.fromkeys([*names, *kernel.account.attribution.names()])
        }
        for name, (_, figure) in PROFIT.items():
            samples = [((strategy,), float(getattr(book, figure))) for strategy, book in attribution.items()]
            yield _family(f"strategy_{name}", samples)
        yield _family("strategy_fills", [((strategy,), book.fills) for strategy, book in attribution.items()])
        now_ms, stopped = kernel.now_ms(), kernel.conditions.strategy_stopped
        yield _family("strategy_paused", [((name,), float(stopped(name, now_ms) is not None)) for name in names])
        waits = [
            ((wait.strategy or "", wait.protection, wait.market or ""), 1.0)
            for wait in kernel.protections.active(now_ms)
        ]
        yield _family("protection_waits", waits)
        yield _family("protection_refusals", kernel.journal.refusal_counts(PROTECTIONS).items())
        quarantined = [((instance.name,), float(instance.quarantined is not None)) for instance in instances]
        yield _family("strategy_quarantined", quarantined)


def _alarms(watch: AlarmWatch) -> list[Sample]:
    standing = [((name, subject), 1.0) for name, subject, _ in watch.standing()]
    return [*standing, *(((name, ""), 0.0) for name in ALARMS if name not in {of for (of, _), _ in standing})]


def _family(name: str, samples: Iterable[Sample]) -> Metric:
    """The samples of a gauge or counter with its texts of METRICS."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind, text, labels = METRICS[name]
    make: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily if kind == "gauge" else CounterMetricFamily
    family = make(f"{PREFIX}_{name}", text, labels=labels)
    for values, figure in samples:
        family.add_metric(values, figure)
    return family


def _pass_seconds(meter: Meter) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(f"{PREFIX}_pass_seconds", METRICS["pass_seconds"].text)
    total, buckets = 0, []
    for bound, count in zip([*map(str, PASS_BUCKETS_S), "+Inf"], meter.buckets, strict=True):
        total += count
        buckets.append((bound, float(total)))
    family.add_metric((), buckets, meter.seconds_sum)
    return family


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
