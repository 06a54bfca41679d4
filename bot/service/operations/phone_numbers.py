"""Phone numbers and countries: turns what a person writes into E.164.

Pure. Imports the large number tables on first use.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from bot.service.bodies.responses import OperationRefused, invalid

# A country's name before its number. Any letters that are no part of a number are looked up in the list of countries.
_COUNTRY: Final = re.compile(r"([^\W\d_][^\d+(]*)(.*)", re.DOTALL)
_ALLOWED: Final = re.compile(r"\+?[0-9 ().\-/\t]+", re.ASCII)
_CODE: Final = re.compile(r"(?:\+|00)?([0-9]{1,3})", re.ASCII)
_DIGITS_MIN: Final = 3

# Common names of countries; the first is shown.
ALIASES: Final[dict[str, tuple[str, ...]]] = {
    "AE": ("United Arab Emirates", "UAE", "Emirates"),
    "BA": ("Bosnia and Herzegovina", "Bosnia"),
    "BN": ("Brunei", "Brunei Darussalam"),
    "BO": ("Bolivia",),
    "BQ": ("Caribbean Netherlands", "Bonaire"),
    "BS": ("Bahamas", "The Bahamas"),
    "CC": ("Cocos Islands", "Keeling Islands"),
    "CD": ("DR Congo", "Democratic Republic of the Congo", "DRC", "Congo-Kinshasa", "Zaire"),
    "CG": ("Congo", "Republic of the Congo", "Congo-Brazzaville"),
    "CI": ("Ivory Coast", "Cote d'Ivoire"),
    "CN": ("China", "People's Republic of China", "PRC"),
    "CV": ("Cape Verde", "Cabo Verde"),
    "CZ": ("Czechia", "Czech Republic"),
    "DE": ("Germany", "Deutschland"),
    "ES": ("Spain", "España"),
    "FK": ("Falkland Islands", "Malvinas"),
    "FM": ("Micronesia",),
    "GB": ("United Kingdom", "UK", "Great Britain", "Britain", "England", "Scotland", "Wales", "Northern Ireland"),
    "GM": ("Gambia", "The Gambia"),
    "HK": ("Hong Kong",),
    "IR": ("Iran",),
    "KP": ("North Korea", "DPRK"),
    "KR": ("South Korea", "Korea"),
    "LA": ("Laos",),
    "MD": ("Moldova",),
    "MF": ("Saint Martin", "St Martin"),
    "MK": ("North Macedonia", "Macedonia"),
    "MM": ("Myanmar", "Burma"),
    "MO": ("Macao", "Macau"),
    "NL": ("Netherlands", "The Netherlands", "Holland"),
    "PS": ("Palestine",),
    "RU": ("Russia",),
    "SH": ("Saint Helena", "St Helena"),
    "SX": ("Sint Maarten",),
    "SY": ("Syria",),
    "SZ": ("Eswatini", "Swaziland"),
    "TL": ("Timor-Leste", "East Timor"),
    "TR": ("Turkey", "Türkiye"),
    "TW": ("Taiwan",),
    "TZ": ("Tanzania",),
    "US": ("United States", "United States of America", "USA", "US", "America"),
    "VA": ("Vatican City", "Vatican", "Holy See"),
    "VE": ("Venezuela",),
    "VG": ("British Virgin Islands",),
    "VI": ("US Virgin Islands", "U.S. Virgin Islands"),
    "VN": ("Vietnam",),
    "XK": ("Kosovo",),
}


@dataclass(frozen=True, slots=True)
class PhoneCountry:
    """ISO 3166 alpha-2 code, a name, the calling code's digits."""

    code: str
    name: str
    calling_code: str


@dataclass(frozen=True, slots=True)
class Phone:
    """A number in E.164, and its country when the number alone tells it."""

    e164: str
    country: str | None


@cache
def countries() -> tuple[PhoneCountry, ...]:
    """All countries that have phone numbers of their own, by name."""
    import iso3166
    import phonenumbers

    entries = []
    for code in phonenumbers.SUPPORTED_REGIONS:
        listed = iso3166.countries_by_alpha2.get(code)
        if listed is None and code not in ALIASES:
            continue
        name = ALIASES[code][0] if code in ALIASES else listed.name if listed is not None else code
        entries.append(PhoneCountry(code, name, str(phonenumbers.country_code_for_region(code))))
    return tuple(sorted(entries, key=lambda country: _folded(country.name)))


@cache
def _by_word() -> dict[str, frozenset[str]]:
    """The countries of every name, by the name's folded form."""
    import iso3166

    words: dict[str, set[str]] = {}
    for country in countries():
        names = {country.code, country.name, *ALIASES.get(country.code, ())}
        listed = iso3166.countries_by_alpha2.get(country.code)
        if listed is not None:
            names |= {listed.alpha3, listed.name, listed.apolitical_name}
        for name in names:
            words.setdefault(_folded(name), set()).add(country.code)
        words.setdefault(country.calling_code, set()).add(country.code)
    return {word: frozenset(codes) for word, codes in words.items()}


