"""The documentation pages, generated from the OpenAPI description, the examples and the table of errors. They work
offline.

Only the panels that send a request need JavaScript, so the script adds them; everything else works without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from bot.errors import CODES
from bot.service.bodies.responses import CONFLICTS
from bot.service.docs.example_requests import LANGUAGES, HttpRequest
from bot.service.docs.examples import Example, examples
from bot.service.docs.html import page, text

Json = dict[str, Any]

SCRIPT: Final = Path(__file__).with_name("try_it.js").read_text(encoding="utf-8")

# (meaning, what to do) of each code.
MEANINGS: Final[dict[str, tuple[str, str]]] = {
    "invalid_input": (
        "The request is malformed or a field breaks a rule.",
        "Correct the fields that details.fields names. 405, 413 and 415 keep their own status.",
    ),
    "unauthorized": (
        "The credential is missing, malformed, unknown or revoked.",
        "Send Authorization: Bearer with a valid key. To get a key, open a sandbox account.",
    ),
    "session_expired": ("The session, key or device code has expired.", "Sign in again, or create a new key."),
    "forbidden": (
        "The credential lacks the scope, or the operation is for the owner only.",
        (
            "Use a key with the scope in details.requiredScope. While a person has not approved a device code, the"
            " request is retryable."
        ),
    ),
    "key_limit_exceeded": (
        "The order would exceed a cap of the key.",
        "Order less, or use another key. fix has the largest allowed value.",
    ),
    "not_found": (
        (
            "No such route, market, order, guardian or id on this account. 410: the event cursor was wiped, or is after"
            " the newest event."
        ),
        "Check the id. After 410 resync from fix.lastEventId.",
    ),
    "rate_limited": ("Too many requests.", "Wait Retry-After seconds, then send the same request again."),
    "insufficient_funds": (
        "The free margin is too small for this order.",
        "Order less, or add funds. fix has the largest allowed value.",
    ),
    "limit_exceeded": (
        "A self-limit, a platform limit or a guardian blocks this.",
        "See details: resetsAt for daily caps, guardianId if a guardian blocks new positions.",
    ),
    "below_min_notional": (
        "The order is below the market's minNotionalUsd, mostly 10 USD.",
        "fix has the smallest allowed value.",
    ),
    "leverage_too_high": (
        "The leverage is higher than the market or the key allows.",
        "fix has the largest allowed leverage. With leverageMode clamp the service uses that value.",
    ),
    "insufficient_depth": (
        "The order book cannot fill this order within the slippage limit.",
        "Retry, order less, allow more slippage, or allow a partial fill.",
    ),
    "market_closed": ("The market is closed.", "details.opensAt says when it opens, if that is known."),
    "plan_stale": (
        (
            "The plan has expired, the price has drifted, the depth is gone, or an earlier confirm of the plan was"
            " refused."
        ),
        "Plan again.",
    ),
    "idempotency_conflict": (
        "The key or token was used before, or a request with it is running.",
        "See details.reason in the table below.",
    ),
    "trade_failed": (
        (
            "The order was not executed (422), or its outcome is unknown (502). Only a service that trades at an"
            " outside venue responds this; the sandbox never does."
        ),
        "After 502 send the same key again, never a new key.",
    ),
    "service_unavailable": (
        (
            "The service is stopping after an internal error, was restored during the request, or cannot read a"
            " snapshot. Nothing was done."
        ),
        "Wait Retry-After seconds, then send the same request again.",
    ),
    "internal_error": (
        "The service failed. The outcome may be unknown.",
        "Send the same request with the same key again.",
    ),
}

# the address of the service that the examples were recorded from
RECORDED_BASE: Final = "http://127.0.0.1:8700"

REASONS: Final = {
    "in_flight": "A copy of this request is running: retry.",
    "fingerprint": "The key was used for another request: use a new key for a new request.",
    "used_token": "The confirmToken was used: details.tradeId is the trade that it made.",
    "account_reset": "The account was reset after the key was used: resync.",
    "expired": "X-Expires-After had passed: decide again.",
}

START: Final = """curl -X POST {base}/v1/sandbox/accounts -H 'Content-Type: application/json' -d '{{}}'

curl -X POST {base}/v1/orders -H 'Authorization: Bearer <apiKey>' \\
  -H 'Content-Type: application/json' -d '{{
  "market": "perp:BTC", "side": "long", "usdAmount": 100,
  "bracket": {{"stopLoss": {{"pct": 2}}, "takeProfit": {{"r": 2}}}},
  "requireProtection": true, "dryRun": true
}}'

