"""HTML of the approval page: one form at a time, no script, no external resource.

This module escapes all outside text.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from typing import Final

SCOPES: Final[tuple[tuple[str, str], ...]] = (
    ("read", "See positions, orders, trades and events"),
    ("trade", "Place, change and cancel orders; arm guardians"),
    ("trade:close_only", "Shrink positions; never open or grow one"),
    ("outcomes", "Trade event markets"),
)

_STYLE: Final = """
:root { --ink:#1c2430; --soft:#5b6675; --line:#d9dfe7; --back:#eef1f5; --card:#ffffff; --go:#1f7a4d; --no:#b3261e; \
--note:#fff6dc; --note-ink:#6b4e00; }
@media (prefers-color-scheme: dark) {
  :root { --ink:#e4e8ee; --soft:#98a3b3; --line:#2f3947; --back:#0f141a; --card:#181f28; --go:#1f7a4d; --no:#ff8078; \
--note:#332a12; --note-ink:#f0d79a; }
}
* { box-sizing:border-box; }
body { margin:0; min-height:100vh; display:grid; grid-template-columns:minmax(0,1fr); place-items:center; \
overflow-wrap:anywhere; padding:1.5rem; background:var(--back); color:var(--ink);
  font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif; }
main { width:100%; max-width:27rem; background:var(--card); border:1px solid var(--line); border-radius:14px; \
padding:1.8rem; }
.mark { font-weight:700; color:var(--soft); font-size:.85rem; letter-spacing:.02em; }
h1 { font-size:1.4rem; line-height:1.25; margin:.3rem 0 .5rem; }
h2 { font-size:1rem; margin:1.5rem 0 .2rem; padding-top:1.3rem; border-top:1px solid var(--line); }
p { margin:.3rem 0 .9rem; } .soft { color:var(--soft); font-size:.9rem; }
label { display:block; font-size:.88rem; font-weight:600; margin:.8rem 0 .25rem; }
input[type=text], input[type=tel], input[type=password] { width:100%; font:inherit; padding:.55rem .7rem; border:1px \
solid var(--line); border-radius:8px; background:var(--back); color:var(--ink); }
input.code { font:600 1.35rem/1.3 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace; letter-spacing:.12em; \
text-align:center; text-transform:uppercase; }
input:focus-visible, button:focus-visible { outline:2px solid #2563b8; outline-offset:2px; }
button { font:600 1rem/1.2 inherit; font-family:inherit; padding:.7rem 1rem; border-radius:8px; border:1px solid \
var(--line); background:var(--card); color:var(--ink); cursor:pointer; width:100%; margin-top:1rem; }
button.go { background:var(--go); border-color:var(--go); color:#fff; } button.no { color:var(--no); }
.pair { display:grid; grid-template-columns:1fr 1fr; gap:.8rem; }
dl { display:grid; grid-template-columns:auto minmax(0,1fr); gap:.25rem .9rem; margin:.8rem 0; font-size:.92rem; } dt \
{ color:var(--soft); } dd { margin:0; overflow-wrap:anywhere; }
fieldset { border:1px solid var(--line); border-radius:10px; padding:.5rem .9rem .7rem; margin:1rem 0 0; } legend { \
font-size:.88rem; font-weight:600; padding:0 .3rem; }
.scope { display:grid; grid-template-columns:auto 1fr; gap:0 .6rem; font-weight:400; margin:.45rem 0; } .scope b { \
font-size:.92rem; } .scope span { grid-column:2; color:var(--soft); font-size:.84rem; }
.scope input { margin-top:.3rem; }
.note { background:var(--note); color:var(--note-ink); border-radius:8px; padding:.6rem .8rem; font-size:.92rem; } \
.wrong { border-left:4px solid var(--no); }
"""

_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

HEADERS: Final = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_HASH}'; img-src data:; form-action 'self'; base-uri 'none';"
        " frame-ancestors 'none'"
    ),
    # Not "no-referrer": a browser would then send its forms with Origin null, and the service checks the origin.
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def _page(title: str, inside: str, problem: str | None = None) -> str:
    wrong = "" if problem is None else f'<p class="note wrong" role="alert">{escape(problem)}</p>'
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport"'
        f' content="width=device-width, initial-scale=1"><title>{escape(title)}</title><link rel="icon"'
        f' href="data:,"><style>{_STYLE}</style></head>\n<body><main><div class="mark">Bracketbot'
        f" sandbox</div><h1>{escape(title)}</h1>{wrong}{inside}</main></body></html>\n"
    )


def _form(csrf: str, inside: str) -> str:
    return (
        '<form method="post" action="/device" autocomplete="off"><input type="hidden" name="csrf"'
        f' value="{escape(csrf)}">{inside}</form>'
    )


def _button(step: str, words: str, kind: str = "go") -> str:
    return f'<button class="{kind}" name="step" value="{step}">{escape(words)}</button>'


def enter_code(csrf: str, code: str, problem: str | None = None) -> str:
    """The form for the code that the device shows."""
    field = (
        '<label for="userCode">Code shown on your device</label>'
        '<input class="code" type="text" id="userCode" name="userCode" maxlength="16" required autofocus '
        f'spellcheck="false" autocapitalize="characters" placeholder="XXXX-XXXX" value="{escape(code[:16])}">'
    )
    text = '<p class="soft">Continue only if you started this request yourself and your device shows this code.</p>'
    return _page("Connect a device", text + _form(csrf, field + _button("code", "Continue")), problem)


def sign_in(csrf: str, problem: str | None = None) -> str:
    """The sign-in form: a phone number, or the owner's API key."""
    phone = (
        '<label for="phoneNumber">Phone number</label>'
        '<input type="tel" id="phoneNumber" name="phoneNumber" maxlength="80" placeholder="+44 7911 123456">'
        '<label for="country">Country (not needed if the number begins with +)</label>'
        '<input type="text" id="country" name="country" maxlength="64">' + _button("phone", "Send me a code")
    )
    key = (
        '<label for="apiKey">Owner&#39;s API key</label>'
        '<input type="password" id="apiKey" name="apiKey" maxlength="200" spellcheck="false">'
        + _button("key", "Continue with the key", "plain")
    )
    words = '<h2>No phone?</h2><p class="soft">Whoever has the first API key of a sandbox account is its owner.</p>'
    return _page("Sign in to decide", _form(csrf, phone) + words + _form(csrf, key), problem)


def enter_otp(csrf: str, phone: str, sandbox_code: str | None, problem: str | None = None) -> str:
    """The form for the code that was sent to the phone."""
    shown = (
        ""
        if sandbox_code is None
        else (
            f'<p class="note">The sandbox sends no SMS. The code is <b id="sandboxCode">{escape(sandbox_code)}</b>.</p>'
        )
    )
    field = (
        f'<label for="otp">Six digits sent to {escape(phone)}</label>'
        '<input class="code" type="text" id="otp" name="otp" inputmode="numeric" maxlength="6" required autofocus>'
    )
    return _page("Enter your code", shown + _form(csrf, field + _button("otp", "Sign in")), problem)


def decide(
    csrf: str,
    facts: Sequence[tuple[str, str]],
    *,
    name: str,
    offered: Sequence[str],
    chosen: Sequence[str],
    problem: str | None = None,
) -> str:
    """The decision form: the facts of the request, and which scopes the device gets."""
    rows = "".join(f"<dt>{escape(term)}</dt><dd>{escape(detail)}</dd>" for term, detail in facts)
    boxes = "".join(
        '<label class="scope"><input type="checkbox" name="scope"'
        f' value="{scope}"{" checked" if scope in chosen else ""}><b>{scope}</b><span>{escape(words)}</span></label>'
        for scope, words in SCOPES
        if scope in offered
    )
    fields = (
        '<label for="name">Name of the new key</label>'
        f'<input type="text" id="name" name="name" maxlength="64" value="{escape(name)}">'
        f"<fieldset><legend>What the device may do</legend>{boxes}</fieldset>"
        f'<div class="pair">{_button("deny", "Deny", "no")}{_button("approve", "Approve")}</div>'
    )
    # The Enter key presses the first button of a form. A disabled first button keeps Enter from deciding.
    nothing = "<button disabled hidden></button>"
    return _page("A device asks for a key", f"<dl>{rows}</dl>" + _form(csrf, nothing + fields), problem)


def done(title: str, words: str) -> str:
    return _page(title, f"<p>{escape(words)}</p>")
