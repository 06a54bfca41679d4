"""Phone numbers and countries in every form that a person writes them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bot.service.bodies.responses import OperationRefused
from bot.service.operations.phone_numbers import countries, countries_of, parse_phone

UK = "+447911123456"


@pytest.mark.parametrize(
    ("number", "country", "code"),
    [
        (UK, None, None),
        ("+44 7911 123456", None, None),
        ("+44 (0)7911 123-456", None, None),
        (UK, "GB", "44"),
        ("07911 123456", "GB", None),
        ("07911123456", "gbr", None),
        ("07911123456", "44", None),
        ("07911123456", "+44", None),
        ("07911123456", "0044", None),
        ("07911123456", "United Kingdom", None),
        ("07911123456", "great britain", None),
        ("07911123456", None, "UK"),
        ("7911123456", "GB", "44"),
        ("447911123456", None, None),
        ("447911123456", "GB", None),
        ("GB 07911 123456", None, None),
        ("gb 7911123456", "GB", None),
        ("GBR:+44 7911 123456", None, None),
        ("United Kingdom 07911123456", None, "44"),
        ("00447911123456", None, None),
        ("00447911123456", "United Kingdom of Great Britain and Northern Ireland", None),
    ],
)
def test_one_number_is_read_from_every_form(number: str, country: str | None, code: str | None) -> None:
    assert parse_phone(number, country, code).e164 == UK


@pytest.mark.parametrize(
    ("number", "country", "expected", "home"),
    [
        ("(415) 555-2671", "US", "+14155552671", "US"),
        ("415.555.2671", "1", "+14155552671", "US"),
        ("14155552671", "USA", "+14155552671", "US"),
        ("US 4155550130", None, "+14155550130", "US"),
        ("us (415) 555-2671", None, "+14155552671", "US"),
        ("Côte d’Ivoire 0701234567", None, "+2250701234567", "CI"),
        ("06 12 34 56 78", "France", "+33612345678", "FR"),
        ("030 123456", "Deutschland", "+4930123456", "DE"),
        ("8 912 345-67-89", "7", "+79123456789", "RU"),
        ("01012345678", "South Korea", "+821012345678", "KR"),
        # Assigned to nobody, so usable in a sandbox.
        ("+15555550123", None, "+15555550123", None),
    ],
)
def test_local_numbers_find_their_country(number: str, country: str | None, expected: str, home: str | None) -> None:
    found = parse_phone(number, country)
    assert (found.e164, found.country) == (expected, home)


@pytest.mark.parametrize(
    ("number", "country", "code", "field"),
    [
        ("07911123456", None, None, "phoneNumber"),
        ("abc", None, None, "phoneNumber"),
        ("US", None, None, "phoneNumber"),
        ("ZZ 4155550130", None, None, "phoneNumber"),
        ("US 4155550130", "FR", None, "country"),
        ("US +447911123456", None, None, "phoneNumber"),
        ("+", None, None, "phoneNumber"),
        ("+12", None, None, "phoneNumber"),
        ("+4479111234567890123", None, None, "phoneNumber"),
        ("1-800-FLOWERS", "US", None, "phoneNumber"),
        ("+44７９11123456", None, None, "phoneNumber"),
        ("+447911123456 ext. 5", None, None, "phoneNumber"),
        ("+9991234567", None, None, "phoneNumber"),
        ("123", "GB", None, "phoneNumber"),
        (UK, "FR", None, "country"),
        (UK, None, "33", "countryCode"),
        (UK, "Atlantis", None, "country"),
        (UK, "999", None, "country"),
        (UK, "GB", "FR", "countryCode"),
        ("4155552671", "US", "Canada", "countryCode"),
    ],
)
def test_the_refusal_of_an_invalid_number_names_its_field(
    number: str, country: str | None, code: str | None, field: str
) -> None:
    with pytest.raises(OperationRefused) as no:
        parse_phone(number, country, code)
    assert no.value.refusal.code == "invalid_input"
    assert (no.value.refusal.details or {})["fields"][0]["field"] == field


def test_countries_that_share_a_calling_code_agree_with_it() -> None:
    assert {"US", "CA"} <= countries_of("1", "country")
    assert parse_phone("4165550123", "Canada", "1").e164 == "+14165550123"


def test_the_list_is_sorted_by_name_and_each_entry_can_be_found() -> None:
    listed = countries()
    assert len(listed) > 230
    names = [country.name for country in listed]
    assert len(set(names)) == len(names)
    assert {("GB", "United Kingdom", "44"), ("US", "United States", "1")} <= {
        (c.code, c.name, c.calling_code) for c in listed
    }
    for country in listed:
        for word in (country.code, country.name, country.code.lower()):
            assert countries_of(word, "country") == {country.code}, word
        assert country.code in countries_of(country.calling_code, "country")


def test_the_number_tables_are_loaded_on_first_use_only() -> None:
    script = "import sys, bot.service.host; print([m for m in ('phonenumbers', 'iso3166') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
