"""The interface document against the table that the tests walk, and against the models: no field and no number may
have been left out.
"""

from __future__ import annotations

import re

import pytest

import bot.wire
from bot.errors import CODES

# told in other words in the document; tested by name in test_bounds and test_rules
SKIPPED = {
    "GuardianRequest": {"type", "scope", "orderTemplate"},
    "WebhookRequest": {"url"},
    "OrderRequest": {"bracket", "guardians"},
    "VerifyRequest": {"country", "countryCode"},
    "CandlesQuery": {"limit"},
    "EventsQuery": {"since", "types"},
    "WalletTradesQuery": {"before"},
}


@pytest.fixture(scope="module")
def document(shared) -> str:
    path = shared / "spec" / "trading-service.md"
    if not path.is_file():
        pytest.skip("the interface document is not here")
    return path.read_text(encoding="utf-8")


def payload(document: str, operation: str) -> str:
    method, path = operation.split(" ")
    if operation == "POST /v1/guardians":
        return re.search(r"POST /v1/guardians body: (.*)", document)[1]
    for line in document.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[:2] == [method, path]:
            return cells[3]
        if len(cells) == 3 and method == "GET" and cells[1] == path:
            return cells[2]
    raise AssertionError(f"no row for {operation}")


def told(text: str) -> dict[str, str]:
    """`name (words)` of a payload cell."""
    text = re.sub(r".*?(Body|Query)( \(\w+ ?optional\)| \(optional\))?:? ", "", text, count=1)
    return {name: words.strip() for name, words in re.findall(r"(\w+) \(((?:[^()])*)\)", text)}


def order_table(document: str) -> dict[str, str]:
    rows = document.split("POST /v1/orders body:")[1].split("\n\n")[1].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {name: f"{kind} {rules}".strip() for name, kind, rules in cells}


def test_the_document_says_what_the_table_says(model_name, shapes, document):
    shape = shapes[model_name]
    found = order_table(document) if model_name == "OrderRequest" else told(payload(document, shape.operation))
    if model_name == "KillRequest":
        found = {"flatten": "boolean"}
    for name, words in shape.fields.items():
        assert found[name] == words, name
    extra = set(found) - set(shape.fields) - SKIPPED.get(model_name, set())
    # "notional (about 10 USD)" and the like are prose
    assert extra <= {"notional", "key"}, f"the document has more: {extra}"


def test_the_model_has_the_fields_of_the_document_and_no_more(model_name, shapes):
    model = getattr(bot.wire, model_name)
    names = {info.alias or name for name, info in model.model_fields.items()}
    assert names == set(shapes[model_name].fields) | SKIPPED.get(model_name, set())


def test_the_resources_have_every_field_of_the_document(document):
    for title, model in (("Position", bot.wire.Position), ("Trade", bot.wire.TradeResource)):
        section = document.split(f"### {title}\n")[1].split("###")[0]
        rows = [
            [cell.strip() for cell in row.strip("|").split("|")] for row in section.splitlines() if row.startswith("|")
        ][2:]
        aliases = {info.alias: (name, info) for name, info in model.model_fields.items()}
        for name, kind, _ in rows:
            assert name in aliases, f"{title}.{name}"
            assert ("nullable" in kind) <= (aliases[name][1].default is None), f"{title}.{name}"


def test_the_error_object_has_every_field_and_every_code(document):
    section = document.split("## Errors")[1]
    names = re.findall(r"^\| (\w+) \|", section.split("Code values")[0], re.MULTILINE)[1:]
    assert set(names) == {info.alias for info in bot.wire.ErrorBody.model_fields.values()}
    codes = re.search(r"Code values: ([\w, ]+)\.", section)[1].split(", ")
    assert set(codes) == set(CODES)


def test_the_versions_are_those_of_the_document(document):
    assert f"value {bot.wire.API_VERSION}" in document
    assert f"description version {bot.wire.DESCRIPTION_VERSION}" in document
    assert f"limitsVersion is {bot.wire.LIMITS_VERSION}" in document