curl -X POST {base}/v1/orders/confirm -H 'Authorization: Bearer <apiKey>' \\
  -H 'Idempotency-Key: my-first-order' -H 'Content-Type: application/json' -d '{{"confirmToken": "<confirmToken>"}}'"""


Groups = dict[str, list[tuple[str, str, Json]]]


def _groups(document: Json) -> Groups:
    groups: Groups = {tag["name"]: [] for tag in document["tags"]}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            groups[operation["tags"][0]].append((method, path, operation))
    return groups


def _section(group: str, operations: list[tuple[str, str, Json]], document: Json, head: str) -> str:
    notes = {tag["name"]: tag["description"] for tag in document["tags"]}
    body = "".join(_operation(method, path, operation, document) for method, path, operation in operations)
    return f'<{head} id="{_anchor(group)}">{text(group)}</{head}><p class="soft">{text(notes[group])}</p>{body}'


def section_pages(document: Json) -> dict[str, str]:
    """A page for each group of operations, by the last part of its address."""
    groups = _groups(document)
    contents = _contents(groups)
    return {
        _anchor(group): _layout(group, _section(group, operations, document, "h1"), contents, languages=True)
        for group, operations in groups.items()
    }


def docs_page(document: Json) -> str:
    """All operations by group, each with its parameters, body, response and failures."""
    info = document["info"]
    base = document["servers"][0]["url"]
    groups = _groups(document)
    body = [
        f"<h1>{text(info['title'])}</h1>",
        f'<p class="soft">Version {text(info["version"])} &middot; {_MACHINES}</p>',
        f"<p>{text(info['description'])}</p>",
        f"<h2 id=start>In one minute</h2><pre tabindex=0><code>{text(START.format(base=base))}</code></pre>",
        "<h2 id=conventions>Conventions</h2>",
        _CONVENTIONS,
    ]
    body += [_section(group, operations, document, "h2") for group, operations in groups.items()]
    return _layout("Documentation", "".join(body), _contents(groups), languages=True)


_MACHINES: Final = (
    '<a href="/openapi.json">openapi.json</a> &middot; <a href="/llms.txt">llms.txt</a> &middot; <a'
    ' href="/agent.json">agent.json</a>'
)

_CONVENTIONS: Final = (
    "<ul><li>The examples are real answers of this service. Lists show at most two entries, and"
    " <code>&lt;apiKey&gt;</code> and its like stand for values of an earlier answer. <b>Try it</b> sends a request to"
    ' this service and fills them in: begin with <a href="#post_sandbox_accounts">a new account</a>.</li><li>Amounts,'
    " prices and sizes in responses are strings: <code>[-]digits[.digits]</code>. Times are unix milliseconds on the"
    " service's clock. If that clock is not the real clock, every response has <code>X-Sandbox-Clock</code>.</li><li>A"
    " market is <code>perp:BTC</code>, <code>event:SLUG</code> or the bare coin, in any"
    " case.</li><li><code>Idempotency-Key</code> on orders, confirm, close, guardians, webhooks, keys and kill: the"
    " same key with the same body gets the first response again, with <code>Idempotency-Replayed:"
    " true</code>.</li><li><code>X-Expires-After</code>: the service refuses a request that it would execute"
    " later.</li><li>The service refuses unknown fields and query parameters and names them. It accepts null only in"
    ' fields that say so.</li><li>Every failure has an <a href="/docs/models#ErrorEnvelope">error object</a>; see <a'
    ' href="/docs/errors">all codes</a>.</li><li>Every response has <code>X-API-Version</code>,'
    " <code>X-Request-Id</code>, <code>RateLimit</code> and <code>RateLimit-Policy</code>.</li></ul>"
)


def errors_page(document: Json) -> str:
    """Every error code with its status, its meaning and what to do. Each row has the anchor that docsUrl links to."""
    rows = []
    for code, row in CODES.items():
        meaning, move = MEANINGS[code]
        status = "see reason" if code == "idempotency_conflict" else str(row.status)
        again = "yes" if row.retryable else "no"
        rows.append(
            f'<tr id="{text(code)}"><td><code>{text(code)}</code></td><td data-label="Status">{status}</td><td'
            f' data-label="Retry">{again}</td>'
            f'<td>{text(meaning)}<br><span class="soft">{text(move)}</span></td></tr>'
        )
    reasons = "".join(
        f'<tr><td><code>{text(reason)}</code></td><td data-label="Status">{status}</td><td'
        f' data-label="Retry">{"yes" if again else "no"}</td>'
        f"<td>{text(REASONS[reason])}</td></tr>"
        for reason, (status, again) in CONFLICTS.items()
    )
    body = (
        "<h1>Error codes</h1><p>Every failure body has an <code>error</code> object: <code>code</code>,"
        " <code>message</code>, <code>requestId</code>, "
        "<code>retryable</code>, and where they apply <code>orderSubmitted</code>, <code>details</code>,"
        " <code>fix</code>. "
        "<code>retryable</code> says whether you may send the same request again.</p>"
        '<div class="scroll" tabindex="0"><table class="blocks"><tr><th>Code<th>Status<th>Retry<th>Meaning and what to'
        f" do</tr>{''.join(rows)}</table></div>"
        "<h2 id=reasons>Reasons of idempotency_conflict</h2>"
        '<div class="scroll" tabindex="0"><table class="blocks"><tr><th>Reason<th>Status<th>Retry<th>Meaning'
        f"</tr>{reasons}</table></div>"
    )
    links = "".join(f'<li><a href="#{code}">{code}</a></li>' for code in CODES)
    return _layout("Error codes", body, f'<div class="group">Codes</div><ul>{links}</ul>')


def models_page(document: Json) -> str:
    """Every body with its fields."""
    schemas: dict[str, Json] = document["components"]["schemas"]
    body = [
        (
            "<h1>Bodies</h1><p>The service refuses a request with an unknown field. Responses may gain fields; a client"
            " must ignore the fields that it does not know.</p>"
        )
    ]
    for name, schema in schemas.items():
        words = schema.get("description", "")
        body.append(
            f'<h2 id="{text(name)}">{text(_shown(name))}</h2><p class="soft">{text(words)}</p>{_fields(schema)}'
        )
    links = "".join(f'<li><a href="#{text(name)}">{text(_shown(name))}</a></li>' for name in schemas)
    return _layout("Bodies", "".join(body), f'<div class="group">Bodies</div><ul>{links}</ul>')


# ── Parts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _layout(title: str, body: str, contents: str, *, languages: bool = False) -> str:
    """The content comes first, so that a narrow screen begins with it.

    Radio buttons before it choose the language of all examples.
    """
    links = (
        '<ul><li><a href="/docs">Everything on one page</a></li><li><a href="/docs/errors">Error codes</a></li>'
        '<li><a href="/docs/models">Bodies</a></li></ul>'
    )
    nav = (
        '<nav id="contents"><a class="name" href="/docs">Trading Service</a><span'
        f' class="soft">Sandbox</span>{links}{contents}</nav>'
    )
    radios = "".join(
        f'<input class="lang" type="radio" name="lang" id="lang-{key}" aria-label="Examples in'
        f' {name}"{" checked" if key == "curl" else ""}>'
        for key, (name, _) in LANGUAGES.items()
    )
    main = f'<main><a class="to-contents" href="#contents">Contents</a>{body}</main>'
    layout = f'{radios if languages else ""}<div class="layout">{main}{nav}</div>'
    return page(f"{title} \u2014 Trading Service Interface", layout, script=SCRIPT if languages else "")


def _contents(groups: Groups) -> str:
    parts = []
    for group, operations in groups.items():
        page = f"/docs/sections/{_anchor(group)}"
        rows = "".join(
            f'<li><a href="{page}#{operation["operationId"]}"'
            f' title="{text(operation["summary"])}">{_verb(method)}{text(path.removeprefix("/v1"))}</a></li>'
            for method, path, operation in operations
        )
        parts.append(f'<div class="group"><a href="{page}">{text(group)}</a></div><ul>{rows}</ul>')
    return "".join(parts)


def _verb(method: str) -> str:
    return f'<span class="verb {method}">{method.upper()}</span>'


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def _operation(method: str, path: str, operation: Json, document: Json) -> str:
    scope = operation.get("x-scope")
    if scope is None:
        scope = "control token" if operation["security"] else "no credential"
    parts = [f"<h3>{text(operation['summary'])}</h3>"]
    if "description" in operation:
        parts.append(f"<p>{text(operation['description'])}</p>")
    parameters = [parameter for parameter in operation["parameters"] if parameter["in"] != "header"]
    if parameters:
        parts.append(_label("Parameters") + _rows([(p["name"], p["schema"], p["required"]) for p in parameters]))
    if "requestBody" in operation:
        schema = _resolved(operation["requestBody"]["content"]["application/json"]["schema"], document)
        parts.append(_label("Body") + _fields(schema))
    parts.append(_label("Response") + f"<p>{_answer(operation['responses']['200'])}</p>")
    failures = [
        f"<b>{status}</b> "
        + ", ".join(f'<a href="/docs/errors#{code}">{code}</a>' for code in response["description"].split(" or "))
        for status, response in operation["responses"].items()
        if status != "200"
    ]
    parts.append(f"<details><summary>Failures</summary><p>{'<br>'.join(failures)}</p></details>")
    example = examples().get(operation["operationId"])
    base = document["servers"][0]["url"]
    shown = "" if example is None else _example(method.upper(), example, credential_of(operation), base)
    return (
        f'<section class="op" id="{operation["operationId"]}"><div class="head">{_verb(method)}<span'
        f' class="path">{text(path)}</span><span class="needs">{text(scope)}</span></div><div'
        f' class="body"><div>{"".join(parts)}</div>{shown}</div></section>'
    )


def credential_of(operation: Json) -> str:
    """The name of the credential that an example sends; empty if the operation needs none."""
    if {"control": []} in operation["security"]:
        return "controlToken"
    if not operation["security"]:
        return ""
    return "accessToken" if operation.get("x-scope") == "the owner" else "apiKey"


def example_request(method: str, example: Example, credential: str, base: str) -> HttpRequest:
    """The request of an example, with a placeholder for the credential."""
    headers = {"Authorization": f"Bearer <{credential}>"} if credential else {}
    return HttpRequest(method, base + example.path, headers, example.body)


def _example(method: str, example: Example, credential: str, base: str) -> str:
    """The request in each language, a place for the panel that sends it, and the response."""
    request = example_request(method, example, credential, base)
    tabs = "".join(f'<label for="lang-{key}">{name}</label>' for key, (name, _) in LANGUAGES.items())
    samples = "".join(
        f'<pre class="sample {key}" tabindex="0"><code>{text(write(request))}</code></pre>'
        for key, (_, write) in LANGUAGES.items()
    )
    body = "" if example.body is None else f' data-body="{text(json.dumps(example.body, indent=2))}"'
    place = (
        f'<div class="try" data-method="{method}" data-path="{text(example.path)}"'
        f' data-credential="{credential}"{body}></div>'
    )
    written = json.dumps(example.answer, indent=2, ensure_ascii=False).replace(RECORDED_BASE, base)
    answer = f'<pre tabindex="0"><code>{text(written)}</code></pre>'
    return f'<div class="example"><div class="tabs">{tabs}</div>{samples}{place}{_label("Response 200")}{answer}</div>'


def _label(words: str) -> str:
    return f'<div class="label">{words}</div>'


def _answer(success: Json) -> str:
    kind, content = next(iter(success["content"].items()))
    schema = content["schema"]
    if kind != "application/json":
        return f"<code>{text(kind)}</code>"
    return _kind(schema)


def _fields(schema: Json) -> str:
    must = set(schema.get("required", ()))
    properties = schema.get("properties", {})
    return _rows([(name, part, name in must) for name, part in properties.items()]) if properties else ""


def _rows(fields: list[tuple[str, Json, bool]]) -> str:
    rows = "".join(
        f"<tr><td><code>{text(name)}</code>{' <span class=must>required</span>' if must else ''}</td>"
        f'<td>{_kind(part)}</td><td class="soft">{text(_bounds(part))}</td></tr>'
        for name, part, must in fields
    )
    return f'<div class="scroll" tabindex="0"><table><tr><th>Name<th>Type<th>Bounds</tr>{rows}</table></div>'


def _kind(schema: Json) -> str:
    """The type as text; a body is a link."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f'<a href="/docs/models#{text(name)}">{text(_shown(name))}</a>'
    for many in ("anyOf", "oneOf"):
        if many in schema:
            return " or ".join(dict.fromkeys(_kind(part) for part in schema[many]))
    if "enum" in schema:
        return " ".join(f"<code>{text(json.dumps(word))}</code>" for word in schema["enum"])
    if "const" in schema:
        return f"<code>{text(json.dumps(schema['const']))}</code>"
    kind = schema.get("type", "any")
    if kind == "array":
        return f"array of {_kind(schema.get('items', {}))}"
    return text(kind)


