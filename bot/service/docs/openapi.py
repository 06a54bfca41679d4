"""The OpenAPI 3.1 description, generated from the gateway's rules and the models. Knows no state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from bot.errors import CODES
from bot.service.bodies.responses import CONFLICTS
from bot.service.docs.examples import examples
from bot.service.docs.operation_texts import EXAMPLES, NOTES, WEBHOOK_NOTE
from bot.wire import headers as wire_headers
from bot.wire import interface, signing
from bot.wire.base import Request, Resource, aliases, schema_name
from bot.wire.errors import ErrorEnvelope
from bot.wire.events import DATA_OF, Event
from bot.wire.guardian_requests import GUARDIAN_RULES, GuardianFields, GuardianRequest
from bot.wire.interface import GROUPS, JSON, STREAM, Access, Operation
from bot.wire.queries import EmptyQuery
from bot.wire.requests import CLEARS_CAP, EmptyRequest
from bot.wire.vocabulary import EVENT_FILTERS

Json = dict[str, Any]

REF: Final = "#/components/schemas/{model}"

PATH_PARAMETERS: Final[dict[str, Json]] = {
    "address": {
        "description": "An account's address: 0x and 40 hexadecimal digits.",
        "schema": {"type": "string", "pattern": "^0x[0-9a-fA-F]{40}$"},
        "example": "0x" + "0" * 40,
    },
    "coin": {
        "description": "A market by its coin: BTC, AAPL, event:SLUG.",
        "schema": {"type": "string", "minLength": 1},
        "example": "BTC",
    },
    "market": {
        "description": "A market: perp:SYMBOL, event:SLUG or the bare symbol.",
        "schema": {"type": "string", "minLength": 1},
        "example": "perp:BTC",
    },
    "oid": {"description": "The venue's order id.", "schema": {"type": "string", "minLength": 1}},
    "id": {"description": "An id as the service gave it.", "schema": {"type": "string", "minLength": 1}},
}

QUERY_FORMS: Final[dict[str, Json]] = {
    f"{model}.{name}": form
    for model in ("EventsQuery", "EventStreamQuery")
    for name, form in (
        ("since", {"pattern": "^evt_[0-9]{1,18}$"}),
        (
            "types",
            {
                "description": (
                    "Types, or type.subtype, separated by commas: "
                    f"{', '.join(sorted(EVENT_FILTERS))}. Another name matches nothing, and the page has a warning."
                )
            },
        ),
    )
}

IDEMPOTENCY_KEY: Final[Json] = {
    "name": wire_headers.IDEMPOTENCY_KEY_HEADER,
    "in": "header",
    "required": False,
    "description": (
        "The same key with the same body gets the first response again, for 7 days. 1 to 255 visible ASCII characters."
    ),
    "schema": {"type": "string", "minLength": 1, "maxLength": wire_headers.IDEMPOTENCY_KEY_MAX, "pattern": "^[!-~]+$"},
}
EXPIRES_AFTER: Final[Json] = {
    "name": wire_headers.EXPIRES_AFTER_HEADER,
    "in": "header",
    "required": False,
    "description": (
        "Unix milliseconds on the service's clock. The service refuses a request that it would execute later; the"
        " refusal is final."
    ),
    "schema": {"type": "integer", "minimum": 0, "maximum": 9_999_999_999_999_999},
}
CONFIRM: Final[Json] = {
    "name": wire_headers.CONFIRM_HEADER,
    "in": "header",
    "required": False,
    "description": (
        "The confirmToken of a plan with the same order as the schedule. Without such an open plan the service arms"
        " nothing."
    ),
    "schema": {"type": "string", "minLength": 8, "maxLength": 128, "pattern": "^[!-~]+$"},
}
LAST_EVENT_ID: Final[Json] = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "The id of the last event that the client read; it takes precedence over since.",
    "schema": {"type": "string", "pattern": "^evt_[0-9]{1,18}$"},
}
STREAM_EXAMPLE: Final = (
    "retry: 2000\n\nid: evt_000000000002\nevent: fill\ndata:"
    ' {"id":"evt_000000000002","type":"fill","subtype":"entry","ts":1767225600000,"data":{}}\n\n: ping\n\nevent:'
    ' error\ndata: {"error":{"code":"unauthorized","message":"the API key has been revoked","requestId":"req_0"}}\n\n'
)
VERSION: Final[Json] = {
    "name": wire_headers.API_VERSION_HEADER,
    "in": "header",
    "required": False,
    "description": "The date version of the interface that the client was written for.",
    "schema": {"type": "string", "enum": [wire_headers.API_VERSION]},
}

# Headers of every response.
ANSWER_HEADERS: Final[dict[str, Json]] = {
    wire_headers.API_VERSION_HEADER: {"description": "Date version of the interface.", "schema": {"type": "string"}},
    wire_headers.REQUEST_ID_HEADER: {
        "description": "The request's id, as in error.requestId.",
        "schema": {"type": "string"},
    },
    "RateLimit": {"description": "What is left of the rate limit.", "schema": {"type": "string"}},
    "RateLimit-Policy": {"description": "The rate limit of this route.", "schema": {"type": "string"}},
}
RETRY_AFTER: Final[Json] = {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 0}}
CHALLENGE: Final[Json] = {
    "description": "The authentication scheme that the service requires.",
    "schema": {"type": "string"},
}
REPLAYED: Final[Json] = {"description": "true when this response repeats the first one.", "schema": {"type": "string"}}

# The values that the service sends in text fields; the models accept any text.
_SIDES: Final = ("long", "short")
_INTENTS: Final = ("open", "close")
_BOOKS: Final = ("main", "stocks", "events")
_FIRED: Final = ("flatten", "block_opens", "cancel_orders")
WORDS: Final[dict[str, tuple[str, ...]]] = {
    "Position.side": _SIDES,
    "Position.book": _BOOKS,
    "Trade.side": _SIDES,
    "Trade.intent": _INTENTS,
    "Trade.source": ("dashboard", "agent", "api"),
    "Trade.kind": (
        "market",
        "limit",
        "close",
        "stop_loss",
        "take_profit",
        "guardian",
        "kill",
        "liquidation",
        "settlement",
    ),
    "Trade.fillStatus": ("none", "partial", "filled"),
    "Trade.status": ("open", "done", "canceled"),
    "Order.side": _SIDES,
    "Order.intent": _INTENTS,
    "Order.kind": ("limit", "stop_loss", "take_profit"),
    "Order.status": ("open", "armed"),
    "Guardian.scope": ("account", "position"),
    "Guardian.status": ("armed", "latched"),
    "Guardian.onMiss": _FIRED,
    "Guardian.action": _FIRED,
    "Key.source": ("sandbox", "session", "device", "key"),
    "Webhook.status": ("active", "disabled"),
    "Market.assetClass": ("stocks", "bonds", "crypto", "prediction"),
    "Market.book": _BOOKS,
    "Market.status": ("open", "closed", "halted", "settled"),
    "Market.marginMode": ("cross", "isolated", "full"),
    "Market.external": ("open", "closed"),
    "Health.status": ("ok", "restricted", "liquidating"),
    "Health.venue": ("ok", "degraded", "halted"),
    "Rate.scope": ("key", "account", "ip"),
    "StatusClock.mode": ("real", "accelerated", "manual"),
    "ClockState.mode": ("real", "accelerated", "manual"),
    "Plan.side": _SIDES,
    "Plan.intent": _INTENTS,
    "Plan.type": ("market", "limit"),
    "Warning_.code": (
        "leverage_clamped",
        "partial_depth",
        "wide_spread",
        "external_closed",
        "near_liquidation",
        "unprotected",
        "rounded",
        "unknown_type",
        "secret_converted",
    ),
    "WalletNavResult.range": ("1d", "7d", "30d", "all"),
    "Event.type": ("fill", "order", "trigger", "guardian", "funding", "liquidation", "settlement", "account"),
    "ErrorBody.code": tuple(CODES),
}


def description(rules: Iterable[Operation[Any]], base_url: str) -> Json:
    """The whole document. It leaves out only the operations without a group."""
    schemas = _Schemas()
    paths: dict[str, Json] = {}
    for rule in rules:
        if rule.group:
            paths.setdefault(rule.path, {})[rule.method.lower()] = _operation(rule, schemas)
    used = {operation["tags"][0] for methods in paths.values() for operation in methods.values()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Trading Service Interface",
            "version": wire_headers.DESCRIPTION_VERSION,
            "summary": "Stocks, bonds, crypto and event markets for agents and people.",
            "description": (
                "A sandbox: balances are play money. Amounts, prices and sizes in responses are strings. Times are"
                " unix milliseconds on the service's clock. Every failure has an error object. Date version"
                f" {wire_headers.API_VERSION}, limits version {wire_headers.LIMITS_VERSION}."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": base_url}],
        "externalDocs": {"url": f"{base_url}/docs"},
        "tags": [{"name": group.name, "description": group.text} for group in GROUPS if group.name in used],
        "paths": paths,
        "webhooks": {"event": {"post": _delivery(schemas)}},
        "components": {
            "schemas": schemas.finished(),
            "headers": ANSWER_HEADERS,
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": (
                        "An API key or a session's access token: Authorization: Bearer <API_KEY or ACCESS_TOKEN>. A"
                        " session ends after 30 days."
                    ),
                },
                "control": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The control token of this sandbox; the local control socket needs none.",
                },
            },
        },
    }


def _delivery(schemas: _Schemas) -> Json:
    """A request that the service sends to a webhook."""
    signed = {
        signing.ID_HEADER: "The event's id; the same at each try.",
        signing.TIMESTAMP_HEADER: "Unix seconds of this try.",
        signing.SIGNATURE_HEADER: "v1, and the base64 of HMAC-SHA256 over ID.TIMESTAMP.BODY. Standard Webhooks 1.0.",
    }
    return {
        "summary": "An event of the account",
        "description": WEBHOOK_NOTE,
        "parameters": [
            {"name": name, "in": "header", "required": True, "description": text, "schema": {"type": "string"}}
            for name, text in signed.items()
        ],
        "requestBody": {"required": True, "content": {JSON: {"schema": schemas.ref(Event)}}},
        "responses": {"2XX": {"description": "The delivery is done."}, "410": {"description": "Disables the webhook."}},
    }


def _operation(rule: Operation[Any], schemas: _Schemas) -> Json:
    operation: Json = {
        "operationId": rule.name,
        "tags": [rule.group],
        "summary": rule.title,
        "parameters": _parameters(rule, schemas),
        "responses": {"200": _success(rule, schemas)} | _failures(rule, schemas),
    }
    if rule in NOTES:
        operation["description"] = NOTES[rule]
    needs: list[Json] = {Access.NONE: [], Access.CONTROL: [{"control": []}]}.get(rule.access, [{"bearer": []}])
    operation["security"] = needs
    if rule.access not in (Access.NONE, Access.CONTROL):
        operation["x-scope"] = NEEDS.get(rule.access, rule.access.value)
    if rule.body is not None and rule.body is not EmptyRequest and rule.body.model_fields:
        required = any(field.is_required() for field in rule.body.model_fields.values())
        content: Json = {"schema": schemas.ref(rule.body)}
        example = EXAMPLES.get(rule.body.__name__)
        if example is not None:
            content["example"] = example
        operation["requestBody"] = {"required": required, "content": {JSON: content}}
    return operation


NEEDS: Final[dict[Access, str]] = {
    Access.READ: "read",
    Access.TRADE: "trade",
    Access.SHRINK: "trade; trade:close_only if the request only shrinks a position; outcomes for event markets",
    Access.OWNER: "the owner",
    Access.ANY: "any credential",
}


def _parameters(rule: Operation[Any], schemas: _Schemas) -> list[Json]:
    parameters: list[Json] = []
    for name in rule.places:
        known = PATH_PARAMETERS.get(name, {"schema": {"type": "string", "minLength": 1}})
        parameters.append({"name": name, "in": "path", "required": True, **known})
    if rule.query is not EmptyQuery:
        model = schemas.inline(rule.query)
        _describe_request(rule.query, model)
        must = set(model.get("required", ()))
        for name, schema in model.get("properties", {}).items():
            form = schema | QUERY_FORMS.get(f"{rule.query.__name__}.{name}", {})
            parameters.append({"name": name, "in": "query", "required": name in must, "schema": form})
    if rule.keyed:
        parameters += [IDEMPOTENCY_KEY, EXPIRES_AFTER]
    if rule.body is GuardianRequest:
        parameters.append(CONFIRM)
    if rule.media == STREAM:
        parameters.append(LAST_EVENT_ID)
    return [*parameters, VERSION]


def _success(rule: Operation[Any], schemas: _Schemas) -> Json:
    headers: Json = {name: {"$ref": f"#/components/headers/{name}"} for name in ANSWER_HEADERS}
    if rule.keyed:
        headers[wire_headers.IDEMPOTENCY_REPLAYED_HEADER] = REPLAYED
    if rule.answer is Resource:
        content: Json = {"schema": {"type": "object"} if rule.media == JSON else {"type": "string"}}
        if rule.media == STREAM:
            content["schema"]["description"] = (
                "Server-sent events. In each message id is the event's id, event is its type and data is one Event. The"
                " last message may have event: error, no id, and an ErrorEnvelope as its data; then the stream ends."
            )
            content["example"] = STREAM_EXAMPLE
            # The schema of data by event name; `*` is every other name.
            content["x-event-data"] = {"error": schemas.ref(ErrorEnvelope), "*": schemas.ref(Event)}
        return {"description": rule.title, "headers": headers, "content": {rule.media: content}}
    refs = [schemas.ref(model) for model in (rule.answer, rule.plan) if model is not None]
    content = {"schema": refs[0] if len(refs) == 1 else {"anyOf": refs}}
    example = examples().get(rule.name)
    if example is not None:
        content["example"] = example.answer
    return {"description": rule.title, "headers": headers, "content": {JSON: content}}


def codes_of(rule: Operation[Any]) -> list[str]:
    """Every error code of this operation, in the order of CODES."""
    codes = {"invalid_input", "internal_error", "service_unavailable", *rule.codes}
    if rule.access is not Access.NONE:
        codes |= {"unauthorized"}
    if rule.access not in (Access.NONE, Access.CONTROL):
        codes |= {"session_expired", "forbidden"}
    if rule.policy is not None:
        codes.add("rate_limited")
    if rule.keyed:
        codes.add("idempotency_conflict")
    return [code for code in CODES if code in codes]


def _failures(rule: Operation[Any], schemas: _Schemas) -> Json:
    by_status: dict[int, list[str]] = {}
    for code in codes_of(rule):
        statuses = {CODES[code].status}
        if code == "idempotency_conflict":
            statuses = {status for status, _ in CONFLICTS.values()}
        if code == "trade_failed":
            statuses = {422, 502}
        if code == "not_found" and rule in GONE:
            statuses = {404, 410}
        if code == "invalid_input" and rule.body is not None:
            statuses = {400, 413, 415}
        for status in statuses:
            by_status.setdefault(status, []).append(code)
    return {str(status): _failure(status, codes, schemas) for status, codes in sorted(by_status.items())}


# a cursor that a reset wiped
GONE: Final = {interface.EVENTS, interface.EVENT_STREAM}


def _failure(status: int, codes: list[str], schemas: _Schemas) -> Json:
    headers: Json = {name: {"$ref": f"#/components/headers/{name}"} for name in ANSWER_HEADERS}
    if status in (429, 503):
        headers["Retry-After"] = RETRY_AFTER
    if status == 401:
        headers["WWW-Authenticate"] = CHALLENGE
    return {
        "description": " or ".join(codes),
        "headers": headers,
        "content": {JSON: {"schema": schemas.ref(ErrorEnvelope)}},
    }


class _Writer(GenerateJsonSchema):
    """pydantic's schema generator. A field without a JSON schema accepts any value until `_take` sets its schema."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Json:
        return {}

    def normalize_name(self, name: str) -> str:
        return schema_name(super().normalize_name(name))


