"""The bodies of the interface in its own notation, and the judge that holds an answer to them: every field, no
other, each of its type.
"""

from __future__ import annotations

import re
from typing import Any

RESOURCES = {
    "Position": (
        "coin str · side long|short · size sz · leverage num · entryPx px? · markPx px? · liquidationPx px? ·"
        " unrealizedPnlUsd usd? · fundingUsd usd? · marginUsedUsd usd? · book main|stocks|events · market str ·"
        " notionalUsd usd? · stopPx px? · takeProfitPx px? · riskUsd usd? · openedAt ms"
    ),
    "Trade": (
        "id str · requestId str? · source dashboard|agent|api? · kind"
        " market|limit|close|stop_loss|take_profit|guardian|kill|liquidation|settlement · symbol str · side long|short"
        " · intent open|close · reduceOnly bool · size sz · avgPx px? · feeUsd usd? · realizedPnlUsd usd? · fillStatus"
        " none|partial|filled · status open|done|canceled · venueOid digits? · idempotencyKey str? · seq int · market"
        " str · filledSize sz · leverage num · guardianId str? · reason str? · ts ms · updatedAt ms · marginLostUsd usd"
        " · absorbedUsd usd"
    ),
    "Order": (
        "oid digits · tradeId str? · coin str · market str · side long|short · intent open|close · kind"
        " limit|stop_loss|take_profit · reduceOnly bool · size sz · filledSize sz · limitPx px? · triggerPx px? ·"
        " bracket Bracket? · status open|armed · source str? · idempotencyKey str? · createdAt ms"
    ),
    "Bracket": "stopLoss Stop? · takeProfit Target?",
    "Stop": "px px · pct num? · r null",
    "Target": "px px · pct num? · r num?",
    "Guardian": (
        "id str · type str · scope account|position · status armed|latched · coin str? · market str? · heartbeatSeconds"
        " int? · onMiss str? · seconds int? · trailPct num? · trailR num? · activateAtR num? · maxLossPctFromDayStart"
        " num? · action str? · cron str? · orderTemplate object? · nextDeadline ms? · lastHeartbeatAt ms? · active bool"
        " · extremePx px? · stopPx px? · dayStartValueUsd usd? · floorValueUsd usd? · blocksOpens bool · tradeId str? ·"
        " firedAt ms? · fireCount int · createdAt ms"
    ),
    "Market": (
        "coin str · market str · name str · assetClass stocks|bonds|crypto|prediction · book main|stocks|events ·"
        " status open|closed|halted|settled · markPx px? · midPx px? · oraclePx px? · bidPx px? · askPx px? · spreadBps"
        " num? · change24hPct num? · volume24hUsd usd · openInterestUsd usd · fundingRateHourly rate? · nextFundingAt"
        " ms? · szDecimals int · maxLeverage int · marginMode cross|isolated|full · minNotionalUsd usd · takerFeeBps"
        " num · makerFeeBps num · external open|closed? · opensAt ms? · closesAt ms? · expiresAt ms? · outcomePx px?"
    ),
    "Limits": "limitsVersion int · platform Platform · account AccountLimits · key KeyLimits? · rate [Rate]",
    "AccountLimits": (
        "maxTradeUsd usd? · dailyTradeCapUsd usd? · usedTodayUsd usd · remainingTodayUsd usd? · resetsAt ms"
    ),
    "KeyLimits": (
        "id str · scopes [str] · maxExposureUsd usd? · exposureUsd usd · maxDailyNotionalUsd usd? · usedTodayUsd usd ·"
        " maxLeverage int? · allowedCoins [str]? · maxOpenPositions int? · openPositions int · expiresAt ms?"
    ),
    "Platform": (
        "maxNotionalUsd usd? · minNotionalUsd usd · usdAmountMax usd · leverageMax int · slippageBpsMax int ·"
        " slippageBpsDefault Slippage · driftBpsDefault int · driftBpsMax int · planTtlMs int · heartbeatSecondsMin int"
        " · heartbeatSecondsMax int · guardianSecondsMin int · openOrdersMax int · guardiansMax int · keysMax int ·"
        " webhooksMax int · eventsKept int · idempotencyTtlMs int · bodyBytesMax int"
    ),
    "Slippage": "main int · stocks int · events int · close int",
    "Rate": (
        "policy default|orders|heartbeat|kill|public|accounts · scope key|account|ip · perSecond num · burst int ·"
        " remaining int"
    ),
    "Health": (
        "status ok|restricted|liquidating · opensBlocked bool · blockedBy [str] · marginRatio num? · unprotected [str]"
        " · venue ok|degraded|halted"
    ),
    "Credit": "grantedUsd usd · remainingUsd usd · expiresAt ms? · policy str",
    "CreditPolicy": "grantedUsd usd · expiresAt ms? · policy str",
    "Apis": "rest Rest · mcp Mcp",
    "Rest": "baseUrl url · openapi url · docs url",
    "Mcp": "url url · protocolVersions [str]",
    "Step": "n int · title str · method str · path str · auth none|bearer · body object? · note str",
    "Candle": "ts ms · open px · high px · low px · close px · volume sz · closed bool",
    "Level": "px px · sz sz",
    "Clock": "mode real|accelerated|manual · speed num",
    "StatusLimits": "platform Platform · rate [Rate]",
    "Plan": (
        "coin str · market str · side long|short · intent open|close · type market|limit · size sz · fillSize sz ·"
        " notionalUsd usd · midPx px · estPx px? · boundPx px · slippageBps num? · feeUsd usd · leverage num ·"
        " leverageClamped bool · marginUsd usd · liquidationPx px? · bracket Bracket? · riskUsd usd? · guardians"
        " [object] · maxDriftBps int · protected bool · warnings [Warning]"
    ),
    "Warning": (
        "code leverage_clamped|partial_depth|wide_spread|external_closed|near_liquidation|unprotected|rounded ·"
        " message str"
    ),
    "SuggestedRequest": "method str · path str · body object",
    "Deadline": "id str · nextDeadline ms",
}

