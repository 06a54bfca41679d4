"""HTML pages with escaped text and one inline style sheet.

No external resource, and no script but one whose hash the page's policy has.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from html import escape
from typing import Final

from starlette.responses import Response

STYLE: Final = """
:root { --ink:#1c2430; --soft:#5b6675; --line:#e3e7ed; --back:#ffffff; --panel:#f6f8fa; --link:#0b5cad; --up:#0a7a45; \
--down:#b3261e; --code:#f1f3f6; }
@media (prefers-color-scheme: dark) {
  :root { --ink:#e4e8ee; --soft:#98a3b3; --line:#2b3441; --back:#12171e; --panel:#181f28; --link:#6cb2ff; \
--up:#4cc38a; --down:#ff8078; --code:#1f2833; }
}
* { box-sizing:border-box; }
html { scroll-padding-top:1rem; }
body { margin:0; background:var(--back); color:var(--ink); font:16px/1.55 system-ui,-apple-system,"Segoe \
UI",Roboto,"Helvetica Neue",Arial,sans-serif; }
a { color:var(--link); text-underline-offset:3px; }
nav a, .ranges a, .to-contents a { text-decoration:none; } nav a:hover, .ranges a:hover { text-decoration:underline; }
code, pre { font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace; font-size:.86em; }
code { background:var(--code); border-radius:4px; padding:.1em .35em; overflow-wrap:anywhere; }
pre { background:var(--code); border-radius:8px; padding:.9rem 1rem; overflow-x:auto; line-height:1.45; }
pre code { background:none; padding:0; overflow-wrap:normal; }
h1, p { overflow-wrap:anywhere; }
h1 { font-size:1.9rem; line-height:1.2; margin:0 0 .4rem; letter-spacing:-.01em; }
h2 { font-size:1.35rem; margin:2.6rem 0 .6rem; padding-top:.4rem; border-top:1px solid var(--line); }
h3 { font-size:1.02rem; margin:0; font-weight:600; }
p { margin:.4rem 0 .8rem; }
.soft { color:var(--soft); }
.layout { display:grid; grid-template:"nav main" / 17rem minmax(0,1fr); min-height:100vh; }
nav { grid-area:nav; background:var(--panel); border-right:1px solid var(--line); padding:1.6rem 1.2rem; \
font-size:.88rem; position:sticky; top:0; height:100vh; overflow-y:auto; }
nav .name { font-weight:700; font-size:1.05rem; color:var(--ink); display:block; margin-bottom:.2rem; }
nav ul { list-style:none; margin:.3rem 0 1rem; padding:0; }
nav li { margin:.12rem 0; white-space:nowrap; overflow:hidden; text-overflow:ellipsis; }
nav .group { font-weight:600; margin-top:1.1rem; color:var(--soft); text-transform:uppercase; font-size:.72rem; \
letter-spacing:.06em; }
main { grid-area:main; padding:2.2rem clamp(1.2rem,4vw,3.4rem) 5rem; max-width:92rem; }
main > p, main > ul, main > pre, main > .scroll { max-width:60rem; }
.to-contents { display:none; } .search { width:100%; margin:.6rem 0 0; font:inherit; color:var(--ink); \
background:var(--back); border:1px solid var(--soft); border-radius:6px; padding:.35rem .6rem; }
[hidden] { display:none !important; }
.op { border:1px solid var(--line); border-radius:10px; margin:1rem 0; overflow:hidden; }
.op > .head { display:flex; flex-wrap:wrap; gap:.7rem; align-items:center; padding:.75rem 1rem; \
background:var(--panel); border-bottom:1px solid var(--line); }
.op > .body { padding:.6rem 1rem 1rem; }
.example pre { max-height:24rem; overflow:auto; margin:.3rem 0 .8rem; }
.lang { position:fixed; top:0; left:0; opacity:0; pointer-events:none; }
.tabs { display:flex; gap:.3rem; margin-top:.8rem; }
.tabs label { font-size:.8rem; padding:.2rem .6rem; border-radius:6px; color:var(--soft); cursor:pointer; }
.sample { display:none; }
#lang-curl:checked ~ .layout .curl, #lang-python:checked ~ .layout .python, #lang-javascript:checked ~ .layout \
.javascript { display:block; }
#lang-curl:checked ~ .layout [for=lang-curl], #lang-python:checked ~ .layout [for=lang-python],
#lang-javascript:checked ~ .layout [for=lang-javascript] { background:var(--code); color:var(--ink); font-weight:600; }
.lang:focus-visible ~ .layout .tabs { outline:2px solid var(--link); outline-offset:2px; }
.field { display:block; margin:.5rem 0; } .field span { display:block; font-size:.76rem; color:var(--soft); }
.field input, .field textarea { width:100%; font:.86em/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace; \
color:var(--ink); background:var(--back); border:1px solid var(--line); border-radius:6px; padding:.4rem .5rem; }
button { font:inherit; font-size:.88rem; font-weight:600; color:var(--back); background:var(--link); border:0; \
border-radius:6px; padding:.4rem .9rem; cursor:pointer; }
@media (min-width:1180px) { .op > .body { display:grid; grid-template-columns:minmax(0,1fr) minmax(0,1fr); \
column-gap:2rem; } }
.op > .head .needs { margin-left:auto; font-size:.8rem; color:var(--soft); }
.path { font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace; font-size:.9rem; font-weight:600; \
color:var(--ink); overflow-wrap:anywhere; }
.verb { font:700 .7rem/1 ui-monospace,SFMono-Regular,Menlo,monospace; color:#fff; border-radius:5px; padding:.38em \
.55em; letter-spacing:.04em; }
.get { background:#2563b8; } .post { background:#1f7a4d; } .delete { background:#b3362b; } .patch { \
background:#96620a; }
nav .verb { font-size:.56rem; padding:.25em 0; margin-right:.5em; display:inline-block; width:4.9em; letter-spacing:0; \
text-align:center; }
table { border-collapse:collapse; width:100%; font-size:.9rem; margin:.4rem 0 .8rem; }
th, td { text-align:left; vertical-align:top; padding:.42rem .7rem .42rem 0; border-bottom:1px solid var(--line); }
th { color:var(--soft); font-weight:600; font-size:.76rem; text-transform:uppercase; letter-spacing:.04em; }
td.num, th.num { text-align:right; font-variant-numeric:tabular-nums; padding-right:0; padding-left:.7rem; }
.scroll { overflow-x:auto; }
td:first-child code { white-space:nowrap; }
.label { font-size:.76rem; font-weight:600; color:var(--soft); text-transform:uppercase; letter-spacing:.04em; \
margin:1rem 0 .2rem; }
.must { color:var(--down); font-size:.78rem; font-weight:600; }
tr:target, .op:target { outline:2px solid var(--link); outline-offset:2px; }
details { margin:.5rem 0; } summary { cursor:pointer; color:var(--link); font-size:.9rem; }
.figures { display:flex; flex-wrap:wrap; gap:.9rem; margin:1.4rem 0; }
.figure { border:1px solid var(--line); border-radius:10px; padding:.8rem 1.1rem; min-width:10.5rem; flex:1 1 auto; }
.figure b { display:block; font-size:1.45rem; font-variant-numeric:tabular-nums; letter-spacing:-.01em; }
.up { color:var(--up); } .down { color:var(--down); }
.watch { max-width:68rem; margin:0 auto; padding:2.2rem 1.4rem 4rem; }
.ranges { display:flex; flex-wrap:wrap; gap:.4rem; margin:.6rem 0; }
.ranges a { border:1px solid var(--line); border-radius:8px; padding:.3rem .8rem; font-size:.9rem; \
font-variant-numeric:tabular-nums; }
.ranges a[aria-current] { background:var(--panel); border-color:var(--link); font-weight:600; }
.chart { border:1px solid var(--line); border-radius:10px; padding:.8rem; margin:0; } .chart figcaption { \
font-size:.85rem; }
.line, .start { fill:none; stroke:var(--link); stroke-width:2; stroke-linejoin:round; \
vector-effect:non-scaling-stroke; } .start { stroke:var(--soft); stroke-width:1; stroke-dasharray:5 4; }
.grid { stroke:var(--line); } .area { fill:var(--link); opacity:.09; } .axis { fill:var(--soft); font-size:12px; \
paint-order:stroke; stroke:var(--back); stroke-width:4; stroke-linejoin:round; }
.watch > .scroll { max-width:none; }
.cards td { font-variant-numeric:tabular-nums; } .cards td:first-child { white-space:nowrap; }
.cards td[data-column=Market] { white-space:normal; overflow-wrap:anywhere; min-width:8rem; }
@media (max-width:820px) { .layout { display:block; } nav { position:static; height:auto; border-right:0; \
border-top:1px solid var(--line); } main { padding-top:1.2rem; } .to-contents { display:block; font-size:.88rem; \
margin-bottom:1rem; }
  .op table, .op tbody, .op tr { display:block; } .op tr:first-child { display:none; } .op tr { border-bottom:1px \
solid var(--line); padding:.35rem 0; }
  .op td { display:inline-block; border:0; padding:.1rem .6rem .1rem 0; } .op td:last-child { display:block; } .op \
td:empty { display:none; }
  .blocks, .blocks tbody, .blocks tr { display:block; } .blocks tr:first-child { display:none; } .blocks tr { \
border-bottom:1px solid var(--line); padding:.5rem 0; }
  .blocks td { display:inline-block; border:0; padding:.1rem .8rem .1rem 0; } .blocks td:first-child, .blocks \
td:last-child { display:block; } .blocks td[data-label]::before { content:attr(data-label) " "; color:var(--soft); }
  .cards thead { display:none; } .cards, .cards tbody { display:block; }
  .cards tr { display:grid; grid-template-columns:1fr 1fr; column-gap:1.4rem; border:1px solid var(--line); \
border-radius:8px; padding:.4rem .8rem; margin:.6rem 0; }
  .cards td, .cards td.num { display:flex; justify-content:space-between; gap:.6rem; border:0; padding:.12rem 0; \
text-align:right; } .cards td::before { content:attr(data-column); color:var(--soft); }
  .cards td:first-child { grid-column:1 / -1; font-weight:600; } .figure { min-width:8rem; padding:.6rem .8rem; } \
.figure b { font-size:1.15rem; } }
@media print { nav { display:none; } .layout { display:block; } }
"""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# Allow only the inline style sheet, by its hash, and the empty icon.
CSP: Final = (
    f"default-src 'none'; style-src {_hash(STYLE)}; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors"
    " 'none'"
)

HEADERS: Final = {
    "Content-Security-Policy": CSP,
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def headers_with(script: str) -> dict[str, str]:
    """The headers of a page with this one inline script, which may send requests to its own service only."""
    return {**HEADERS, "Content-Security-Policy": f"{CSP}; script-src {_hash(script)}; connect-src 'self'"}


def page(title: str, body: str, *, script: str = "") -> str:
    """A whole page.

    `body` is markup; escape all outside text with `text`. Send a page with a `script` under `headers_with(script)`.
    """
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon"'
        f' href="data:,"><style>{STYLE}</style></head>\n<body>{body}'
        f"{f'<script>{script}</script>' if script else ''}</body></html>\n"
    )


def text(value: object) -> str:
    """Escape a value for text or attributes. Control and direction characters are made visible."""
    clean = "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in str(value))
    return escape(clean, quote=True)


def answer(markup: str, headers: Mapping[str, str] = HEADERS) -> Response:
    return Response(markup, headers=headers, media_type="text/html")
