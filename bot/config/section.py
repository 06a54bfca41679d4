"""What the sections of a config share: frozen models without unknown keys, refusals at a path, and market names."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

Loc = tuple[str | int, ...]


def no(text: str) -> PydanticCustomError:
    return PydanticCustomError("rule", "{problem}", {"problem": text})


def refuse(problems: list[tuple[Loc, str]]) -> None:
    """Fail validation at each path: for rules between keys."""
    if problems:
        raise ValidationError.from_exception_data(
            "config", [InitErrorDetails(type=no(text), loc=loc, input=None) for loc, text in problems]
        )


def _coin(value: Any) -> Any:
    if isinstance(value, str):
        if re.fullmatch(r"(?i)(perp:)?[a-z0-9][a-z0-9._-]{0,63}", value, re.ASCII):
            return re.sub(r"(?i)^perp:", "", value).upper()
        if re.fullmatch(r"(?i)event:[a-z0-9][a-z0-9._-]{0,63}", value, re.ASCII):
            return f"event:{value[6:]}"
    raise no("must be a market: BTC, perp:BTC or event:SLUG")


Coin = Annotated[str, BeforeValidator(_coin, json_schema_input_type=str)]


class Section(BaseModel):
    """A section of the config: unknown keys are errors; the values are frozen."""

    # Only the schema of the whole config is built, with the sections in it; a section's own would double the time.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)
