"""Reference pages about the HTTP interface as Markdown: routes, bodies, events, error codes.

Generated from the service's own description.
"""

from __future__ import annotations

from typing import Any

from bot.cli.docs.reference import code, kind_of, limits_of, table
from bot.errors import CODES
from bot.service.bodies.responses import CONFLICTS
from bot.service.docs.html_docs import MEANINGS, REASONS
from bot.service.docs.openapi import description
from bot.service.host import HostOptions, build
from bot.wire.events import DATA_OF
from bot.wire.vocabulary import EVENT_SUBTYPES

Json = dict[str, Any]


def openapi() -> Json:
    """The OpenAPI description of a service on its default port. Nothing is served."""
    service = build(HostOptions(clock="manual", start_ms=0, markets=("BTC",)))
    try:
        return description(service.app.rules, service.operations.base_url)
    finally:
        service.machine.log.close()


def routes_page(document: Json) -> str:
    """Every operation with its parameters, body, response and failures."""
    parts = [
        "# HTTP API\n",
        (
            "Every route with its parameters, body, response and failures, generated from the service's OpenAPI"
            " description. A running service shows the same at `/docs`, with examples that you can try, and as"
            " `/openapi.json`. [Sandbox and HTTP API](../sandbox-and-http-api.md) says how to start one.\n"
        ),
    ]
    for tag in document["tags"]:
        parts.append(f"## {tag['name']}\n\n{tag['description']}\n")
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if operation["tags"][0] == tag["name"]:
                    parts.append(_operation(method, path, operation))
    return "\n".join(parts)


def _operation(method: str, path: str, operation: Json) -> str:
    credential = operation.get("x-scope") or ("the control token" if operation["security"] else "none")
    parts = [
        f"### {code(f'{method.upper()} {path}')}\n",
        f"{operation['summary']}. {operation.get('description', '')}".strip() + "\n",
    ]
    rows = [
        [
            code(parameter["name"]),
            parameter["in"],
            "yes" if parameter["required"] else "no",
            kind_of(parameter["schema"]),
            _words(parameter, parameter["schema"]),
        ]
        for parameter in operation["parameters"]
        # Every operation has this one.
        if parameter["name"] != "X-API-Version"
    ]
    if rows:
        parts.append(table(["Parameter", "In", "Required", "Type", "Meaning and bounds"], rows))
    facts = [f"Credential: {credential}"]
    if "requestBody" in operation:
        body = operation["requestBody"]["content"]["application/json"]["schema"]
        facts.append(f"Body: {kind_of(body, 'http-bodies.md#')}")
    media, content = next(iter(operation["responses"]["200"]["content"].items()))
    is_json = media == "application/json" and content["schema"] != {"type": "object"}
    facts.append(f"Response: {kind_of(content['schema'], 'http-bodies.md#') if is_json else code(media)}")
    failures = [
        f"{status} "
        + ", ".join(
            f"[{error_code}](error-codes.md#{error_code})" for error_code in answer["description"].split(" or ")
        )
        for status, answer in operation["responses"].items()
        if status != "200"
    ]
    facts.append(f"Failures: {'; '.join(failures)}")
    return "\n".join([*parts, *(f"- {fact}" for fact in facts), ""])


def _words(*schemas: Json) -> str:
    texts = [schema["description"] for schema in schemas if "description" in schema]
    bounds = limits_of(schemas[-1])
    return " ".join([*texts, *([bounds] if bounds else [])])


def bodies_page(document: Json) -> str:
    """Every request and response body with its fields."""
    parts = [
        "# HTTP bodies\n",
        (
            "Every request and response body with its fields, generated from the service's models. Amounts, prices and"
            " sizes in responses are strings; times are unix milliseconds on the service's clock. The service refuses a"
            " request with an unknown field. A client must ignore response fields that it does not know.\n"
        ),
    ]
    for name, schema in document["components"]["schemas"].items():
        required = schema.get("required", ())
        rows = [
            [code(key), "yes" if key in required else "no", kind_of(part), _words(part)]
            for key, part in schema.get("properties", {}).items()
        ]
        parts.append(f"## {name.rstrip('_')}\n\n{' '.join(schema.get('description', '').split())}\n")
        if rows:
            parts.append(table(["Field", "Required", "Type", "Meaning and bounds"], rows))
    return "\n".join(parts)


def events_page(document: Json) -> str:
    """Every event type with its subtypes and the fields of its data."""
    schemas = document["components"]["schemas"]
    parts = [
        "# Events\n",
        (
            "Every event type with its subtypes and fields, generated from the service's models. `GET /v1/events`"
            " returns them in order, `GET /v1/events/stream` streams them, and webhooks carry them. Every event has"
            " `id`, `type`, `subtype`, `ts` and `data`; `coin`, `requestId` and `idempotencyKey` where they apply.\n"
        ),
    ]
    for kind, subtypes in EVENT_SUBTYPES.items():
        parts.append(f"## {kind}\n\nSubtypes: {', '.join(map(code, subtypes))}.\n")
        models = {
            f"{kind}.{subtype}" if kind == "account" else kind: DATA_OF.get(kind) or DATA_OF[f"{kind}/{subtype}"]
            for subtype in subtypes
        }
        for name, model in models.items():
            schema = schemas[model.__name__]
            rows = [[code(key), kind_of(part)] for key, part in schema["properties"].items()]
            parts.append(f"Data of {code(name)}:\n\n{table(['Field', 'Type'], rows)}")
    return "\n".join(parts)


def errors_page() -> str:
    """Every error code with its status, its meaning and what to do."""
    parts = [
        "# Error codes\n",
        (
            "Every error code with its status and what to do, generated from the code. Every failure of the HTTP"
            " interface has an `error` object with `code`, `message`, `requestId` and `retryable`. If `retryable` is"
            " true, you may send the same request again.\n"
        ),
    ]
    for name, row in CODES.items():
        meaning, move = MEANINGS[name]
        status = "see the reasons below" if name == "idempotency_conflict" else str(row.status)
        again = "yes" if row.retryable else "no"
        parts.append(
            f"## {name}\n\n{table(['Status', 'Retry', 'Meaning', 'What to do'], [[status, again, meaning, move]])}"
        )
    rows = [
        [code(reason), str(status), "yes" if again else "no", REASONS[reason]]
        for reason, (status, again) in CONFLICTS.items()
    ]
    parts.append(f"## Reasons of idempotency_conflict\n\n{table(['Reason', 'Status', 'Retry', 'Meaning'], rows)}")
    return "\n".join(parts)