class _Schemas:
    """Collects the schemas of the models that the description uses."""

    def __init__(self) -> None:
        self._schemas: dict[str, Json] = {}

    def ref(self, model: type[BaseModel]) -> Json:
        """A reference to a model's schema. Adds the schema to the components."""
        name = schema_name(model.__name__)
        if name not in self._schemas:
            self._take(name, self.inline(model))
        return {"$ref": REF.format(model=name)}

    def inline(self, model: type[BaseModel]) -> Json:
        """A model's schema. Adds the schemas that it refers to to the components."""
        is_request = issubclass(model, Request)
        inlined = model.model_json_schema(
            by_alias=True,
            ref_template=REF,
            schema_generator=_Writer,
            mode="validation" if is_request else "serialization",
        )
        for name, part in inlined.pop("$defs", {}).items():
            self._take(name, part)
        return inlined

    def _take(self, name: str, schema: Json) -> None:
        if name in self._schemas:
            return
        self._schemas[name] = schema
        if name == "Event":
            data = list(dict.fromkeys(DATA_OF.values()))
            schema["properties"]["data"] = {"anyOf": [self.ref(model) for model in data]}

    def finished(self) -> dict[str, Json]:
        models = _models(Request) | _models(Resource)
        for name, schema in self._schemas.items():
            model = models.get(name)
            if model is not None and issubclass(model, Request):
                _describe_request(model, schema)
            elif model is not None:
                _describe_resource(model, schema)
        return {name: _without_const(schema) for name, schema in sorted(self._schemas.items())}