BODIES = {
    "start": (
        "name str · environment sandbox · steps [Step] · apis Apis · creditPolicy CreditPolicy · scopes [str] ·"
        " docs url"
    ),
    "markets": "markets [Market]",
    "candles": "coin str · interval str · candles [Candle]",
    "book": "coin str · bids [Level] · asks [Level] · spreadBps num? · midPx px? · ts ms",
    "status": (
        "status ok|degraded · environment sandbox · version 0.6.0 · apiVersion str · limitsVersion int · serverTime ms"
        " · clock Clock · limits StatusLimits"
    ),
    "opened": (
        "apiKey str · keyId str · accountId str · address str · name str? · balanceUsd usd · environment sandbox ·"
        " scopes [str] · lastEventId str · createdAt ms · apis Apis · docs url"
    ),
    "reset": (
        "accountId str · address str · balanceUsd usd · environment sandbox · epoch int · lastEventId str · resetAt ms"
    ),
    "account": (
        "accountId str · address str · epoch int · nickname str? · environment sandbox · accountValueUsd usd ·"
        " balanceUsd usd · freeMarginUsd usd · marginUsedUsd usd · unrealizedPnlUsd usd · positions [Position] · orders"
        " [Order] · guardians [Guardian] · limits Limits · budget AccountLimits · credit Credit · lastEventId str ·"
        " health Health · serverTime ms"
    ),
    "ordered": (
        "dryRun false · orderSubmitted true · trade Trade · position Position? · orders [Order] · guardians [Guardian]"
        " · leverage num · leverageClamped bool · protected bool · warnings [Warning] · lastEventId str"
    ),
    "planned": "dryRun true · orderSubmitted false · confirmToken str · expiresAt ms · plan Plan",
    "orders": "orders [Order]",
    "canceled": "oid digits · coin str · canceled true · filledSize sz · unprotected bool",
    "canceled_coin": "coin str · canceledOids [digits] · unprotected bool",
    "suggested": (
        "coin str · market str · intent open|close · side long|short · feasible bool · request SuggestedRequest? · size"
        " sz? · notionalUsd usd? · leverage num? · midPx px · estPx px? · slippageBps num? · feeUsd usd? · marginUsd"
        " usd? · minSize sz · minNotionalUsd usd · maxSize sz · warnings [Warning]"
    ),
    "trades": "trades [Trade] · nextBefore int?",
    "guardians": "guardians [Guardian]",
    "disarmed": "id str · type str · disarmed true",
    "beat": "guardians [Deadline] · serverTime ms",
    "events": "events [Event] · lastEventId str",
}

# `data` of an event by type and subtype; a field in brackets may be null or absent.
EVENT_DATA = {
    "fill": (
        "tradeId str · oid digits · kind str · side long|short · intent open|close · reduceOnly bool · size sz · px px"
        " · feeUsd usd · realizedPnlUsd usd? · liquidity maker|taker|none · remainingSize sz · positionSize sz ·"
        " entryPx px? · balanceUsd usd · absorbedUsd usd"
    ),
    "order": (
        "oid digits · tradeId str? · kind str · side long|short · intent open|close · size sz · filledSize sz · limitPx"
        " px? · triggerPx px? · reason str?"
    ),
    "trigger": "oid digits · tradeId str · side long|short · size sz · triggerPx px · markPx px",
    "guardian": (
        "guardianId str · guardianType str · scope account|position · action str? · reason str? · nextDeadline ms? ·"
        " markPx px? · accountValueUsd usd? · canceledOids [digits] · tradeIds [str] · blocksOpens bool · code str?"
    ),
    "funding": "side long|short · size sz · oraclePx px · rate rate · amountUsd usd · balanceUsd usd",
    "liquidation": (
        "tradeId str · side long|short · size sz · px px · markPx px · realizedPnlUsd usd · feeUsd usd · marginLostUsd"
        " usd · absorbedUsd usd · balanceUsd usd"
    ),
    "account.created": "balanceUsd usd",
    "account.reset": "balanceUsd usd · epoch int",
    "account.key_created": "keyId str · name str",
    "account.leverage": "coin str · from num · to num",
}

