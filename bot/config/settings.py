"""The schema of a config: every key with its bounds and default, and the rules between keys. Frozen; reads no file.

Paths are relative to the folder of the config, which validation gets as `context={"folder": Path}`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from decimal import Decimal
from graphlib import CycleError, TopologicalSorter
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    SecretStr,
    StringConstraints,
    Tag,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_snake

from bot.config.protections import NO_PROTECTIONS, ProtectionSettings
from bot.config.references import FORMS, KEY_FORM, NO_HOME, Referred
from bot.config.section import Coin, Loc, Section
from bot.config.section import no as _no
from bot.config.section import refuse as _refuse
from bot.config.state_folder import default_state_dir
from bot.files import OutsideFolder, inside, is_file
from bot.wire import bare_coin
from bot.wire.addresses import ADDRESS_MAX, address_problem
from bot.wire.base import Flag, Integer, Leverage, Number
from bot.wire.guardian_requests import GuardianRequest
from bot.wire.vocabulary import INTERVAL_MS, GuardianAction, GuardianType, Interval

# The strategies of one daemon. Each costs a thread and a part of every pass.
STRATEGIES_MAX: Final = 300
# The number for one strategy.
MARKETS_MAX: Final = 20
# half of the service's limit for an account; the guardians of positions need the rest
GUARDIANS_MAX: Final = 50
# the service's bound on an accelerated clock
SPEED_MAX: Final = 3_600
# real time for a heartbeat to arrive; with less, a short pause of the machine closes all positions
BEAT_WINDOW_SECONDS_MIN: Final = 20

INSTRUCTIONS_FILE: Final = "instructions_file"


def instructions_file(folder: Path, name: str) -> Path:
    """The whole path of the param INSTRUCTIONS_FILE of a file in `folder`.

    OutsideFolder unless it is in the folder or below it.
    """
    return inside(folder, os.path.relpath(name, folder) if Path(name).is_absolute() else os.path.normpath(name))


def _path(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise _no("must be a path")
    if str(value).startswith("$"):
        raise _no(
            "a path cannot contain shell variables: write the whole path, ~/... or ${env:NAME}/...; ./$x is a folder"
            " called $x"
        )
    folder = (info.context or {}).get("folder")
    try:
        path = Path(value).expanduser()
    except RuntimeError:
        raise _no(NO_HOME) from None
    return Path(os.path.normpath(folder / path)) if folder is not None else path


def _secret(value: Any) -> Any:
    if value is None or isinstance(value, Referred | SecretStr):
        return value
    raise _no(f"a secret must not be in the file; write {FORMS}")


LocalPath = Annotated[Path, BeforeValidator(_path, json_schema_input_type=str)]
Secret = Annotated[
    SecretStr,
    StringConstraints,
    BeforeValidator(_secret),
    WithJsonSchema({"type": "string", "pattern": r"^\$\{(credential|file|env):[^{}]+\}$"}),
]


def _key_file(value: Any) -> Any:
    if value is None or isinstance(value, Referred | Path):
        return value
    raise _no(f"a secret must not be in the file; write {KEY_FORM}")


KeyFile = Annotated[
    Path, BeforeValidator(_key_file), WithJsonSchema({"type": "string", "pattern": r"^\$\{file:[^{}]+\}$"})
]

Symbol = Annotated[str, StringConstraints(pattern=r"^[^\s,=]{1,60}$")]


def _approve(value: Any) -> Any:
    """`never`, `always`, a policy `file:function`, or `{above_usd: AMOUNT}`."""
    if isinstance(value, str) and (value in ("never", "always") or re.fullmatch(POLICY, value, re.ASCII)):
        return value
    if isinstance(value, Mapping) and set(value) == {"above_usd"}:
        amount = value["above_usd"]
        if isinstance(amount, int | float | Decimal) and not isinstance(amount, bool) and 0 < amount <= 1_000_000_000:
            return {"above_usd": Decimal(str(amount))}
        raise _no("above_usd must be a number above 0 and at most 1000000000")
    raise _no(
        "must be never, always, {above_usd: AMOUNT}, or a policy of the strategies folder such as my_policy:check"
    )


POLICY: Final = r"[A-Za-z_][\w\-]*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
Approve = Annotated[
    str | Mapping[str, Decimal],
    BeforeValidator(_approve),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["never", "always"]},
                {
                    "type": "object",
                    "properties": {"above_usd": {"type": "number", "exclusiveMinimum": 0, "maximum": 1_000_000_000}},
                    "required": ["above_usd"],
                    "additionalProperties": False,
                },
                {"type": "string", "pattern": f"^{POLICY}$"},
            ]
        }
    ),
]


NETWORK_PATTERN: Final = r"^(testnet|mainnet|[1-9][0-9]{0,4})$"


class LivePricesSettings(Section):
    """Live prices of an exchange for the crypto markets of the embedded service."""

    source: Literal["ccxt", "hyperliquid"] = Field(
        default="ccxt", description="What speaks to the exchange: the library ccxt, or the link to Hyperliquid."
    )
    exchange: str | None = Field(
        default=None, pattern=r"^[a-z0-9_]{1,40}$", description="For ccxt: the exchange's name there, such as kraken."
    )
    network: str | None = Field(
        default=None,
        pattern=NETWORK_PATTERN,
        description="For hyperliquid: testnet, mainnet, or the port of a local exchange on this machine.",
    )
    markets: dict[Coin, Symbol] = Field(
        default={},
        max_length=250,
        description="Coin: the exchange's symbol, such as BTC/USDT:USDT. None: all that it has.",
    )

    @model_validator(mode="after")
    def _place_of_source(self) -> Self:
        needed, other = ("exchange", "network") if self.source == "ccxt" else ("network", "exchange")
        if getattr(self, other) is not None:
            _refuse([((other,), f"does not belong to `source: {self.source}`; write `{needed}`")])
        if getattr(self, needed) is None:
            _refuse([((needed,), f"is required with `source: {self.source}`")])
        return self

    @property
    def place(self) -> str:
        """The exchange at ccxt, or the network."""
        place = self.exchange or self.network
        assert place is not None
        return place


# The tags stand in the path of an error; `source.py` leaves them out.
PRICE_TAGS: Final = ("<one source>", "<several sources>")
PriceSources = Annotated[
    Annotated[LivePricesSettings, Tag(PRICE_TAGS[0])]
    | Annotated[tuple[LivePricesSettings, ...], Field(min_length=1, max_length=20), Tag(PRICE_TAGS[1])],
    Discriminator(lambda value: PRICE_TAGS[isinstance(value, list | tuple)]),
]


class AccountSettings(Section):
    """The service to trade with, and the API key."""

    base_url: str = Field(description="`embedded`, or the service's address: https, or http on this machine.")
    api_key: Secret | None = Field(default=None, description="A reference to the key; the embedded service needs none.")
    prices: PriceSources | None = Field(
        default=None,
        description="Live prices of an exchange, or a list of several, for the embedded service. None: simulated.",
    )
    exchange: Literal["hyperliquid"] | None = Field(
        default=None, description="The embedded service follows an account at this exchange."
    )
    network: str | None = Field(
        default=None,
        pattern=NETWORK_PATTERN,
        description="For an exchange: testnet, mainnet, or the port of a local exchange on this machine.",
    )
    address: str | None = Field(
        default=None, pattern=r"^0x[0-9a-fA-F]{40}$", description="For an exchange: the address of the account."
    )
    agent_key: KeyFile | None = Field(
        default=None,
        description="For an exchange: `${file:PATH}` of the key of an agent. None: nothing is sent to the exchange.",
    )
    exposure_cap_usd: Annotated[Decimal, Number(gt=0, le=1_000_000_000)] | None = Field(
        default=None,
        description="For an exchange: the most exposure that entries may lead to. None: no cap; no entries on mainnet.",
    )
    real_money: Literal["mainnet"] | None = Field(
        default=None, description="For mainnet: what a person has typed in `bot exchange connect`. None: no entries."
    )

    @model_validator(mode="before")
    @classmethod
    def _embedded_for_exchange(cls, value: Any) -> Any:
        """An account at an exchange needs no base_url: the embedded service follows it."""
        if isinstance(value, Mapping) and value.get("exchange") is not None and "base_url" not in value:
            return {**value, "base_url": "embedded"}
        return value

    @property
    def followed(self) -> str | None:
        """The account at an exchange, as --exchange-account takes it."""
        if self.exchange is None or self.network is None or self.address is None:
            return None
        return f"{self.exchange}:{self.network}:{self.address.lower()}"

    @property
    def has_entries(self) -> bool:
        """True if the embedded service sends entries to the exchange."""
        is_meant = self.real_money == self.network and self.exposure_cap_usd is not None
        return self.agent_key is not None and (self.network != "mainnet" or is_meant)

    @property
    def effect(self) -> str:
        """What the embedded service does with an account at an exchange."""
        cap = "" if self.exposure_cap_usd is None else f", to at most {self.exposure_cap_usd:,f} USD of exposure"
        what = "can only shrink it" if self.agent_key is not None else "sends nothing there"
        return f"follows {self.followed} and {f'trades it{cap}' if self.has_entries else what}"

    @property
    def embedded(self) -> bool:
        return self.base_url == "embedded"

    @field_validator("base_url")
    @classmethod
    def _address(cls, value: str) -> str:
        if value == "embedded":
            return value
        problem = address_problem(value)
        if problem is not None:
            raise _no(problem.replace("must be", "must be `embedded` or"))
        return value.rstrip("/")

    @model_validator(mode="after")
    def _whole_exchange(self) -> Self:
        for name in ("network", "address", "agent_key", "exposure_cap_usd", "real_money"):
            if self.exchange is None and getattr(self, name) is not None:
                _refuse([((name,), "belongs to `exchange`; name one or remove this key")])
            if self.exchange is not None and getattr(self, name) is None and name in ("network", "address"):
                _refuse([((name,), "is required with `exchange`")])
        if self.exchange is not None and not self.embedded:
            _refuse([(("exchange",), "needs `base_url: embedded`; remove `base_url`")])
        if self.real_money not in (None, self.network):
            _refuse([(("real_money",), "is for `network: mainnet` alone; remove this key")])
        return self

    @model_validator(mode="after")
    def _key_for_others(self) -> Self:
        if not self.embedded and self.api_key is None:
            _refuse([(("api_key",), f"is required, except with `base_url: embedded`; write {FORMS}")])
        if self.embedded and self.api_key is not None:
            _refuse([(("api_key",), "is read by nobody with `base_url: embedded`, which makes its own key: remove it")])
        if not self.embedded and self.prices is not None:
            _refuse([(("prices",), "needs `base_url: embedded`; another service has its own prices")])
        _refuse(_repeated_sources(self.price_sources()))
        return self

    def price_sources(self) -> dict[Loc, LivePricesSettings]:
        """Each source of live prices by its path in this section."""
        if isinstance(self.prices, tuple):
            return {("prices", index): source for index, source in enumerate(self.prices)}
        return {} if self.prices is None else {("prices",): self.prices}


def _repeated_sources(sources: dict[Loc, LivePricesSettings]) -> list[tuple[Loc, str]]:
    """What is wrong with a list of sources: one without markets, an exchange or a market that is named twice."""
    problems: list[tuple[Loc, str]] = []
    exchanges: dict[str, Loc] = {}
    coins: dict[str, str] = {}
    for loc, source in sources.items():
        if len(loc) > 1 and not source.markets:
            problems.append((loc, "needs `markets`: in a list each source names its own"))
        if source.place in exchanges:
            field = "exchange" if source.source == "ccxt" else "network"
            problems.append(((*loc, field), f"{source.place} is named already; put its markets together"))
        exchanges[source.place] = loc
        for coin in source.markets:
            if coin in coins:
                problems.append(((*loc, "markets", coin), f"{coin} has the prices of {coins[coin]} already"))
            coins[coin] = source.place
    return problems


class DeadManSettings(Section):
    """The guardian that acts when no heartbeat comes from the daemon."""

    heartbeat_seconds: Annotated[int, Integer(60, 86_400)] = Field(
        default=300, description="How long the service waits for a heartbeat, on its own clock."
    )
    on_miss: GuardianAction = Field(default="flatten", description="What the service does when no heartbeat comes.")


class GuardianSettings(Section):
    """A guardian that the service keeps for the whole account.

    Guardians of a position come with the strategy's order.
    """

    type: GuardianType = Field(description="account_drawdown or schedule")
    max_loss_pct_from_day_start: Annotated[Decimal, Number(gt=0, le=100)] | None = Field(
        default=None, description="For an account_drawdown: the loss of a day, in percent, at which it acts."
    )
    action: GuardianAction | None = Field(
        default=None, description="What the guardian does; a schedule may place an order instead."
    )
    cron: str | None = Field(
        default=None, min_length=1, max_length=64, description="For a schedule: five cron fields, UTC."
    )
    order_template: Mapping[str, Any] | None = Field(
        default=None, description="For a schedule: the body of an order, in the interface's spelling."
    )

    @field_validator("type", mode="before")
    @classmethod
    def _of_the_account(cls, value: Any) -> Any:
        if value in ("trailing_stop", "max_hold"):
            kind = "TrailingStop" if value == "trailing_stop" else "MaxHold"
            raise _no(
                f"{value} belongs to one position: the strategy sends it with its order, guardians=({kind}(...),)"
            )
        if value == "dead_man_switch":
            raise _no("the dead-man switch has its own section: dead_man")
        if value == "kill_switch":
            raise _no("a kill switch cannot be configured; use bot kill")
        if value not in ("account_drawdown", "schedule"):
            raise _no("must be account_drawdown or schedule")
        return value

    @model_validator(mode="after")
    def _as_the_interface_has_it(self) -> Self:
        try:
            self.request()
        except ValidationError as error:
            _refuse(
                [
                    (tuple(to_snake(step) if isinstance(step, str) else step for step in detail["loc"]), detail["msg"])
                    for detail in error.errors(include_url=False, include_input=False)
                ]
            )
        return self

    def request(self) -> GuardianRequest:
        """The request that arms this guardian."""
        return GuardianRequest(
            type=self.type,
            max_loss_pct_from_day_start=self.max_loss_pct_from_day_start,
            action=self.action,
            cron=self.cron,
            order_template=dict(self.order_template) if self.order_template is not None else None,
        )


class Safety(Section):
    """Rules that hold for every strategy."""

    require_protection: Flag = Field(default=True, description="Refuse an entry without a stop.")
    on_exit: Literal["leave", "cancel", "flatten"] = Field(
        default="leave", description="What the daemon does with orders and positions when it stops."
    )
    foreign_positions: Literal["adopt", "ignore", "flatten"] = Field(
        default="ignore", description="What the daemon does with positions that no strategy of this config opened."
    )
    adopted_stop_pct: Annotated[Decimal, Number(gt=0, le=50)] | None = Field(
        default=None,
        description=(
            "For adopt: a position without a stop gets a trailing stop at this distance from its price. None: it is not"
            " adopted."
        ),
    )

    @model_validator(mode="after")
    def _only_for_adopted(self) -> Self:
        if self.adopted_stop_pct is not None and self.foreign_positions != "adopt":
            _refuse([(("adopted_stop_pct",), "is only for `foreign_positions: adopt`; set that, or remove this key")])
        if self.adopted_stop_pct is not None and not self.require_protection:
            _refuse([(("adopted_stop_pct",), "needs `require_protection: true`; without it no stop is armed")])
        return self


class StrategySettings(Section):
    """One strategy with its markets, budget and limits."""

    name: str = Field(
        pattern=r"^[a-z0-9-]{1,40}$", description="Unique; identifies the strategy's orders, log lines and budget."
    )
    use: str = Field(
        min_length=1,
        max_length=200,
        description="`file:Class` in the strategies folder, `package.module:Class`, or an entry point's name.",
    )
    markets: tuple[Coin, ...] = Field(
        min_length=1, max_length=MARKETS_MAX, description="Markets to trade: BTC, perp:BTC or event:SLUG."
    )
    informative: tuple[Coin, ...] = Field(
        default=(), max_length=MARKETS_MAX, description="Markets whose bars the strategy reads and does not trade."
    )
    interval: Interval = Field(default="1m", description="Interval of the bars that the strategy decides on.")
    budget_usd: Annotated[Decimal, Number(gt=0, le=1_000_000_000)] = Field(
        description="Most entry notional in open positions and live orders of the strategy."
    )
    max_leverage: Leverage = Field(default=1, description="Highest leverage of an order.")
    daily_loss_usd: Annotated[Decimal, Number(gt=0, le=1_000_000_000)] | None = Field(
        default=None,
        description=(
            "After a loss of this much since 00:00 UTC (realised and unrealised, net of fees and funding), entries are"
            " refused until the next day."
        ),
    )
    protections: ProtectionSettings = Field(
        default=NO_PROTECTIONS, description="Rules that refuse entries for a time, by the trades of the strategy."
    )
    netting: Literal["refuse", "allow"] = Field(
        default="refuse",
        description=(
            "allow: share a market with other strategies that allow it too. The market has one position, and each"
            " strategy has a share of it."
        ),
    )
    approve: Approve = Field(
        default="never",
        description=(
            "Entries that wait for a person: never, always, or those {above_usd: AMOUNT}. `file:function`: a policy in"
            " Python answers instead. Exits and protection never wait."
        ),
    )
    params: Mapping[str, Any] = Field(
        default_factory=dict, description="The strategy's own params; `bot strategies` lists them."
    )

    @property
    def asks_person(self) -> bool:
        """True if entries of it wait for a person."""
        return self.approve == "always" or not isinstance(self.approve, str)

    @model_validator(mode="after")
    def _approval_within_budget(self) -> Self:
        if isinstance(self.approve, Mapping) and self.approve["above_usd"] >= self.budget_usd:
            text = f"asks nobody: no entry is above budget_usd {self.budget_usd}; give less than that, or `never`"
            _refuse([(("approve", "above_usd"), text)])
        return self

    @model_validator(mode="after")
    def _each_market_once(self) -> Self:
        problems: list[tuple[Loc, str]] = [
            (("markets", index), f"{coin} is in this list already")
            for index, coin in enumerate(self.markets)
            if bare_coin(coin) in map(bare_coin, self.markets[:index])
        ]
        for index, coin in enumerate(self.informative):
            if bare_coin(coin) in map(bare_coin, self.markets):
                problems.append(
                    (("informative", index), f"{coin} is in markets, whose bars are read anyway; remove it")
                )
            elif bare_coin(coin) in map(bare_coin, self.informative[:index]):
                problems.append((("informative", index), f"{coin} is in this list already"))
        problems += self.protections.problems(self.markets, INTERVAL_MS[self.interval])
        _refuse(problems)
        return self

    @field_validator("params")
    @classmethod
    def _files(cls, value: Mapping[str, Any], info: ValidationInfo) -> Mapping[str, Any]:
        """The param INSTRUCTIONS_FILE as a whole path: params may come from others, so it names a file of the
        config's folder only.
        """
        folder, name = (info.context or {}).get("folder"), value.get(INSTRUCTIONS_FILE)
        if folder is None or not isinstance(name, str):
            return value
        try:
            return {**value, INSTRUCTIONS_FILE: str(instructions_file(folder, name))}
        except OutsideFolder:
            raise _no(
                f"{INSTRUCTIONS_FILE} must be a file in the config's folder or below it, and no part of its path a link"
            ) from None


class LogSettings(Section):
    """Level and format of the log."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level that is logged."
    )
    format: Literal["auto", "pretty", "json"] = Field(
        default="auto",
        description=(
            "pretty: events with their fields. auto: the lines of `bot demo` on a terminal, JSON lines elsewhere."
        ),
    )

    @property
    def pretty(self) -> bool | None:
        """The format for `bot.logs.configure`."""
        return None if self.format == "auto" else self.format == "pretty"


