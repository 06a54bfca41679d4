"""One session that calls every JSON operation of the service. Its answers are the examples of the documentation.

    .venv/bin/python -m tests.service.docs.example_run        writes bot/service/docs/examples.json anew

The service has a manual clock and a seed, so the answers are the same in every run, apart from random secrets: these
become placeholders.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from bot.service.docs import examples
from bot.service.docs.operation_texts import EXAMPLES
from bot.service.host import HostOptions, build
from bot.wire.interface import OPERATIONS

START_MS = 1_767_225_600_000
CONTROL_TOKEN = "bbc_example"
# entries of a list that are kept
SHOWN_MAX = 2
# Fields with random values, and what stands for each in an example.
SECRETS = {
    "apiKey": "<apiKey>",
    "confirmToken": "<confirmToken>",
    "accessToken": "<accessToken>",
    "deviceCode": "<deviceCode>",
    "secret": "<secret>",
    "sandboxCode": "<sandboxCode>",
    "userCode": "<userCode>",
    "verificationUriComplete": "<verificationUriComplete>",
    "digest": "<digest>",
}


class Step(NamedTuple):
    """A request.

    `<name>` in path or body stands for a value of an earlier answer. `owner`: with the session instead of the API key.
    """

    method: str
    route: str
    path: str = ""
    body: Any = None
    owner: bool = False


def example(model: str) -> dict[str, object]:
    return EXAMPLES[model]


ORDER = example("OrderRequest")
PHONE = {"phoneNumber": "+442079460000"}
STEPS = [
    Step("PATCH", "/sandbox/v1/clock", body={"speed": 0}),
    Step("POST", "/sandbox/v1/seed", body=example("SeedRequest")),
    Step("GET", "/v1/start"),
    Step("GET", "/v1/changelog"),
    Step("GET", "/agent.json"),
    Step("GET", "/v1/auth/countries"),
    Step("GET", "/v1/system/status"),
    Step("GET", "/v1/markets", "/v1/markets?asset_class=crypto&limit=2"),
    Step("POST", "/v1/sandbox/accounts", body=example("SandboxAccountRequest")),
    Step("POST", "/v1/guardians", body=example("GuardianRequest")),
    Step("GET", "/v1/guardians"),
    Step("POST", "/v1/heartbeat", body={}),
    Step("POST", "/v1/orders/suggest", body=example("SuggestRequest")),
    Step("POST", "/v1/orders", body=ORDER),
    Step("POST", "/v1/orders/confirm", body=example("ConfirmRequest")),
    Step("POST", "/sandbox/v1/clock/advance", body=example("AdvanceRequest")),
    Step("GET", "/v1/markets/{coin}/candles", "/v1/markets/BTC/candles?interval=1m&limit=2"),
    Step("GET", "/v1/markets/{coin}/book", "/v1/markets/BTC/book"),
    Step("GET", "/v1/account"),
    Step("GET", "/v1/portfolio"),
    Step("GET", "/v1/home"),
    Step("GET", "/v1/funding"),
    Step("GET", "/v1/limits"),
    Step("GET", "/v1/settings"),
    Step("GET", "/v1/orders"),
    Step("GET", "/v1/trades"),
    Step("GET", "/v1/events", "/v1/events?types=fill&limit=1"),
    Step("GET", "/v1/wallets/{address}", "/v1/wallets/<post_sandbox_accounts_address>"),
    Step("GET", "/v1/wallets/{address}/positions", "/v1/wallets/<post_sandbox_accounts_address>/positions"),
    Step("GET", "/v1/wallets/{address}/nav", "/v1/wallets/<post_sandbox_accounts_address>/nav?range=1d"),
    Step("POST", "/v1/positions/{market}/close", "/v1/positions/BTC/close", example("CloseRequest")),
    Step("GET", "/v1/wallets/{address}/pnl", "/v1/wallets/<post_sandbox_accounts_address>/pnl"),
    Step("GET", "/v1/wallets/{address}/trades", "/v1/wallets/<post_sandbox_accounts_address>/trades?limit=1"),
    Step("DELETE", "/v1/orders/{oid}", "/v1/orders/<get_orders_oid>"),
    Step("DELETE", "/v1/orders", body=example("CancelCoinRequest")),
    Step("DELETE", "/v1/guardians/{id}", "/v1/guardians/<post_guardians_id>"),
    Step("POST", "/v1/webhooks", body=example("WebhookRequest")),
    Step("GET", "/v1/webhooks"),
    Step("DELETE", "/v1/webhooks/{id}", "/v1/webhooks/<post_webhooks_id>"),
    Step("POST", "/v1/account/kill", body=example("KillRequest")),
    Step("POST", "/v1/sandbox/accounts/reset", body=example("ResetRequest")),
    Step("POST", "/v1/auth/otp", body=example("OtpRequest")),
    Step("POST", "/v1/auth/verify", body=PHONE | {"code": "<sandboxCode>", "nickname": "ada"}),
    Step("PATCH", "/v1/settings", body=example("SettingsRequest"), owner=True),
    Step("POST", "/v1/keys", body=example("KeyRequest"), owner=True),
    Step("GET", "/v1/keys", owner=True),
    Step("DELETE", "/v1/keys/{id}", "/v1/keys/<post_keys_id>", owner=True),
    Step("POST", "/v1/oauth/device", body={}),
    Step("DELETE", "/v1/auth/session", owner=True),
    Step("GET", "/sandbox/v1/clock"),
    Step("POST", "/sandbox/v1/markets/{coin}/price", "/sandbox/v1/markets/BTC/price", example("PriceRequest")),
    Step("POST", "/sandbox/v1/faults", body=example("FaultRequest") | {"op": "post_orders"}),
    Step("GET", "/sandbox/v1/faults"),
    Step("DELETE", "/sandbox/v1/faults"),
    Step("GET", "/sandbox/v1/digest"),
    Step("POST", "/sandbox/v1/snapshot", body=example("NameRequest")),
    Step("POST", "/sandbox/v1/restore", body=example("NameRequest")),
    Step("POST", "/sandbox/v1/reset", body={}),
]


async def session() -> dict[str, Any]:
    """Operation id -> path, body and answer of each step."""
    options = HostOptions(clock="manual", start_ms=START_MS, rate_limits=False)
    service = build(options, control_token=CONTROL_TOKEN)
    await service.start()
    names = {(row.method, row.path): row.name for row in OPERATIONS}
    made: dict[str, Any] = {}
    known: dict[str, str] = {}
    transport = httpx.ASGITransport(service.asgi_app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8700") as client:
        for step in STEPS:
            name = names[step.method, step.route]
            path = filled(step.path or step.route, known)
            body = None if step.body is None else json.loads(filled(json.dumps(step.body), known))
            credential = (
                CONTROL_TOKEN
                if step.route.startswith("/sandbox/")
                else known.get("accessToken" if step.owner else "apiKey")
            )
            headers = {} if credential is None else {"Authorization": f"Bearer {credential}"}
            answer = await client.request(
                step.method, path, headers=headers, **({} if body is None else {"json": body})
            )
            assert answer.status_code == 200, f"{name}: {answer.text}"
            remember(answer.json(), known, name)
            shown = {"path": named(step.path or step.route), **({} if step.body is None else {"body": step.body})}
            made[name] = shown | {"answer": shortened(masked(answer.json()))}
    await service.stop()
    return made


def named(path: str) -> str:
    """The path with the bare names of its placeholders: `<id>` for `<post_keys_id>`."""
    return re.sub(r"<\w+_(\w+?)>", r"<\1>", path)


def filled(text: str, known: dict[str, str]) -> str:
    return re.sub(r"<(\w+)>", lambda found: known[found[1]], text)


def remember(answer: Any, known: dict[str, str], operation: str) -> None:
    """Keep the values that later steps name:

    `<apiKey>` is the newest one, `<post_keys_id>` the one of that operation.
    """
    if isinstance(answer, list):
        for one in reversed(answer):
            remember(one, known, operation)
    elif isinstance(answer, dict):
        for name, value in answer.items():
            if isinstance(value, str):
                known[name] = known[f"{operation}_{name}"] = value
            else:
                remember(value, known, operation)


def masked(answer: Any) -> Any:
    if isinstance(answer, list):
        return [masked(one) for one in answer]
    if isinstance(answer, dict):
        return {
            name: SECRETS[name] if name in SECRETS and isinstance(value, str) else masked(value)
            for name, value in answer.items()
        }
    return answer


def shortened(answer: Any) -> Any:
    """Lists with their first entries only."""
    if isinstance(answer, list):
        return [shortened(one) for one in answer[:SHOWN_MAX]]
    if isinstance(answer, dict):
        return {name: shortened(value) for name, value in answer.items()}
    return answer


def numbered(written: str) -> str:
    """Random addresses and request ids, replaced by numbers in the order in which they occur."""
    for form, width in ((r"0x[0-9a-f]{40}", 40), (r"req_[0-9a-f]{24}", 24)):
        for number, found in enumerate(dict.fromkeys(re.findall(form, written)), 1):
            written = written.replace(found, found[:-width] + f"{number:0{width}x}")
    return written


def text() -> str:
    return numbered(json.dumps(asyncio.run(session()), indent=1, ensure_ascii=False)) + "\n"


if __name__ == "__main__":
    Path(examples.FILE).write_text(text(), encoding="utf-8")
