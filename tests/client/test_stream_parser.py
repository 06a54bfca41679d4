"""Server-sent events by the WHATWG rules, out of bytes cut anywhere."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

from bot.client.stream import LINE_MAX, Parser, StreamMessage

TEXT = (
    '\ufeffretry: 2000\n\n: ping\n\nid: evt_1\nevent: fill\ndata: {"a":"é"}\n\ndata: one\ndata:two\r\ndata\r\n\r\nid:'
    " evt_3\n\nevent: x\n\nid: bad\0id\nretry: no\nunknown: y\ndata:  z\r\revent: order\nid\ndata: last\n\ndata: cut"
)
MESSAGES = [
    StreamMessage("evt_1", "fill", '{"a":"é"}'),
    StreamMessage("evt_1", "message", "one\ntwo\n"),
    StreamMessage("evt_3", "message", " z"),
    StreamMessage("", "order", "last"),
]


@given(some.lists(some.integers(0, len(TEXT.encode())), max_size=12))
def test_the_same_events_come_out_wherever_the_bytes_are_cut(cuts: list[int]) -> None:
    raw = TEXT.encode()
    parser = Parser()
    found: list[StreamMessage] = []
    edges = [0, *sorted(cuts), len(raw)]
    for begin, end in pairwise(edges):
        found += parser.feed(raw[begin:end])
    assert found == MESSAGES
    assert parser.retry_ms == 2000


@pytest.mark.parametrize("piece", [b"x" * 1000, b"data: " + b"x" * 1000 + b"\n"])
def test_an_event_without_an_end_is_refused(piece: bytes) -> None:
    parser = Parser()

    def feed() -> None:
        for _ in range(LINE_MAX // 1000 + 2):
            parser.feed(piece)

    with pytest.raises(ValueError, match="characters"):
        feed()