SUBTYPES = {
    "fill": {"entry", "exit"},
    "order": {"open", "armed", "changed", "canceled"},
    "trigger": {"stop_loss", "take_profit"},
    "guardian": {"armed", "activated", "fired", "released", "disarmed"},
    "funding": {"payment"},
    "liquidation": {"partial", "full", "backstop"},
    "account": {"created", "reset", "settings", "leverage", "key_created", "key_revoked"},
}

MONEY = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]*[1-9])?")
DECIMALS = {"usd": 8, "px": 8, "sz": 8, "rate": 18}


def _is_amount(kind: str, value: object) -> bool:
    if not isinstance(value, str) or MONEY.fullmatch(value) is None or value == "-0":
        return False
    return len(value.partition(".")[2]) <= DECIMALS[kind] and not (kind in ("px", "sz") and value.startswith("-"))


def faults(kind: str, value: Any, where: str) -> list[str]:
    """What is wrong with `value` as a `kind` of the notation."""
    if kind.endswith("?"):
        return [] if value is None else faults(kind[:-1], value, where)
    if kind.startswith("["):
        if not isinstance(value, list):
            return [f"{where} is {value!r}, no array"]
        return [fault for n, one in enumerate(value) for fault in faults(kind[1:-1], one, f"{where}[{n}]")]
    if kind == "Event":
        return event_faults(value, where)
    if kind in RESOURCES:
        return body_faults(RESOURCES[kind], value, where)
    whole = isinstance(value, int) and not isinstance(value, bool)
    good = {
        "str": lambda: isinstance(value, str) and value != "",
        "digits": lambda: isinstance(value, str) and value.isascii() and value.isdigit(),
        "url": lambda: isinstance(value, str) and value.startswith("http"),
        "int": lambda: whole,
        "ms": lambda: whole and value > 1_500_000_000_000,
        "num": lambda: whole or isinstance(value, float),
        "bool": lambda: isinstance(value, bool),
        "object": lambda: isinstance(value, dict),
        "null": lambda: value is None,
        "true": lambda: value is True,
        "false": lambda: value is False,
    }
    if kind in good:
        passed = good[kind]()
    elif kind in DECIMALS:
        passed = _is_amount(kind, value)
    else:
        passed = value in kind.split("|")
    return [] if passed else [f"{where} is {value!r}, not {kind}"]


def body_faults(shape: str, value: Any, where: str = "body") -> list[str]:
    if not isinstance(value, dict):
        return [f"{where} is {value!r}, no object"]
    fields = dict(field.strip().split(" ", 1) for field in shape.split("·"))
    found = [f"{where} has no {name}" for name in fields if name not in value]
    found += [f"{where} has {name} besides" for name in value if name not in fields]
    for name, kind in fields.items():
        if name in value:
            found += faults(kind, value[name], f"{where}.{name}")
    return found


def event_faults(event: dict[str, Any], where: str) -> list[str]:
    optional = {"coin", "requestId", "idempotencyKey"}
    found = body_faults(
        "id str · type str · subtype str · ts ms · data object",
        {name: value for name, value in event.items() if name not in optional},
        where,
    )
    found += [f"{where}.{name} is {event[name]!r}" for name in optional & set(event) if not event[name]]
    if event["subtype"] not in SUBTYPES.get(event["type"], ()):
        found.append(f"{where} is a {event['type']}/{event['subtype']}")
    shape = EVENT_DATA.get(event["type"]) or EVENT_DATA.get(f"{event['type']}.{event['subtype']}")
    if shape is None:
        return [*found, f"{where} has no shape: {event}"]
    return found + body_faults(shape, event["data"], f"{where}.data({event['type']}/{event['subtype']})")


def judge(name: str, body: Any) -> None:
    """AssertionError with everything wrong in a body."""
    found = body_faults(BODIES[name], body, name)
    assert found == [], "\n".join(found)


def amounts(value: Any, name: str = "") -> list[str]:
    """Numbers written where the interface writes text, and amounts not in their form, by field name."""
    if isinstance(value, dict):
        return [bad for key, one in value.items() if key != "slippageBpsDefault" for bad in amounts(one, key)]
    if isinstance(value, list):
        return [bad for one in value for bad in amounts(one, name)]
    if name.endswith(("Usd", "Px")) or name in (
        "px",
        "sz",
        "size",
        "filledSize",
        "open",
        "high",
        "low",
        "close",
        "volume",
    ):
        if value is None or (isinstance(value, str) and MONEY.fullmatch(value) and value != "-0"):
            return []
        return [f"{name}: {value!r}"]
    return []