def _bounds(schema: Json) -> str:
    """The limits and the default as text."""
    limits: list[str] = []
    for part in [schema, *schema.get("anyOf", ())]:
        low, high = part.get("minimum"), part.get("maximum")
        if "exclusiveMinimum" in part:
            limits.append(f"> {part['exclusiveMinimum']}" + ("" if high is None else f", max {high}"))
        elif low is not None or high is not None:
            limits.append(f"{'' if low is None else low}..{'' if high is None else high}")
        if "maxLength" in part or "minLength" in part:
            limits.append(f"{part.get('minLength', 0)}..{part.get('maxLength', '')} characters")
        if "pattern" in part:
            limits.append(part["pattern"])
        if "maxItems" in part or "minItems" in part:
            limits.append(f"{part.get('minItems', 0)}..{part.get('maxItems', '')} entries")
    if "default" in schema:
        limits.append(f"default {json.dumps(schema['default'])}")
    if "description" in schema:
        limits.append(schema["description"])
    return "; ".join(limits)


def _resolved(schema: Json, document: Json) -> Json:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    resolved = document["components"]["schemas"][reference.rsplit("/", 1)[1]]
    assert isinstance(resolved, dict)
    return resolved


def _shown(name: str) -> str:
    """The name without the underscore that avoids a Python name."""
    return name.rstrip("_")
