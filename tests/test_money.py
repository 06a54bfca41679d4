"""Amounts go from text to integers and Decimals and back without losing or inventing anything."""

from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.money import E8, decimal_of_e8, e8_of_decimal, format_decimal, format_e8, parse_decimal, parse_e8

AMOUNTS = st.integers(-(10**30), 10**30)
PLAIN = st.from_regex(r"-?[0-9]{1,20}(\.[0-9]{1,20})?", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-0", 0),
        ("1", E8),
        ("1.5", 150_000_000),
        ("-0.00000001", -1),
        ("007.10", 710_000_000),
        ("0.123456780000", 12_345_678),
        ("123456789012345678.12345678", 12345678901234567812345678),
    ],
)
def test_an_amount_is_read_exactly(text: str, value: int) -> None:
    assert parse_e8(text) == value
    assert parse_decimal(text) == Decimal(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1 ",
        "+1",
        "1.",
        ".5",
        "1e3",
        "1_000",
        "1,5",
        "--1",
        "NaN",
        "Infinity",
        "0x10",
        "\u0661",
        "1\n",
        "\uff11",
        "1" * 65,
    ],
)
def test_text_that_is_no_plain_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a plain decimal number"):
        parse_e8(text)
    with pytest.raises(ValueError, match="not a plain decimal number"):
        parse_decimal(text)


@pytest.mark.parametrize("text", ["0.000000001", "1.123456789", "-0.0000000010"])
def test_what_is_finer_than_the_unit_is_refused_not_rounded(text: str) -> None:
    with pytest.raises(ValueError, match="finer than 8 decimals"):
        parse_e8(text)
    with pytest.raises(ValueError, match="finer than 8 decimals"):
        e8_of_decimal(Decimal(text))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("0", "0"),
        ("-0", "0"),
        ("0E-8", "0"),
        ("1E+3", "1000"),
        ("1E-7", "0.0000001"),
        ("10.500", "10.5"),
        ("-2.0", "-2"),
        ("100", "100"),
    ],
)
def test_a_decimal_is_written_without_exponent_and_trailing_zeros(value: str, text: str) -> None:
    assert format_decimal(Decimal(value)) == text


@pytest.mark.parametrize("value", ["NaN", "sNaN", "Infinity", "-Infinity"])
def test_what_is_not_finite_is_no_amount(value: str) -> None:
    with pytest.raises(ValueError, match="not an amount"):
        format_decimal(Decimal(value))
    with pytest.raises(ValueError, match="not an amount"):
        e8_of_decimal(Decimal(value))


@pytest.mark.parametrize("value", ["1E+500000", "1E-500000"])
def test_an_absurd_exponent_costs_neither_time_nor_memory(value: str) -> None:
    with pytest.raises(ValueError, match="out of range"):
        e8_of_decimal(Decimal(value))


def test_a_zero_with_an_absurd_exponent_is_zero() -> None:
    assert e8_of_decimal(Decimal("0E-500000")) == 0


@given(AMOUNTS)
def test_every_amount_survives_the_way_through_text(value: int) -> None:
    text = format_e8(value)
    assert parse_e8(text) == value
    assert "E" not in text
    assert text == "0" or not text.startswith("-0") or "." in text
    assert "." not in text or not text.endswith("0")


@given(AMOUNTS)
def test_every_amount_survives_the_way_through_decimal_whatever_the_context(value: int) -> None:
    with localcontext(prec=3):
        assert e8_of_decimal(decimal_of_e8(value)) == value
        assert format_decimal(decimal_of_e8(value)) == format_e8(value)


@given(PLAIN)
def test_any_plain_text_keeps_its_value_when_written_again(text: str) -> None:
    assert parse_decimal(format_decimal(parse_decimal(text))) == Decimal(text)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=8, min_value=-(10**12), max_value=10**12))
def test_integer_and_decimal_agree_on_the_spelling(value: Decimal) -> None:
    assert format_e8(e8_of_decimal(value)) == format_decimal(value)