def _without_const(part: Any) -> Any:
    """The schema with each `const` as an `enum` of one, which generators of clients read. `x-rules` is not for them."""
    if isinstance(part, list):
        return [_without_const(item) for item in part]
    if not isinstance(part, dict):
        return part
    plain = {
        name: inner if name == "x-rules" else _without_const(inner) for name, inner in part.items() if name != "const"
    }
    return plain | ({"enum": [part["const"]]} if "const" in part else {})


def _models(root: type[BaseModel]) -> dict[str, type[BaseModel]]:
    models: dict[str, type[BaseModel]] = {}
    for model in root.__subclasses__():
        models |= {schema_name(model.__name__): model} | _models(model)
    return models


def _describe_request(model: type[Request], schema: Json) -> None:
    """Add the rules that the models do not state: where null is allowed, and rules between fields."""
    for name, part in schema.get("properties", {}).items():
        part.pop("title", None)
        if part.get("default", 0) is None:
            del part["default"]
        if name not in model.nullable:
            _drop_null(part)
    schema.pop("title", None)
    rules = RULES.get(model.__name__)
    if rules is not None:
        # Generators of clients read neither rules between fields nor boolean schemas, so the rules stand beside the
        # schema.
        schema["x-rules"] = rules
    if model.__name__ == "SettingsRequest":
        for part in schema["properties"].values():
            part["anyOf"] += [
                {"type": "string", "enum": list(CLEARS_CAP)},
                {"type": "string", "maxLength": 64, **_ABOVE_ZERO},
            ]


