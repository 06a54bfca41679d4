"""One request as code that a reader can copy: for curl, Python and JavaScript."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class HttpRequest(NamedTuple):
    """A request. `body` is None if it has none."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: Any


# a longer value is written over several lines
LINE_MAX: Final = 60


def curl(request: HttpRequest) -> str:
    parts = ["curl" if request.method == "GET" else f"curl -X {request.method}"]
    parts[0] += f" {shlex.quote(request.url)}"
    parts += [f"-H {shlex.quote(f'{name}: {value}')}" for name, value in _headers(request).items()]
    if request.body is not None:
        parts.append(f"-d {shlex.quote(_json(request.body, 2))}")
    return " \\\n  ".join(parts)


def python(request: HttpRequest) -> str:
    arguments = [json.dumps(request.method), json.dumps(request.url)]
    if request.headers:
        arguments.append(f"headers={_json(dict(request.headers), 4)}")
    if request.body is not None:
        arguments.append(f"json={_python(request.body)}")
    call = "".join(f"    {argument},\n".replace("\n", "\n    ").removesuffix("    ") for argument in arguments)
    return f"import httpx\n\nresponse = httpx.request(\n{call})\nresponse.raise_for_status()\nprint(response.json())"


def javascript(request: HttpRequest) -> str:
    options = [f"method: {json.dumps(request.method)}"] if request.method != "GET" else []
    if headers := _headers(request):
        options.append(f"headers: {_json(headers, 2)}")
    if request.body is not None:
        options.append(f"body: JSON.stringify({_json(request.body, 2)})")
    more = "".join("\n  " + option.replace("\n", "\n  ") + "," for option in options)
    return (
        f"const response = await fetch({json.dumps(request.url)}{f', {{{more}{chr(10)}}}' if options else ''});\n"
        "if (!response.ok) throw new Error(await response.text());\nconsole.log(await response.json());"
    )


LANGUAGES: Final = {"curl": ("curl", curl), "python": ("Python", python), "javascript": ("JavaScript", javascript)}


def _headers(request: HttpRequest) -> dict[str, str]:
    kind = {} if request.body is None else {"Content-Type": "application/json"}
    return {**request.headers, **kind}


def _json(value: Any, indent: int) -> str:
    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= LINE_MAX else json.dumps(value, ensure_ascii=False, indent=indent)


def _python(value: Any, margin: str = "") -> str:
    """A JSON value as Python writes it, with double quotes."""
    if isinstance(value, dict | list):
        inner = [
            (f"{json.dumps(name)}: " if isinstance(value, dict) else "") + _python(item, margin + "    ")
            for name, item in (value.items() if isinstance(value, dict) else enumerate(value))
        ]
        start, end = "{}" if isinstance(value, dict) else "[]"
        line = f"{start}{', '.join(inner)}{end}"
        if len(line) <= LINE_MAX and "\n" not in line:
            return line
        return f"{start}\n" + "".join(f"{margin}    {part},\n" for part in inner) + margin + end
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
