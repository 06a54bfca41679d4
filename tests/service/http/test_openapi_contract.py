"""The service against its own OpenAPI description: schemathesis over a running process, every phase, stateful
sequences included.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import bot.wire
from bot.wire.base import Resource
from tests.conftest import is_soaked
from tests.service import serving

EXAMPLES = 8
EXAMPLES_SOAK = 1_000

# A separate run, because later requests would have no access any more.
ENDING = ("POST /v1/account/kill", "DELETE /v1/keys/{id}", "DELETE /v1/auth/session", "POST /v1/sandbox/accounts/reset")
# Excluded: the stream, which never ends, and the control, which moves the clock and is not part of the interface.
LEFT_OUT = ("GET /v1/events/stream",)

# Refusals that a schema cannot express: finer than 1e-8, a country, a cron line, a template. 422 is a rule of trading.
CHECKED = (
    "POST /v1/orders",
    "POST /v1/orders/suggest",
    "POST /v1/positions/{market}/close",
    "POST /v1/guardians",
    "POST /v1/keys",
    "POST /v1/sandbox/accounts",
    "POST /v1/sandbox/accounts/reset",
    "PATCH /v1/settings",
    "POST /v1/auth/otp",
    "POST /v1/auth/verify",
)

CONFIG = f"""
[generation]
allow-extra-parameters = false

[checks.positive_data_acceptance]
expected-statuses = ["2xx", "401", "403", "404", "409", "410", "422", "429"]

[[operations]]
include-name = {json.dumps(CHECKED)}
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "401", "403", "404", "409", "422", "429"]
"""


@pytest.fixture
def served() -> Iterator[serving.Served]:
    made = serving.start(clock="manual", port=0, markets=["BTC", "ETH"], rate_limits=False)
    yield made
    serving.end(made)


def strict(document: dict[str, Any]) -> dict[str, Any]:
    """The description for the test: answers have no further fields, and webhooks stay on this machine."""
    answers = {
        name
        for name in document["components"]["schemas"]
        if isinstance(getattr(bot.wire, name, None), type) and issubclass(getattr(bot.wire, name), Resource)
    }
    for name in answers:
        document["components"]["schemas"][name]["additionalProperties"] = False
    hook = document["components"]["schemas"].get("WebhookRequest")
    if hook is not None:
        hook["properties"]["url"] = {"type": "string", "enum": ["http://127.0.0.1:9/hook"]}
    return document


def conform(served: serving.Served, folder: Path, operations: list[str], examples: int) -> None:
    """Runs every phase over these operations and fails with schemathesis' text."""
    document = strict(httpx.get(f"{served.base_url}/openapi.json").json())
    for path in list(document["paths"]):
        methods = document["paths"][path]
        for method in list(methods):
            if f"{method.upper()} {path}" not in operations:
                del methods[method]
        if not methods:
            del document["paths"][path]
    opened = httpx.post(f"{served.base_url}/v1/sandbox/accounts", json={"startingBalanceUsd": 100_000}).json()
    described, config = folder / "openapi.json", folder / "schemathesis.toml"
    described.write_text(json.dumps(document))
    config.write_text(CONFIG)
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        "--config-file",
        str(config),
        "run",
        str(described),
        "--url",
        served.base_url,
        "-H",
        f"Authorization: Bearer {opened['apiKey']}",
        "--max-examples",
        str(examples),
        "--generation-deterministic",
        "--seed",
        "1",
        "--phases",
        "examples,coverage,fuzzing,stateful",
        "--continue-on-failure",
        "--no-color",
        "--no-shrink",
        "--request-timeout",
        "20",
        "--warnings",
        "off",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-4_000:]
    assert httpx.get(f"{served.base_url}/v1/system/status").json()["status"] == "ok"


TRADING = ("Orders", "Guardians", "Events", "Account")


def operations_of(served: serving.Served) -> dict[str, str]:
    """Operation -> its group."""
    paths = httpx.get(f"{served.base_url}/openapi.json").json()["paths"]
    return {
        f"{method.upper()} {path}": made["tags"][0]
        for path, methods in paths.items()
        for method, made in methods.items()
    }


def interface(served: serving.Served, part: str) -> list[str]:
    """One part of the interface: the trading operations, or all others."""
    return [
        name
        for name, group in operations_of(served).items()
        if name not in (*ENDING, *LEFT_OUT) and group != "Sandbox control" and (group in TRADING) == (part == "trading")
    ]


@pytest.mark.parametrize("part", ["trading", "rest"])
def test_every_operation_matches_its_description(part: str, served: serving.Served, tmp_path: Path) -> None:
    conform(served, tmp_path, interface(served, part), EXAMPLES)


def test_ending_operations_match_their_description(served: serving.Served, tmp_path: Path) -> None:
    conform(served, tmp_path, [name for name in operations_of(served) if name in ENDING], EXAMPLES)


@pytest.mark.soak
@pytest.mark.parametrize("part", ["trading", "rest"])
def test_every_operation_matches_its_description_in_a_long_run(
    part: str, served: serving.Served, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not is_soaked(request.config):
        pytest.skip("a thousand examples an operation run in make soak")
    conform(served, tmp_path, interface(served, part), EXAMPLES_SOAK)