def _folded(name: str) -> str:
    """A name without case, marks and punctuation: "Côte d'Ivoire" and "cote divoire" are one."""
    plain = unicodedata.normalize("NFKD", name).replace("’", "'").casefold()
    letters = "".join(letter for letter in plain if letter.isalnum() or letter in " -")
    return " ".join(letters.replace("-", " ").split())


def countries_of(text: str, field: str) -> frozenset[str]:
    """The countries of an ISO code, a calling code or a name. Refused if there is none."""
    stripped = text.strip()
    calling = _CODE.fullmatch(stripped)
    matching = _by_word().get(calling[1] if calling is not None else _folded(stripped))
    if not matching:
        allowed = "an ISO 3166 code, a calling code or a country's name: see GET /v1/auth/countries"
        raise OperationRefused(invalid(field, "is not a known country", allowed))
    return matching


def parse_phone(text: str, country: str | None = None, country_code: str | None = None) -> Phone:
    """A number as E.164. Refused if it is not a phone number, or does not match the given countries."""
    regions = _regions(country, country_code)
    field = "country" if country is not None else "countryCode"
    plain = text.strip()
    if (written := _COUNTRY.fullmatch(plain)) is not None:
        named, plain = countries_of(written[1].rstrip(" :.-\t"), "phoneNumber"), written[2]
        if regions is not None and not regions & named:
            raise OperationRefused(invalid(field, "does not match phoneNumber"))
        regions, field = named if regions is None else regions & named, "phoneNumber"
    digits = re.sub(r"[^0-9]", "", plain) if _ALLOWED.fullmatch(plain) else ""
    if len(digits) < _DIGITS_MIN:
        raise OperationRefused(_bad("is not a phone number"))
    if plain.startswith("+") or digits.startswith("00"):
        # The whole number: some write a zero in brackets after the calling code.
        whole = plain if plain.startswith("+") else "+" + digits[2:]
        parsed = _parsed(whole, None)
        if parsed is None:
            raise OperationRefused(_bad("is not a possible phone number"))
        if regions is not None and not regions & _regions_of_code(parsed.country_code):
            raise OperationRefused(invalid(field, "does not match phoneNumber"))
        return _phone(parsed)
    if regions is None:
        parsed = _parsed("+" + digits, None)
        if parsed is None or not _is_valid(parsed):
            raise OperationRefused(
                _bad("needs its country: write it as +<country code><number>, or give country", field_fix="country")
            )
        return _phone(parsed)
    region = _main_region(regions)
    local, prefixed = _parsed(digits, region), _parsed("+" + digits, None)
    if prefixed is not None and not regions & _regions_of_code(prefixed.country_code):
        prefixed = None
    for candidate in (local, prefixed):
        if candidate is not None and _is_valid(candidate):
            return _phone(candidate)
    possible = local or prefixed
    if possible is None:
        raise OperationRefused(_bad("is not a possible phone number of this country"))
    return _phone(possible)


def _regions(country: str | None, country_code: str | None) -> frozenset[str] | None:
    named = None if country is None else countries_of(country, "country")
    coded = None if country_code is None else countries_of(country_code, "countryCode")
    if named is None or coded is None:
        return named if coded is None else coded
    both = named & coded
    if not both:
        raise OperationRefused(invalid("countryCode", "does not match country"))
    return both


def _regions_of_code(code: int) -> frozenset[str]:
    import phonenumbers

    return frozenset(phonenumbers.region_codes_for_country_code(code))


def _main_region(regions: frozenset[str]) -> str:
    """The main country of a calling code that several countries share."""
    import phonenumbers

    first = min(regions)
    main: str = phonenumbers.region_code_for_country_code(phonenumbers.country_code_for_region(first))
    return main if main in regions else first


def _parsed(text: str, region: str | None) -> Any:
    import phonenumbers

    try:
        number = phonenumbers.parse(text, region)
    except phonenumbers.NumberParseException:
        return None
    return number if phonenumbers.is_possible_number(number) else None


def _is_valid(number: Any) -> bool:
    import phonenumbers

    return phonenumbers.is_valid_number(number)


def _phone(number: Any) -> Phone:
    import phonenumbers

    e164 = phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)
    region = phonenumbers.region_code_for_number(number)
    # An unassigned number has a country too, unless several countries share the calling code.
    if region is None:
        sharing = phonenumbers.region_codes_for_country_code(number.country_code)
        region = sharing[0] if len(sharing) == 1 else None
    return Phone(e164, region if region in {country.code for country in countries()} else None)


def _bad(text: str, *, field_fix: str | None = None) -> Any:
    allowed = "E.164 (+447911123456), a local number with country, or a country-prefixed one (00447911123456)"
    return invalid("phoneNumber", text, allowed, fix=None if field_fix is None else {"field": field_fix})
