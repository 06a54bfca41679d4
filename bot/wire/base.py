"""Base classes and field types of all wire models: the strict request, the tolerant resource, and types with their
bounds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from math import isfinite
from typing import Annotated, Any, ClassVar, Final, NoReturn, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    Strict,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import InitErrorDetails, PydanticCustomError, core_schema

from bot.money import format_decimal
from bot.words import many

# the largest integer of the interface; every JSON reader holds it exactly
SAFE_INT_MAX = 9_007_199_254_740_991
# longest amount text: longer than any balance, and short enough to parse fast
DIGITS_MAX = 64
# A JSON double stays within 1e-324..1e308. A larger exponent only costs memory.
EXPONENT_MAX = 400

_DIGITS = re.compile(r"[0-9]+(?:\.[0-9]+)?\Z")

Loc = tuple[str | int, ...]


def problem(kind: str, text: str, allowed: Any = None) -> PydanticCustomError:
    """The error for one broken rule. `errors.fields_of` reads the text and the allowed values from it."""
    return PydanticCustomError(kind, "{problem}", {"problem": text, "allowed": allowed})


def refuse(loc: Loc, text: str, allowed: Any = None) -> NoReturn:
    """Fail validation at the field `loc` (camelCase names). For rules that concern several fields."""
    raise ValidationError.from_exception_data(
        "request", [InitErrorDetails(type=problem("rule", text, allowed), loc=loc, input=None)]
    )


@dataclass(frozen=True, slots=True)
class Number:
    """A JSON number as an exact Decimal.

    Text, booleans, NaN and Infinity are refused. A Python float is read by its shortest text.
    """

    gt: int | None = None
    ge: int | None = None
    le: int | None = None

    @property
    def allowed(self) -> str:
        low = f"> {self.gt}" if self.gt is not None else f">= {self.ge}" if self.ge is not None else ""
        high = f"<= {self.le}" if self.le is not None else ""
        return ", ".join(part for part in (low, high) if part) or "a number"

    def check(self, value: Any) -> Decimal:
        kind = type(value)
        if kind is int:
            if value.bit_length() > 4 * EXPONENT_MAX:
                raise problem("number_range", "is out of range", self.allowed)
            number = Decimal(value)
        elif kind is float:
            if not isfinite(value):
                raise problem("number_finite", "must be a finite number", self.allowed)
            number = Decimal(repr(value))
        elif isinstance(value, Decimal):
            number = value
        else:
            raise problem("number_type", "must be a number", self.allowed)
        if not number.is_finite():
            raise problem("number_finite", "must be a finite number", self.allowed)
        if (number and abs(number.adjusted()) > EXPONENT_MAX) or len(number.as_tuple().digits) > EXPONENT_MAX:
            raise problem("number_range", "is out of range", self.allowed)
        if (
            (self.gt is not None and number <= self.gt)
            or (self.ge is not None and number < self.ge)
            or (self.le is not None and number > self.le)
        ):
            raise problem("number_range", f"must be {self.allowed}", self.allowed)
        return number or Decimal(0)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        ser = core_schema.plain_serializer_function_ser_schema(json_number, when_used="json")
        return core_schema.no_info_plain_validator_function(self.check, serialization=ser)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        bounds = {"exclusiveMinimum": self.gt, "minimum": self.ge, "maximum": self.le}
        return {"type": "number", **{name: bound for name, bound in bounds.items() if bound is not None}}


@dataclass(frozen=True, slots=True)
class Integer:
    """A JSON integer. 5 and 5.0 are accepted; 5.5, "5" and true are refused.

    With `query=True`, a query string's ASCII digits are read.
    """

    ge: int
    le: int = SAFE_INT_MAX
    query: bool = False

    @property
    def allowed(self) -> str:
        return f"{self.ge}..{self.le}"

    def check(self, value: Any) -> int:
        if self.query and type(value) is str and re.fullmatch(r"-?[0-9]{1,17}", value):
            value = int(value)
        if isinstance(value, Decimal | float) and isfinite(value) and value == int(value):
            value = int(value)
        if type(value) is not int:
            raise problem("integer_type", "must be an integer", self.allowed)
        if not self.ge <= value <= self.le:
            raise problem("integer_range", f"must be {self.allowed}", self.allowed)
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.ge, "maximum": self.le}


@dataclass(frozen=True, slots=True)
class Text:
    """A JSON string with bounds on its length in characters, and a pattern if the interface has one."""

    min: int = 0
    max: int | None = None
    pattern: str | None = None
    hint: str | None = None

    @property
    def allowed(self) -> str:
        if self.hint:
            return self.hint
        return (
            f"{self.min}..{self.max} characters"
            if self.max is not None
            else f"at least {many(self.min, 'character')}"
            if self.min
            else "a string"
        )

    def check(self, value: Any) -> str:
        if type(value) is not str:
            raise problem("text_type", "must be a string", self.allowed)
        if len(value) < self.min or (self.max is not None and len(value) > self.max):
            raise problem(
                "text_length", f"must have {self.allowed}" if not self.hint else f"must be {self.hint}", self.allowed
            )
        if self.pattern is not None and not re.fullmatch(self.pattern, value):
            raise problem("text_pattern", f"must be {self.allowed}", self.allowed)
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise problem("text_unicode", "must be well-formed Unicode", self.allowed)
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        out: dict[str, Any] = {"type": "string"}
        if self.min:
            out["minLength"] = self.min
        if self.max is not None:
            out["maxLength"] = self.max
        if self.pattern is not None:
            out["pattern"] = f"^{self.pattern}$"
        return out


# far more than any amount has
AMOUNT_DIGITS_MAX: Final = 64
# eight decimals, and zeros after them
_AMOUNT_TEXT: Final = r"^-?[0-9]{1,56}(\.[0-9]{1,8}0*)?$"

Flag = Annotated[bool, Strict()]
Digits = Annotated[str, Text(1, DIGITS_MAX, r"[0-9]+(\.[0-9]+)?", "digits with optional decimals, as a string")]
UsdAmount = Annotated[Decimal, Number(gt=0, le=1_000_000)]
Leverage = Annotated[int, Integer(1, 50)]
Bps = Annotated[int, Integer(0, 1000)]
MarketName = Annotated[str, Text(1, 80)]
CoinName = Annotated[str, Text(1, 64)]


def is_digits(text: str) -> bool:
    """True if the text is an amount in the interface's form: ASCII `digits[.digits]`."""
    return len(text) <= DIGITS_MAX and _DIGITS.match(text) is not None


