"""The description as the readers of it use it: the usual generator of Python clients reads it, and its client
trades.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from bot.clock import DAY_MS
from bot.service.operations.accounts import IDEMPOTENCY_TTL_MS
from bot.service.operations.sign_in import SESSION_TTL_MS
from bot.testing.sandbox import Sandbox


@pytest.fixture
def service() -> Iterator[Sandbox]:
    with Sandbox() as box:
        yield box


@pytest.fixture
def described(service: Sandbox) -> dict[str, Any]:
    with httpx.Client(base_url=service.base_url, trust_env=False) as http:
        found: dict[str, Any] = http.get("/openapi.json").json()
    return found


@pytest.fixture
def client(described: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The package that openapi-python-client writes. Every module of it is imported."""
    document = tmp_path / "openapi.json"
    document.write_text(json.dumps(described))
    command = ["generate", "--path", str(document), "--output-path", str(tmp_path / "generated"), "--meta", "none"]
    tool = Path(sys.executable).with_name("openapi-python-client")
    done = subprocess.run([str(tool), *command], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Unable to parse" not in done.stdout and "unsupported" not in done.stdout.lower(), done.stdout
    monkeypatch.syspath_prepend(str(tmp_path))
    made = importlib.import_module("generated")
    for module in pkgutil.walk_packages(made.__path__, "generated."):
        importlib.import_module(module.name)
    return made


def test_a_generated_client_places_an_order_and_reads_a_refusal(service: Sandbox, client: ModuleType) -> None:
    place = importlib.import_module("generated.api.orders.post_orders").sync_detailed
    order = importlib.import_module("generated.models").OrderRequest
    key = service.headers["Authorization"].removeprefix("Bearer ")
    caller = client.AuthenticatedClient(base_url=service.base_url, token=key, httpx_args={"trust_env": False})
    fields = {"market": "BTC", "side": "long", "usdAmount": 50, "bracket": {"stopLoss": {"pct": 2}}}
    with caller:
        placed = place(client=caller, body=order.from_dict(fields))
        refused = place(client=caller, body=order.from_dict(fields | {"usdAmount": 0.01}))
    assert (placed.status_code, type(placed.parsed).__name__) == (200, "OrderResult")
    assert (refused.status_code, type(refused.parsed).__name__) == (422, "ErrorEnvelope")
    assert (refused.parsed.error.code, refused.parsed.error.order_submitted) == ("below_min_notional", False)


def test_no_schema_has_a_form_that_generators_cannot_read(described: dict[str, Any]) -> None:
    def walk(part: Any, at: str) -> Iterator[str]:
        if isinstance(part, list):
            for number, inner in enumerate(part):
                yield from walk(inner, f"{at}.{number}")
        elif isinstance(part, dict):
            for name, inner in part.items():
                if name in ("x-rules", "example", "x-event-data"):
                    continue
                is_schema = at.endswith((".properties", ".schemas")) or name in ("items", "schema")
                if (is_schema and isinstance(inner, bool)) or name in ("const", "not"):
                    yield f"{at}.{name}"
                yield from walk(inner, f"{at}.{name}")

    assert list(walk(described, "")) == []


def test_the_description_has_what_an_integrator_needs(described: dict[str, Any]) -> None:
    delivery = described["webhooks"]["event"]["post"]
    assert [one["name"] for one in delivery["parameters"]] == ["webhook-id", "webhook-timestamp", "webhook-signature"]
    assert delivery["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Event"}
    for word in ("whsec_", "HMAC-SHA256", "ten times over about three days", "410", "Retry-After"):
        assert word in delivery["description"]
    keyed = described["paths"]["/v1/orders"]["post"]["parameters"]
    assert any(f"for {IDEMPOTENCY_TTL_MS // DAY_MS} days" in one.get("description", "") for one in keyed)
    scheme = described["components"]["securitySchemes"]["bearer"]["description"]
    assert f"after {SESSION_TTL_MS // DAY_MS} days" in scheme