class OrdersSettings(Section):
    """How orders are sent."""

    path: Literal["plan", "direct"] = Field(
        default="plan",
        description=(
            "plan: a dry run first, then its single-use token. direct: one request, once the service has returned our"
            " key with an order. A strategy with its own `confirm` always uses plan."
        ),
    )


class Notify(Section):
    """Notices through apprise, to any of its services by URL. The URLs hold secrets, so they must be references."""

    urls: tuple[Secret, ...] = Field(min_length=1, max_length=10, description=f"Each {FORMS}.")
    level: Literal["info", "warning", "error"] = Field(default="info", description="Lowest level that is sent.")
    mute: tuple[str, ...] = Field(default=(), max_length=50, description="Kinds that are not sent, such as fill.entry.")
    texts: Mapping[str, str] = Field(
        default_factory=dict, description="Your own texts by kind; {name} stands for a field of the notice."
    )
    per_hour: Annotated[int, Integer(1, 3_600)] = Field(
        default=60, description="Most messages to each target in an hour; the rest come as one digest."
    )


class Metrics(Section):
    """/metrics for Prometheus, /livez and /readyz, reachable from this machine only."""

    port: Annotated[int, Integer(0, 65_535)] = Field(description="On 127.0.0.1; 0 takes a free one.")


class Telegram(Section):
    """Control from Telegram chats, by `bot telegram`.

    Only these chats are answered, and in a group only these persons.
    """

    token: Secret = Field(description=f"Of your bot, from @BotFather: {FORMS}.")
    chats: tuple[Annotated[int, Integer(-(2**52), 2**52)], ...] = Field(
        min_length=1, max_length=20, description="Ids of the chats that may control the daemon."
    )
    users: tuple[Annotated[int, Integer(1, 2**52)], ...] = Field(
        default=(),
        max_length=50,
        description=(
            "Ids of the persons whose commands count in the groups among `chats`. A private chat has the id of its"
            " person."
        ),
    )
    api_url: Annotated[str, StringConstraints(max_length=ADDRESS_MAX)] = Field(
        default="https://api.telegram.org", description="Another address for a Bot API server of your own."
    )

    @field_validator("api_url")
    @classmethod
    def _address(cls, value: str) -> str:
        problem = address_problem(value, "the token goes to token")
        if problem is not None:
            raise _no(problem)
        return value.rstrip("/")

    @model_validator(mode="after")
    def _persons_of_groups(self) -> Self:
        groups = [index for index, chat in enumerate(self.chats) if chat < 0]
        if groups and not self.users:
            text = (
                "is a group: name the persons whose commands count in `users`; the log of bot telegram shows their ids"
            )
            _refuse([(("chats", groups[0]), text)])
        if self.users and not groups:
            _refuse(
                [(("users",), "is only for groups (negative ids in `chats`); a private chat has the id of its person")]
            )
        return self


