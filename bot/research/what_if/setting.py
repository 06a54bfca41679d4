"""Settings of guardians: read from the text of `--guardian`, spread to a grid, applied to the requests of a history.

trailing_stop: 0.5..3 step 0.25
account_drawdown.action: flatten, block_opens
schedule: 0 20 * * 5 | 0 21 * * 5
max_hold: off, 1h, 1d
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import product
from math import prod
from typing import Any, Final

from pydantic import ValidationError

from bot.errors import ConfigError
from bot.money import format_decimal, parse_decimal
from bot.research.space import GRID_MAX, Params, stepped
from bot.research.what_if.history import DEAD_MAN, AccountHistory
from bot.research.what_if.recorded_requests import KILL, Body, GivenRequest
from bot.runtime.model.intents import TARGET_LEG
from bot.wire.errors import fields_of
from bot.wire.guardian_requests import GUARDIAN_RULES, GuardianFields, GuardianRequest, InlineGuardian
from bot.words import did_you_mean

# a setting without this guardian
OFF: Final = "off"
# the field that `TYPE: VALUES` means
MAIN: Final[Mapping[str, str]] = {
    "trailing_stop": "trailPct",
    "max_hold": "seconds",
    "account_drawdown": "maxLossPctFromDayStart",
    "dead_man_switch": "heartbeatSeconds",
    "schedule": "cron",
    KILL: "action",
}
NOT_SET: Final = frozenset({"market", "orderTemplate"})
SECONDS: Final[Mapping[str, int]] = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
WHOLE: Final = frozenset({"seconds", "heartbeatSeconds"})
TEXTS: Final = frozenset({"action", "onMiss", "cron"})
_GUARDIAN: Final = re.compile(r"\s*(\w+)(?:\.(\w+))?\s*:\s*(\S.*?)\s*", re.DOTALL)
_RANGE: Final = re.compile(r"(\S+?)\s*\.\.\s*(\S+)(?:\s+step\s+(\S+))?")
_DURATION: Final = re.compile(r"([0-9.]+)([smhd]?)", re.ASCII)


def read_grid(texts: Sequence[str]) -> list[dict[str, str]]:
    """The settings of all `--guardian`: each value with each of the others. ConfigError names what cannot be used."""
    dimensions: dict[str, list[str]] = {}
    for name, values in map(_dimension, texts):
        if name in dimensions:
            raise ConfigError(f"--guardian {name}: is given twice; put its values into one")
        dimensions[name] = values
    cells = prod(map(len, dimensions.values()))
    if cells > GRID_MAX:
        raise ConfigError(f"--guardian: {cells:,} settings are more than {GRID_MAX:,}; take larger steps")
    return [dict(zip(dimensions, cell, strict=True)) for cell in product(*dimensions.values())]


def _dimension(text: str) -> tuple[str, list[str]]:
    """TYPE.FIELD and its values."""
    parsed = _GUARDIAN.fullmatch(text)
    if parsed is None:
        raise ConfigError(f"--guardian {text!r}: write TYPE: VALUES, as in 'trailing_stop: 0.5..3 step 0.25'")
    kind, field, values = parsed.groups()
    if kind not in GUARDIAN_RULES:
        near = did_you_mean(kind, GUARDIAN_RULES)
        raise ConfigError(f"--guardian {kind}: is no guardian{near}; there are {', '.join(GUARDIAN_RULES)}")
    field = field or MAIN[kind]
    known, name = sorted(GUARDIAN_RULES[kind].fields - NOT_SET), f"{kind}.{field}"
    if field not in known:
        raise ConfigError(f"--guardian {name}: does not belong to a {kind}; take {' or '.join(known)}")
    return name, list(dict.fromkeys(_values(name, field, values)))


def _values(name: str, field: str, text: str) -> Iterator[str]:
    ranged = None if field in TEXTS else _RANGE.fullmatch(text)
    if ranged is None and ".." in text:
        raise ConfigError(f"--guardian {name}: {text!r} is no range; write LOW..HIGH step STEP, or values with commas")
    if ranged is None:
        for value in text.split("|" if field == "cron" else ","):
            yield OFF if value.strip() == OFF else _checked(name, field, value.strip())
        return
    if ranged[3] is None:
        raise ConfigError(f"--guardian {name}: the range {text} has no step; write for example {text} step 1")
    low, high, step = (_number(name, field, bound) for bound in ranged.groups())
    if low >= high or step <= 0:
        raise ConfigError(f"--guardian {name}: {text}: the range must begin below its end, with a step above 0")
    try:
        # The ends are checked before the range is spread.
        for number in (low, high, *stepped(low, high, step)):
            _checked(name, field, format_decimal(number))
        yield from map(format_decimal, stepped(low, high, step))
    except ConfigError as error:
        raise ConfigError(f"--guardian {name}: {str(error).removeprefix(f'--guardian {name}: ')}") from None


def _number(name: str, field: str, text: str) -> Decimal:
    duration = _DURATION.fullmatch(text) if field in WHOLE else None
    try:
        return parse_decimal(text) if duration is None else parse_decimal(duration[1]) * SECONDS[duration[2]]
    except ValueError:
        unit = ", or a duration such as 90m" if field in WHOLE else ""
        raise ConfigError(f"--guardian {name}: {text!r} is not a number; write 2 or 0.5{unit}") from None


def _checked(name: str, field: str, text: str) -> str:
    """The value in the interface's form. ConfigError if it is out of the interface's bounds."""
    value: Any = text if field in TEXTS else _number(name, field, text)
    try:
        GuardianFields.from_wire({"type": name.partition(".")[0], field: value})
    except ValidationError as error:
        raise ConfigError(f"--guardian {name}: {text!r} {fields_of(error)[0]['problem']}") from None
    return text if field in TEXTS else format_decimal(value)


# ── Applied ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def kinds_of(cell: Params) -> dict[str, dict[str, Any] | None]:
    """Type -> the fields of a setting, None for a type that is off."""
    kinds: dict[str, dict[str, Any] | None] = {name.partition(".")[0]: {} for name in cell}
    for name, text in cell.items():
        kind, _, field = name.partition(".")
        fields = kinds[kind]
        if text == OFF:
            kinds[kind] = None
        elif fields is not None:
            fields[field] = text if field in TEXTS else Decimal(str(text))
    return kinds


def with_fields(model: type[GuardianFields], kind: str, present: Body, fields: Mapping[str, Any]) -> Body:
    """A guardian with the fields of a setting; the others keep their value. ConfigError if it lacks a field, or has
    two that exclude each other.
    """
    exclusive = GUARDIAN_RULES[kind].one_of
    ends = exclusive if fields.keys() & set(exclusive) else ()
    body = {"type": kind} | {name: value for name, value in present.items() if name not in ends} | dict(fields)
    if kind == "schedule" and not body.keys() & set(exclusive):
        body["action"] = "flatten"
    try:
        model.from_wire(body)
    except ValidationError as error:
        fault = fields_of(error)[0]
        name = f"{kind}.{fault['field']}"
        raise ConfigError(f"--guardian {name}: {fault['problem']}; give it, or leave the other field out") from None
    return body


def _on_entry(guardians: Sequence[Body], kinds: Mapping[str, dict[str, Any] | None]) -> list[Body]:
    """The guardians of an entry under a setting: at most one of each of its types, in the place of the first.

    A trailing stop whose distance equals its activation is the bracket's stop at the entry, and stays.
    """
    changed = list(guardians)
    for kind, fields in kinds.items():
        if GUARDIAN_RULES[kind].scope != "position":
            continue
        own = [
            place
            for place, body in enumerate(changed)
            if body["type"] == kind and (body.get("trailR") is None or body["trailR"] != body.get("activateAtR"))
        ]
        first = own[0] if own else len(changed)
        new = [] if fields is None else [with_fields(InlineGuardian, kind, changed[first] if own else {}, fields)]
        after = [body for place, body in enumerate(changed) if place >= first and place not in own]
        changed = [*changed[:first], *new, *after]
    return changed


def present_of(history: AccountHistory, setting: Mapping[str, str]) -> dict[str, str]:
    """The values that the history itself has of the fields of a setting: one, "none" or "several"."""
    bodies = [body for request in history.requests for body in request.body.get("guardians", ())]
    bodies += [request.body for request in history.requests if request.action == "arm"]
    present = {}
    for name in setting:
        kind, _, field = name.partition(".")
        values = {str(body[field]) for body in bodies if body["type"] == kind and body.get(field) is not None}
        present[name] = "none" if not values else values.pop() if len(values) == 1 else "several"
    return present


def requests_under(history: AccountHistory, cell: Params) -> list[GivenRequest]:
    """The requests of the history with the setting in them from `since_ms` on.

    An account-wide guardian of the setting takes the place of the armed ones then.
    """
    kinds, since_ms = kinds_of(cell), history.since_ms
    requests: list[GivenRequest] = []
    for kind, fields in kinds.items():
        if kind == KILL and not history.has(kind):
            raise ConfigError(f"--guardian {KILL}: no kill switch acted in the history; leave it out")
        if fields is not None and GUARDIAN_RULES[kind].scope == "account" and not history.has(kind):
            body = with_fields(GuardianRequest, kind, {}, fields)
            requests.append(GivenRequest(since_ms, "arm", f"setting:{kind}", body=body))
    for request in history.requests:
        armed = request.armed
        if armed in kinds:
            fields, is_after = kinds[armed], request.at_ms >= since_ms
            # What acted on its own position or at its own instant before stays.
            stays = not is_after and (armed == KILL or GUARDIAN_RULES[armed].scope == "position")
            requests += [request] * (not is_after)
            # The dead-man switch changes with the heartbeats.
            goes = not is_after and not stays and armed != DEAD_MAN
            requests += [GivenRequest(since_ms, "disarm", request.key)] * goes
            if fields is not None and not stays:
                body = with_fields(GuardianRequest, armed, request.body, fields)
                requests.append(request._replace(at_ms=max(request.at_ms, since_ms), body=body))
        elif request.action == "order" and request.kind != TARGET_LEG and request.at_ms >= since_ms:
            guardians = _on_entry(request.body.get("guardians", ()), kinds)
            requests.append(request._replace(body={**request.body, "guardians": guardians}))
        else:
            requests.append(request)
    return sorted(requests, key=lambda request: request.at_ms)
