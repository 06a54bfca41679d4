"""Shared by the tests of the tools: a request, its headers, and the check of a refusal."""

from __future__ import annotations

from typing import Any

import httpx

DISCOVER = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}


ACCEPT = {"Accept": "application/json, text/event-stream"}


def assert_told(answer: httpx.Response, status: int, code: str) -> Any:
    """The answer is JSON-RPC's failure, and its data the error object."""
    said = answer.json()
    error = said["error"]["data"]
    assert (answer.status_code, said["jsonrpc"], said["id"], error["code"]) == (status, "2.0", None, code), answer.text
    assert said["error"] == {
        "code": -32600 if code == "invalid_input" else -32000,
        "message": error["message"],
        "data": error,
    }
    assert answer.headers["x-request-id"] == error["requestId"]
    if status == 401:
        assert answer.headers["www-authenticate"].startswith("Bearer")
    return error