class DashboardSettings(Section):
    """Pages in a browser that show the daemon, reachable from this machine only.

    `bot run` starts them as a process of their own.
    """

    port: Annotated[int, Integer(0, 65_535)] = Field(default=8710, description="On 127.0.0.1; 0 takes a free one.")
    control: Flag = Field(
        default=False,
        description="Allow pause, resume, close, cancel and kill in the browser, each with a typed confirmation.",
    )


class ProofSettings(Section):
    """The proof of each day: the UTC day before is replayed, and each difference to the test gets one cause."""

    at: str = Field(
        default="00:20",
        pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$",
        description="When the day before is proved: UTC, on the service's clock.",
    )

    @property
    def at_ms(self) -> int:
        """After midnight."""
        hours, minutes = map(int, self.at.split(":"))
        return (hours * 60 + minutes) * 60_000


def _recorded(value: Path, info: ValidationInfo) -> Path:
    if info.context is None:
        return value
    try:
        is_there = is_file(value)
    except OSError as error:
        raise _no(f"{value} cannot be read: {error.strerror}") from None
    if not is_there:
        raise _no(f"there is no file {value}")
    return value


class Recording(Section):
    """Recorded candles as the prices of one market of the embedded service."""

    file: Annotated[LocalPath, AfterValidator(_recorded)] = Field(
        description="Columns ts,open,high,low,close,volume; .csv or .csv.gz"
    )
    market: Coin = Field(description="Market of the candles.")