def _drop_null(part: Json) -> None:
    choices = part.get("anyOf")
    if choices is None:
        return
    remaining = [choice for choice in choices if choice != {"type": "null"}]
    if len(remaining) == 1:
        del part["anyOf"]
        part.update(remaining[0])
    else:
        part["anyOf"] = remaining


def _describe_resource(model: type[BaseModel], schema: Json) -> None:
    """Mark every field as required, except the fields that the model may leave out."""
    required = []
    for name, field in model.model_fields.items():
        alias = field.serialization_alias or field.alias or name
        part = schema["properties"][alias]
        part.pop("title", None)
        part.pop("default", None)
        if field.exclude_if is None:
            required.append(alias)
        else:
            _drop_null(part)
        words = WORDS.get(f"{model.__name__}.{alias}") or next(
            (WORDS[key] for base in model.__mro__ if (key := f"{base.__name__}.{alias}") in WORDS), None
        )
        if words is not None:
            _hold_to(part, words)
    schema["required"] = required
    schema.pop("title", None)


def _hold_to(part: Json, words: tuple[str, ...]) -> None:
    for choice in part.get("anyOf", [part]):
        if choice.get("type") == "string":
            choice["enum"] = list(words)


def _exactly_one(*names: str) -> Json:
    return {"oneOf": [{"required": [name]} for name in names]}


