"""Notices to people: which events cause one, and its words. Pure. The journal keeps notices until notifier.py has sent
them.

A notice is written in the same transaction as its cause. Its payload holds the fields, not the text, so that a template
may change while a notice waits.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from bot.logs import redact_text
from bot.money import format_decimal
from bot.plain_text import one_line
from bot.runtime.alerts.alarms import ALARMS
from bot.runtime.journal.journal import Notice
from bot.words import many

if TYPE_CHECKING:
    from bot.wire import Event

Level = Literal["info", "warning", "error"]
LEVELS: Final[tuple[Level, ...]] = ("info", "warning", "error")
# characters of one field; market names and reasons come from others and may be long
FIELD_MAX: Final = 300
# characters of one message; the targets' services cut longer ones
TEXT_MAX: Final = 3_500


class NoticeTemplate(NamedTuple):
    """The words for one kind of notice. `{name}` stands for a field; a missing field is a dash."""

    level: Level
    title: str
    text: str
    # fields that `text` may name, besides COMMON
    fields: tuple[str, ...]


COMMON: Final = ("kind", "bot", "market", "strategy", "at_ms")
_FILL = ("side", "size", "px", "fee_usd", "realized_pnl_usd", "position_size", "balance_usd", "cause", "trade_id")
_GUARDIAN = ("guardian_type", "guardian_id", "action", "reason", "account_value_usd", "code")
_WHY = ("message", "code")

TEMPLATES: Final[Mapping[str, NoticeTemplate]] = {
    "fill.entry": NoticeTemplate(
        "info", "{market}: {side} {size} at {px}", "{strategy} opened; fee {fee_usd} USD", _FILL
    ),
    "fill.exit": NoticeTemplate(
        "info",
        "{market}: closed {size} at {px}",
        "{strategy}: {realized_pnl_usd} USD by {cause}, fee {fee_usd} USD",
        _FILL,
    ),
    "guardian.fired": NoticeTemplate(
        "warning", "Guardian {guardian_type} fired", "{market} {action}: {reason}", _GUARDIAN
    ),
    "liquidation.partial": NoticeTemplate(
        "error", "{market}: liquidated in part", "{size} at {px}, {realized_pnl_usd} USD", _FILL
    ),
    "liquidation.full": NoticeTemplate(
        "error", "{market}: liquidated", "{size} at {px}, {realized_pnl_usd} USD", _FILL
    ),
    "liquidation.backstop": NoticeTemplate(
        "error", "{market}: liquidated", "{size} at {px}, {realized_pnl_usd} USD", _FILL
    ),
    "settlement.settled": NoticeTemplate(
        "info",
        "{market}: settled",
        "{size} at {outcome_px}, {realized_pnl_usd} USD",
        (*_FILL, "outcome_px", "payout_usd"),
    ),
    "account.reset": NoticeTemplate(
        "warning", "The account was reset", "epoch {epoch}, {balance_usd} USD", ("epoch", "balance_usd")
    ),
    "protection.lost": NoticeTemplate("error", "{market} is without a stop", "{message}", _WHY),
    "protection.restored": NoticeTemplate("warning", "{market} has a stop again", "{message}", _WHY),
    "adoption.declined": NoticeTemplate("error", "{market}: a position was not adopted", "{message}", _WHY),
    "strategy.quarantined": NoticeTemplate(
        "error", "{strategy} is quarantined", "{message}; its positions keep their stops; {resting}", (*_WHY, "resting")
    ),
    "strategy.paused": NoticeTemplate("info", "{strategy} is paused", "{message}", _WHY),
    "strategy.daily_loss": NoticeTemplate(
        "warning", "{strategy} reached its daily loss limit", "{message}; it may still close positions", _WHY
    ),
    "strategy.backlog_lost": NoticeTemplate("error", "{strategy} has not received all events", "{message}", _WHY),
    "intent.quarantined": NoticeTemplate(
        "error",
        "{market}: an order needs your decision",
        "{strategy}: {message} ({code}); look at the account, then bot resume",
        _WHY,
    ),
    "order.approval": NoticeTemplate(
        "warning",
        "{market}: an entry waits for your approval",
        "{strategy} wants {side} {size} at about {est_px} ({notional_usd} USD), until {until}: bot approvals approve"
        " {id}",
        ("side", "size", "est_px", "notional_usd", "until", "id"),
    ),
    "order.proposal": NoticeTemplate(
        "warning",
        "{market}: an assistant's proposal waits for your approval",
        "{proposed_by} proposes {side} {size} at about {est_px} ({notional_usd} USD) for {strategy}, until {until}:"
        " {why}. bot approvals approve {id}",
        ("side", "size", "est_px", "notional_usd", "until", "id", "proposed_by", "why"),
    ),
    **{alarm.notice: NoticeTemplate(alarm.level, alarm.title, "{message}", _WHY) for alarm in ALARMS.values()},
    "proof.done": NoticeTemplate("info", "A day of {bot} is proved", "{message}", _WHY),
    "account.foreign": NoticeTemplate("warning", "Someone else used the account", "{market}: {message}", _WHY),
    "heartbeat.lapsed": NoticeTemplate(
        "error", "The dead-man deadline passed while the daemon was not looking", "{message}", _WHY
    ),
    "journal.rebuilt": NoticeTemplate("error", "{bot} has started a new journal", "{message}", _WHY),
    "key.expires": NoticeTemplate("warning", "The API key of {bot} expires soon", "{message}", _WHY),
    "daemon.ready": NoticeTemplate("info", "{bot} is ready", "{message}", _WHY),
    "daemon.degraded": NoticeTemplate("error", "{bot} is degraded", "{message}", _WHY),
    "daemon.recovered": NoticeTemplate("info", "{bot} is no longer degraded", "{message}", _WHY),
    "daemon.stopped": NoticeTemplate("warning", "{bot} has stopped", "{message}", _WHY),
    "daemon.killed": NoticeTemplate("error", "The last run of {bot} did not shut down", "{message}", _WHY),
    "daemon.failed": NoticeTemplate(
        "error",
        "{bot} has failed",
        "{message}; exit code {code}. The account is unattended until the daemon runs again; stops and guardians stay"
        " at the service",
        _WHY,
    ),
}


def of_event(
    event: Event, owner_of: Callable[[str], str | None] = lambda _key: None, owner: str | None = None
) -> Iterable[Notice]:
    """The notice of an event of the service; none for most events.

    `owner` is its strategy, where more than its key is known.
    """
    kind = f"{event.type}.{event.subtype}"
    template = TEMPLATES.get(kind)
    if template is None:
        return ()
    strategy = owner_of(event.idempotency_key) if event.idempotency_key is not None else None
    fields = {name: getattr(event.data, name, None) for name in template.fields}
    if event.type == "fill":
        fields["cause"] = event.data.kind
    return (notice(kind, event.id, market=event.coin, strategy=owner or strategy, at_ms=event.ts, **fields),)


def owners_in_words(parts: Iterable[str]) -> str | None:
    """The owners of a fill's parts, in words for people; None if it was no fill."""
    return " + ".join("someone else" if name.startswith("@") else name for name in parts) or None


