"""Examples of the documentation: for each operation a request that was sent to this service, and its answer.

`examples.json` is written by a session of the tests, and a test compares it with the answers of the present code.
Random secrets are placeholders such as `<apiKey>`, and lists keep their first two entries.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

FILE: Final = Path(__file__).with_name("examples.json")


class Example(NamedTuple):
    """A request and its answer. `body` is None if the request has none."""

    path: str
    body: Any
    answer: Any


@cache
def examples() -> dict[str, Example]:
    """The examples by operation id."""
    rows = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: Example(row["path"], row.get("body"), row["answer"]) for name, row in rows.items()}