def json_number(value: Decimal | float) -> int | float:
    """The JSON number of an exact value. A whole number is written without a decimal point."""
    return int(value) if value == int(value) else float(value)


def _number_out(value: Any) -> float:
    if type(value) is int:
        return value
    try:
        number = Decimal(value) if isinstance(value, str | Decimal) else value
    # Text that is no number.
    except ArithmeticError:
        number = None
    if isinstance(value, bool) or not isinstance(number, int | float | Decimal) or not isfinite(number):
        raise problem("number_type", "must be a finite number")
    return json_number(number)


class _Num:
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(_number_out)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "number"}


# leverage, counts, bps, percent: a JSON number; whole numbers have no decimal point
Num = Annotated[float, _Num()]


class _Amount:
    """Reads text by its pattern. Pydantic's own bound on decimals makes a Python tuple of the digits of each amount."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        text = core_schema.str_schema(pattern=_AMOUNT_TEXT, strict=True)
        return core_schema.union_schema(
            [
                core_schema.chain_schema([text, core_schema.decimal_schema()]),
                core_schema.is_instance_schema(Decimal),
                core_schema.decimal_schema(max_digits=AMOUNT_DIGITS_MAX, decimal_places=8),
            ],
            mode="left_to_right",
            custom_error_type="amount",
            custom_error_message="must be an amount with at most 8 decimals, as text",
        )

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]+)?$"}


# usd, px and sz in answers: text on the wire, an exact Decimal in Python.
# The daemon counts in 1e-8, so a finer amount is refused with its field.
Amount = Annotated[Decimal, _Amount(), PlainSerializer(format_decimal, return_type=str, when_used="json")]
# never shown in a log; the value itself is a plain str
Secret = Field(repr=False)
# If the field does not apply, its key is absent, not null.
AbsentNone = Field(default=None, exclude_if=lambda value: value is None)


# Pydantic can cache the newest 16,384 short texts that it reads, ids included. In a process that runs for weeks, the
# cached ids fragment the memory. So only field names are cached.
_CACHED: Final = "keys"


def schema_name(model_name: str) -> str:
    """The name of a model's schema in the description of the interface: classes may say that they are resources."""
    return model_name.removesuffix("Resource") or model_name


class Resource(BaseModel):
    """Something that the service writes.

    Unknown fields are ignored, unknown values stay text, and absent nullable fields are None.
    """

    model_config = ConfigDict(
        cache_strings=_CACHED,
        frozen=True,
        extra="ignore",
        model_title_generator=lambda model: schema_name(model.__name__),
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        serialize_by_alias=True,
        hide_input_in_errors=True,
        defer_build=True,
    )

    def json_bytes(self) -> bytes:
        """The JSON body: camelCase names, amounts as text, nullable fields included."""
        return self.model_dump_json().encode()


_FROM_WIRE = object()
# how json.dumps writes a string
_text: Final[Callable[[str], str]] = json.encoder.encode_basestring_ascii


class Request(BaseModel):
    """A body or query that a caller writes.

    Python code builds it with attribute names. `from_wire` validates incoming data strictly.
    """

    model_config = ConfigDict(
        cache_strings=_CACHED,
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        serialize_by_alias=True,
        hide_input_in_errors=True,
        defer_build=True,
    )

    # wire names that may be null; any other null is refused
    nullable: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def from_wire(cls, body: object) -> Self:
        """Validate a parsed JSON body (numbers as int and Decimal) or a query mapping.

        Raises ValidationError; `errors.fields_of` explains it.
        """
        return cls.model_validate(body, by_alias=True, by_name=False, context=_FROM_WIRE)

    def body(self) -> bytes:
        """The JSON of this request, with exact numbers and without fields that are not set."""
        return encode(self.model_dump(exclude_none=True)).encode()

    @model_validator(mode="before")
    @classmethod
    def _no_null(cls, value: Any, info: ValidationInfo) -> Any:
        if info.context is _FROM_WIRE and isinstance(value, dict):
            for name, given in value.items():
                if (
                    given is None
                    and name not in cls.nullable
                    and any((info.alias or own) == name for own, info in cls.model_fields.items())
                ):
                    refuse((name,), "must not be null")
        return value


def aliases(model: type[BaseModel]) -> list[str]:
    """The wire names of a model's fields."""
    return [field.alias or name for name, field in model.model_fields.items()]


def encode(value: Any) -> str:
    """JSON text of plain data. A Decimal is written as a number, digit for digit."""
    if isinstance(value, str):
        return _text(value)
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, Decimal):
        return format_decimal(value)
    if isinstance(
        value,
        dict,
        # `dict`, not Mapping: isinstance with an abstract class takes longer than writing a small object.
    ):
        return "{" + ",".join([f"{_text(str(name))}:{encode(item)}" for name, item in value.items()]) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join([encode(item) for item in value]) + "]"
    return json.dumps(value, allow_nan=False)