def notice(
    kind: str, ref: str, *, at_ms: int, market: str | None = None, strategy: str | None = None, **fields: Any
) -> Notice:
    """A notice of the daemon. The same kind with the same `ref` is sent once, also after a restart."""
    assert kind in TEMPLATES, kind
    known = {"market": market, "strategy": strategy, "at_ms": at_ms, **fields}
    payload = {name: _plain(value) for name, value in known.items() if value is not None}
    return Notice(ref, kind, json.dumps(payload, sort_keys=True))


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return format_decimal(value)
    if isinstance(value, bool | int):
        return value
    return redact_text(one_line(str(value)))[:FIELD_MAX]


class Message(NamedTuple):
    """What is sent: level, short title and text."""

    level: Level
    title: str
    text: str


class _Fields(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "-"


def render(kind: str, payload: str, *, bot: str, texts: Mapping[str, str] | None = None) -> Message:
    """The message for one notice; `texts` are the config's own, by kind. An unknown kind is shown by its name."""
    template = TEMPLATES.get(kind) or NoticeTemplate("warning", "{kind}", "{market} {message}", _WHY)
    fields = _Fields(json.loads(payload), kind=kind, bot=bot)
    text = (texts or {}).get(kind, template.text)
    title = template.title.format_map(fields)
    return Message(
        template.level,
        f"[{bot}] {title}" if "{bot}" not in template.title else title,
        text.format_map(fields)[:TEXT_MAX],
    )


def problem_of(kind: str, text: str) -> str | None:
    """What is wrong with a template of the config; None if nothing is."""
    template = TEMPLATES.get(kind)
    if template is None:
        return f"there is no notice {kind!r}; known: {', '.join(TEMPLATES)}"
    known = (*COMMON, *template.fields)
    try:
        for _, name, spec, conversion in string.Formatter().parse(text):
            if name is None:
                continue
            if name not in known:
                return f"{{{name}}} is no field of {kind}; known: {', '.join(known)}"
            if spec or conversion:
                return f"{{{name}}}: a field takes no format and no conversion"
    except ValueError as error:
        return f"is no template: {error}; write a literal brace twice"
    return None


def problems(
    texts: Mapping[str, str], mute: Iterable[str], level: Level = "info"
) -> Iterable[tuple[tuple[str | int, ...], str]]:
    """Problems of the config's own texts and muted kinds, each with its place. A text that is never sent is one."""
    for kind, text in texts.items():
        if (problem := problem_of(kind, text)) is not None:
            yield ("texts", kind), problem
        elif kind in mute:
            yield ("texts", kind), f"is never sent, because mute names {kind}: remove one of them"
        elif LEVELS.index(TEMPLATES[kind].level) < LEVELS.index(level):
            yield ("texts", kind), f"is never sent: its level is {TEMPLATES[kind].level}, and level is {level}"
    for index, kind in enumerate(mute):
        if (problem := problem_of(kind, "")) is not None:
            yield ("mute", index), problem


def dropped(count: int, *, bot: str) -> Message:
    """Says how many notices were dropped because the target was down for too long."""
    return Message(
        "warning",
        f"[{bot}] {many(count, 'older notice')} {'was' if count == 1 else 'were'} dropped",
        f"{'It was' if count == 1 else 'They were'} written while this target was down.",
    )


def digest(messages: Iterable[tuple[str, Message]], *, bot: str) -> Message:
    """Many notices as one message: the count of each kind, and the worst one in full."""
    counts: dict[str, int] = {}
    worst: Message | None = None
    for kind, message in messages:
        counts[kind] = counts.get(kind, 0) + 1
        if worst is None or LEVELS.index(message.level) > LEVELS.index(worst.level):
            worst = message
    assert worst is not None
    total = sum(counts.values())
    lines = [f"{count} x {kind}" for kind, count in sorted(counts.items(), key=lambda item: -item[1])]
    return Message(
        worst.level,
        f"[{bot}] {many(total, 'more notice')}",
        "\n".join([*lines, f"{worst.title}: {worst.text}"])[:TEXT_MAX],
    )