class EmbeddedSettings(Section):
    """The embedded service with play money, which starts with the daemon."""

    port: Annotated[int, Integer(0, 65_535)] = Field(default=0, description="On 127.0.0.1; 0 takes a free one.")
    clock: str = Field(default="real", description="real, manual, or a speed such as 60x.")
    seed: Annotated[int, Integer(0)] = Field(default=1, description="Seed of the simulated prices.")
    markets: tuple[Coin, ...] = Field(
        default=(), max_length=250, description="Simulated markets; none: the service's own list."
    )
    data: tuple[Recording, ...] = Field(default=(), max_length=250, description="Recorded markets.")

    @property
    def speed(self) -> float:
        """Seconds of the service's clock in one real second; 0 is the manual clock."""
        if self.clock == "manual":
            return 0.0
        return 1.0 if self.clock == "real" else float(self.clock[:-1])

    @field_validator("clock")
    @classmethod
    def _speed(cls, value: str) -> str:
        if value in ("real", "manual"):
            return value
        if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?x", value, re.ASCII) or not 1 <= float(value[:-1]) <= SPEED_MAX:
            raise _no(f"must be real, manual, or 1x to {SPEED_MAX}x")
        return value


def heartbeat_seconds_min(speed: float) -> int:
    """The smallest `heartbeat_seconds` that gives a heartbeat 20 s of real time at this clock speed."""
    return max(60, ceil(BEAT_WINDOW_SECONDS_MIN * speed))


