"""Frames between the service and its link: four bytes of length, then one JSON object."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from bot.exchanges.protocol import NoExchangeAnswer

# Both sides name their version in their first frame. It changes with every change of a frame.
VERSION: Final = 4
# The markets of an exchange take about 100 kB, and 10,000 fills about 3 MB.
BYTES_MAX: Final = 32 * 1024 * 1024
LENGTH_BYTES: Final = 4

Frame = dict[str, Any]


def frame_bytes(frame: Frame) -> bytes:
    """One frame as bytes. ValueError if it is too long."""
    body = json.dumps(frame, separators=(",", ":"), allow_nan=False).encode()
    if len(body) > BYTES_MAX:
        raise ValueError(f"a frame of {len(body):,} bytes; at most {BYTES_MAX:,} are allowed")
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """The next frame; None when the other side has ended. NoAnswer for bytes that are no frame."""
    try:
        length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
        if length > BYTES_MAX:
            raise NoExchangeAnswer(f"the link wrote a frame of {length:,} bytes; at most {BYTES_MAX:,} are allowed")
        body = await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    try:
        frame = json.loads(body)
    except (ValueError, RecursionError):
        frame = None
    if not isinstance(frame, dict):
        raise NoExchangeAnswer(f"the link wrote a frame that is no JSON object: {body[:60]!r}")
    return frame
