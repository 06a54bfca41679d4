"""The name of an operation: its operationId in OpenAPI, and its name for the sandbox's faults."""

from __future__ import annotations

import re


def operation_name(method: str, path: str) -> str:
    """`GET /v1/markets/{coin}/book` -> get_markets_coin_book."""
    words = re.findall(r"[A-Za-z0-9]+", path.removeprefix("/v1"))
    return "_".join([method.lower(), *words])