def _at_most_one(*names: str) -> list[Json]:
    pairs = [(a, b) for at, a in enumerate(names) for b in names[at + 1 :]]
    return [{"not": {"required": [a, b]}} for a, b in pairs]


_ABOVE_ZERO: Final[Json] = {"pattern": r"^(0*[1-9][0-9]*(\.[0-9]+)?|0+\.[0-9]*[1-9][0-9]*)$"}


def _guardian_kinds(*, market_implied: bool) -> Json:
    """One branch per guardian type with its fields, from the table that validates requests."""
    own = [name for name in aliases(GuardianFields) if name not in ("type", "scope")]
    kinds: list[Json] = []
    for kind, rule in GUARDIAN_RULES.items():
        allowed = rule.fields | ({"market"} if market_implied else set())
        properties: Json = {name: False for name in own if name not in allowed}
        branch: Json = {"properties": {"type": {"const": kind}, "scope": {"const": rule.scope}} | properties}
        branch["required"] = ["type", *(name for name in rule.required if not (market_implied and name == "market"))]
        if rule.one_of:
            branch |= _exactly_one(*rule.one_of)
        kinds.append(branch)
    return {"anyOf": kinds}


# Rules between the fields of one request, as far as JSON Schema can say them.
RULES: Final[dict[str, Json]] = {
    "OrderRequest": {
        **_exactly_one("usdAmount", "size"),
        "anyOf": [
            {"properties": {"type": {"const": "market"}, "size": _ABOVE_ZERO, "limitPx": False}},
            {
                "properties": {
                    "type": {"const": "limit"},
                    "size": _ABOVE_ZERO,
                    "limitPx": _ABOVE_ZERO,
                    "maxSlippageBps": False,
                    "allowPartial": {"const": False},
                },
                "required": ["type", "limitPx"],
            },
        ],
    },
    "BracketRequest": {"anyOf": [{"required": ["stopLoss"]}, {"required": ["takeProfit"]}]},
    "LegRequest": {
        "allOf": [{"properties": {"pct": {"exclusiveMinimum": 0}, "px": _ABOVE_ZERO}}],
        **_exactly_one("pct", "px", "r"),
    },
    "CloseRequest": {"allOf": [{"properties": {"size": _ABOVE_ZERO}}, *_at_most_one("fraction", "usdAmount", "size")]},
    "SuggestRequest": {"allOf": [{"properties": {"size": _ABOVE_ZERO}}]},
    "KeyRequest": {"allOf": [{"properties": {"scopes": {"uniqueItems": True}}}]},
    "SettingsRequest": {"minProperties": 1},
    "AdvanceRequest": _exactly_one("ms", "toMs", "toNext"),
    "GuardianRequest": _guardian_kinds(market_implied=False),
    "InlineGuardian": _guardian_kinds(market_implied=True),
}