def _shared_markets(strategies: tuple[StrategySettings, ...]) -> list[tuple[Loc, str]]:
    """The problem of each market that two strategies trade without `netting: allow` on both."""
    problems: list[tuple[Loc, str]] = []
    owners: dict[str, StrategySettings] = {}
    for index, strategy in enumerate(strategies):
        for place, coin in enumerate(dict.fromkeys(strategy.markets)):
            owner = owners.setdefault(bare_coin(coin), strategy)
            if owner is strategy or owner.netting == strategy.netting == "allow":
                continue
            silent = [party.name for party in (owner, strategy) if party.netting != "allow"]
            names = " and ".join(dict.fromkeys(silent))
            text = (
                f"{owner.name} already trades {coin}, and a market has one position; to share it, set netting: allow on"
                f" {names}"
            )
            problems.append((("strategies", index, "markets", place), text))
    return problems


def _reading_circles(strategies: tuple[StrategySettings, ...]) -> list[tuple[Loc, str]]:
    """The problem of two strategies with one interval that each read a market of the other. Bars of informative markets
    must come first, and here none can.
    """
    reads: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for strategy in strategies:
        for coin in strategy.markets if strategy.informative else ():
            read = {(bare_coin(other), strategy.interval) for other in strategy.informative}
            reads.setdefault((bare_coin(coin), strategy.interval), set()).update(read)
    try:
        TopologicalSorter(reads).prepare()
    except CycleError as error:
        circle = {market for market, _ in error.args[1]}
        for index, strategy in enumerate(strategies):
            for place, coin in enumerate(strategy.informative):
                if bare_coin(coin) in circle and circle & set(map(bare_coin, strategy.markets)):
                    text = (
                        f"{coin} is traded by a strategy that reads a market of {strategy.name}, and at one instant"
                        f" neither can come first; give one of them another interval"
                    )
                    return [(("strategies", index, "informative", place), text)]
    return []


