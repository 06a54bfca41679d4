"""The params of an agent: its model, when it is asked, what it is shown, and its limits."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Literal

from pydantic import SecretStr, field_validator, model_validator

from bot import cron
from bot.strategy.params import Field
from bot.strategy.params import Params as _Params
from bot.wire.addresses import address_problem

INSTRUCTIONS_MAX = 20_000


class AgentParams(_Params):
    """The params of an agent. Prices have no default, so that what a model costs is always known."""

    model: str = Field(min_length=1, max_length=100, description="Name of the model, such as openai:gpt-5-mini.")
    base_url: str | None = Field(
        None, description="Address of a server with the OpenAI protocol. None: the provider's own."
    )
    api_key: SecretStr | None = Field(None, description="A reference to the key. A local server may need none.")
    instructions: str | None = Field(
        None, min_length=1, max_length=INSTRUCTIONS_MAX, description="What the model is to do."
    )
    instructions_file: str | None = Field(
        None, description="A text file with the instructions, in the config's folder or below it."
    )
    usd_per_million_in: float = Field(ge=0, description="Price of a million input tokens; 0 for a model of your own.")
    usd_per_million_out: float = Field(ge=0, description="Price of a million output tokens.")
    knowledge_cutoff: date | None = Field(
        None, description="Last day of the model's training data. Backtests before it are warned about."
    )
    ask_every_bars: int = Field(
        1, ge=0, le=10_000, description="Ask on every n-th bar of the first market; 0: not on bars."
    )
    ask_at: str | None = Field(None, description="Ask also at these times: five cron fields, UTC.")
    ask_on: tuple[Literal["fill", "trigger", "guardian"], ...] = Field((), description="Ask also on these events.")
    show_bars: int = Field(30, ge=1, le=500, description="Bars of each market in the prompt.")
    tools: tuple[Literal["bars", "position", "orders"], ...] = Field(
        (), description="Functions that the model may call; all of them only read."
    )
    may: tuple[Literal["open", "close", "cancel"], ...] = Field(
        ("open", "close", "cancel"), description="What the model may decide."
    )
    asks_per_hour: int = Field(12, ge=1, le=3_600, description="Most questions in an hour (UTC).")
    asks_per_day: int = Field(100, ge=1, le=86_400, description="Most questions in a day (UTC).")
    tokens_per_day: int = Field(2_000_000, ge=1, description="Most tokens in a day (UTC).")
    usd_per_day: float = Field(1.0, ge=0, description="Most spend on the model in a day (UTC).")
    max_order_usd: float = Field(100.0, gt=0, description="Largest entry.")
    max_equity_share: float = Field(
        0.1, gt=0, le=1, description="Largest position in a market, as a share of the equity."
    )
    min_confidence: float = Field(0.0, ge=0, le=1, description="Entries with a lower confidence are refused.")
    cooldown_minutes: int = Field(60, ge=0, le=10_080, description="No entry for this long after a loss.")
    allow_averaging_down: bool = Field(default=False, description="Allow to add to a position that has a loss.")
    timeout_seconds: float = Field(60.0, gt=0, le=600, description="Longest wait for an answer.")
    max_tokens: int = Field(2_000, ge=50, le=50_000, description="Longest answer of one request.")
    temperature: float | None = Field(None, ge=0, le=2, description="None: the model's own.")
    answer_as: Literal["tool", "schema", "json"] = Field(
        "tool", description="How the model is asked for typed answers; json for models without tools."
    )
    keep_asks: int = Field(2_000, ge=1, le=100_000, description="How many of the newest questions the journal keeps.")
    redact: tuple[str, ...] = Field(
        (), max_length=50, description="Regular expressions of text that is not kept in the journal."
    )

    @field_validator("base_url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        problem = None if value is None else address_problem(value)
        if problem is not None:
            raise ValueError(problem)
        return value

    @field_validator("redact")
    @classmethod
    def _compiles(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
        return value

    @field_validator("ask_at")
    @classmethod
    def _is_cron(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                cron.parse(value)
            except cron.BadCron as error:
                raise ValueError(f"is not a cron line: {error}") from None
        return value

    @model_validator(mode="after")
    def _agree(self) -> AgentParams:
        if (self.instructions is None) == (self.instructions_file is None):
            raise ValueError("give one of instructions and instructions_file")
        if self.base_url is None and ":" not in self.model:
            raise ValueError(
                f"model {self.model}: write PROVIDER:NAME, such as openai:gpt-5-mini, or give the base_url of a server"
            )
        if not (self.ask_every_bars or self.ask_at or self.ask_on):
            raise ValueError("the model is never asked: give ask_every_bars, ask_at or ask_on")
        self.instruction_text()
        return self

    def instruction_text(self) -> str:
        if self.instructions_file is None:
            return self.instructions or ""
        path = Path(self.instructions_file).expanduser()
        if not path.is_absolute():
            raise ValueError(f"instructions_file {path}: write the whole path")
        try:
            if not path.is_file():
                raise ValueError(f"instructions_file {path} is no file")
            with path.open("rb") as file:
                text = file.read(4 * INSTRUCTIONS_MAX + 1).decode().strip()
        except OSError as error:
            raise ValueError(f"instructions_file {path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError(
                f"instructions_file {path} is not UTF-8 text of at most {INSTRUCTIONS_MAX} characters"
            ) from None
        if not 1 <= len(text) <= INSTRUCTIONS_MAX:
            raise ValueError(
                f"instructions_file {path} has {len(text)} characters; it must have 1 to {INSTRUCTIONS_MAX}"
            )
        return text
