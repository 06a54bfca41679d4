"""What a model may answer: a list of typed decisions, each with a reason and a confidence. Anything else is refused."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from bot.strategy import Bracket, Cancel, Close, Intent, Open
from bot.strategy.intents import LEVERAGE_MAX, USD_MAX

DECISIONS_MAX = 10


class _Decision(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)

    market: str = Field(max_length=80)
    reason: str = Field(max_length=500)
    confidence: float = Field(ge=0, le=1)


class OpenDecision(_Decision):
    """Open a position, always with a stop. Without limit_px at market."""

    action: Literal["open"] = "open"
    side: Literal["long", "short"]
    usd: float = Field(gt=0, le=USD_MAX)
    stop_pct: float = Field(gt=0, lt=100, description="Distance of the stop from the entry, in percent.")
    target_pct: float | None = Field(None, gt=0, lt=100)
    limit_px: float | None = Field(None, gt=0)
    leverage: int = Field(1, ge=1, le=LEVERAGE_MAX)

    def intent(self) -> Intent:
        bracket = Bracket(stop_pct=self.stop_pct, target_pct=self.target_pct)
        return Open(
            self.market, self.side, usd=self.usd, leverage=self.leverage, bracket=bracket, limit_px=self.limit_px
        )


class CloseDecision(_Decision):
    """Close a position, or a fraction of it."""

    action: Literal["close"] = "close"
    fraction: float | None = Field(None, gt=0, le=1)

    def intent(self) -> Intent:
        return Close(self.market, fraction=self.fraction)


class CancelDecision(_Decision):
    """Cancel every entry that rests in the market."""

    action: Literal["cancel"] = "cancel"

    def intent(self) -> Intent:
        return Cancel(market=self.market)


class HoldDecision(_Decision):
    """Do nothing in the market."""

    action: Literal["hold"] = "hold"

    def intent(self) -> None:
        return None


Decision: TypeAlias = OpenDecision | CloseDecision | CancelDecision | HoldDecision


class Answer(BaseModel):
    """The whole answer. `notes` are shown to the model when it is asked next."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    decisions: list[Annotated[Decision, Field(discriminator="action")]] = Field(max_length=DECISIONS_MAX)
    notes: str | None = Field(None, max_length=1_000)
