"""The base of a strategy's parameters: frozen, strict, with bounds that a config error quotes."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Field", "Params"]


class Params(BaseModel):
    """Subclass it inside the strategy; each field has a default and its bounds.

    class Params(Params):
        lookback: int = Field(20, ge=2, le=500)
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)