def _off(value: Any) -> Any:
    return None if value is False or value == "off" else value


class Settings(Section):
    """A whole config."""

    name: str = Field(
        default="bot", pattern=r"^[a-z0-9-]{1,40}$", description="Name of this daemon. Default: the name of the file."
    )
    account: AccountSettings
    dead_man: Annotated[
        DeadManSettings | None,
        BeforeValidator(_off, json_schema_input_type=DeadManSettings | Literal["off", False] | None),
    ] = Field(default_factory=DeadManSettings, description="off: no dead-man switch.")
    guardians: tuple[GuardianSettings, ...] = Field(default=(), max_length=GUARDIANS_MAX)
    safety: Safety = Safety()
    protections: ProtectionSettings = Field(
        default=NO_PROTECTIONS, description="Rules that refuse entries for a time, by the trades of all strategies."
    )
    strategies: tuple[StrategySettings, ...] = Field(min_length=1, max_length=STRATEGIES_MAX)
    orders: OrdersSettings = OrdersSettings()
    reconcile_seconds: Annotated[int, Integer(10, 3_600)] = Field(
        default=300, description="Time between two comparisons with the service."
    )
    embedded: EmbeddedSettings = EmbeddedSettings()
    state_dir: LocalPath = Field(
        default_factory=lambda: default_state_dir("bot"),
        description="Journal, sandbox and sockets. Default: $STATE_DIRECTORY, else ~/.local/state/bot/<name>.",
    )
    strategies_dir: LocalPath = Field(
        default=Path("strategies"),
        description="Default: the folder `strategies` beside the config, else beside the config's folder.",
    )
    listings: LocalPath | None = Field(
        default=None,
        description="Listing file that adds markets. Default: `markets.yaml` beside the config, if it is there.",
    )
    log: LogSettings = LogSettings()
    notify: Notify | None = Field(default=None, description="None: no notices are sent.")
    metrics: Metrics | None = Field(default=None, description="None: no port is opened.")
    telegram: Telegram | None = Field(default=None, description="None: `bot telegram` has no chats.")
    dashboard: DashboardSettings | None = Field(default=None, description="None: `bot run` starts no dashboard.")
    proof: Annotated[
        ProofSettings | None, BeforeValidator(_off, json_schema_input_type=ProofSettings | Literal["off", False] | None)
    ] = Field(default=None, description="None or off: no day is proved by itself.")

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """The rules between sections."""
        problems: list[tuple[Loc, str]] = []
        names: dict[str, int] = {}
        for index, strategy in enumerate(self.strategies):
            if strategy.name in names:
                problems.append(
                    (("strategies", index, "name"), f"strategies[{names[strategy.name]}] has this name already")
                )
            names.setdefault(strategy.name, index)
        problems += _shared_markets(self.strategies)
        problems += _reading_circles(self.strategies)
        traded = dict.fromkeys(coin for strategy in self.strategies for coin in strategy.markets)
        problems += self.protections.problems(traded, None)
        if not self.account.embedded and "embedded" in self.model_fields_set:
            problems.append((("embedded",), "needs `base_url: embedded`; set it or remove this section"))
        for name in ("prices", "exchange"):
            has_own_time = self.embedded.clock != "real" or self.embedded.data
            if getattr(self.account, name) is not None and has_own_time:
                problems.append(
                    (("account", name), "needs embedded.clock real and no embedded.data; remove these keys")
                )
        if self.account.exchange is not None:
            problems += _guardians_of_exchange(self)
        if self.account.embedded and self.dead_man is not None and not problems:
            least = heartbeat_seconds_min(self.embedded.speed)
            if self.dead_man.heartbeat_seconds < least:
                problems.append(
                    (
                        ("dead_man", "heartbeat_seconds"),
                        f"{self.dead_man.heartbeat_seconds} s are"
                        f" {self.dead_man.heartbeat_seconds / self.embedded.speed:.3g} s of real time at clock"
                        f" {self.embedded.clock}; a heartbeat needs {BEAT_WINDOW_SECONDS_MIN} s, so at least {least}"
                        + ("" if least <= 86_400 else ", or a slower clock"),
                    )
                )
        _refuse(problems)
        return self


def _guardians_of_exchange(settings: Settings) -> list[tuple[Loc, str]]:
    """What guardians cannot do on an account at an exchange: they act by orders."""
    if settings.account.agent_key is not None:
        text = "cannot act at an exchange yet, dead_man alone can: remove this section"
        return [(("guardians",), text)] if settings.guardians else []
    problems: list[tuple[Loc, str]] = []
    if settings.dead_man is not None:
        text = "cannot act on an account that is only followed; write `dead_man: off`, or give account.agent_key"
        problems.append((("dead_man",), text))
    if settings.guardians:
        problems.append((("guardians",), "cannot act on an account that is only followed; remove this section"))
    return problems
