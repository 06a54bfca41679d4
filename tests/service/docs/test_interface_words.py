"""The interface document read word by word: requests have the same field names there and here, in both directions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bot.service.host import HostOptions, build
from bot.wire.queries import EmptyQuery

# The document does not describe the stream; `since` and `types` are those of the event feed.
OURS = {"GET /v1/events/stream": {"since", "types"}}
# Words before a parenthesis that name no field of a request.
PROSE = {"list", "snapshot", "key", "webWatch", "null", "notional", "market", "coin", "address", "form"}


def told(text: str) -> dict[str, str]:
    """Operation -> the document's text about its request."""
    found: dict[str, str] = {}
    for line in text.split("## Endpoints")[1].split("\n## Authentication\n")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) >= 3 and cells[0] in ("GET", "POST", "PATCH", "DELETE"):
            found[f"{cells[0]} {cells[1]}"] = cells[-1]
    table = text.split("POST /v1/orders body:")[1].split("\n### ")[0]
    found["POST /v1/orders"] = ", ".join(f"{name} (" for name in re.findall(r"^\| (\w+) \|", table, re.MULTILINE))
    guardian = re.search(r"POST /v1/guardians body: (.*)", text)
    assert guardian is not None
    found["POST /v1/guardians"] = guardian[1]
    return found


def test_requests_accept_exactly_the_fields_of_the_interface(shared: Path) -> None:
    path = shared / "spec" / "trading-service.md"
    if not path.is_file():
        pytest.skip("the interface document is not here")
    service = build(HostOptions(clock="manual", hold_prices=True, markets=("BTC",)), control_token="bbc_test")
    rules = {f"{rule.method} {rule.path}": rule for rule in service.app.rules}
    payloads = told(path.read_text(encoding="utf-8"))
    assert set(payloads) <= set(rules)
    for name, words in payloads.items():
        rule = rules[name]
        known: set[str] = set()
        for model in (rule.body, rule.query if rule.query is not EmptyQuery else None):
            if model is not None:
                known |= {field.alias or key for key, field in model.model_fields.items()}
        said = set(re.findall(r"\b([a-z][A-Za-z_]*)(?= \()", words)) - PROSE
        assert said <= known, f"{name} takes no {sorted(said - known)}"
        unsaid = {one for one in known if not re.search(rf"\b{one}\b", words)} - OURS.get(name, set())
        assert unsaid == set(), f"{name}: the interface knows no {sorted(unsaid)}"
