"""Every client of the project stops reading at its bound: whatever the server sends, compressed or not."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from bot.agents import models
from bot.agents.answers import Answer
from bot.client import Client
from bot.client.faults import TransportFault
from bot.client.http import HttpExchange
from bot.client.stream import Parser
from bot.errors import ApiError
from bot.http_limits import BoundBroken, bounded_transport

MEGABYTE = 1 << 20
BOMB = b"x" * (40 * MEGABYTE)
GZIPPED, DEFLATED = gzip.compress(BOMB, 1), zlib.compress(BOMB, 1)


@dataclass
class Server:
    """Answers every request with one body, in pieces, until the client goes away."""

    headers: dict[str, str] = field(default_factory=dict)
    pieces: Callable[[], Iterator[bytes]] = field(default=lambda: iter(()))
    sent: int = 0
    url: str = ""


@pytest.fixture
def server() -> Iterator[Server]:
    kept = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(200)
            for name, value in {"Content-Type": "application/json", **kept.headers}.items():
                self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            try:
                for piece in kept.pieces():
                    self.wfile.write(piece)
                    kept.sent += len(piece)
            except OSError:
                pass

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        kept.url = f"http://127.0.0.1:{listening.server_port}"
        yield kept
        listening.shutdown()


def plain() -> Iterator[bytes]:
    yield b'{"choices": "'
    for _ in range(60):
        yield b"x" * MEGABYTE


def gzipped() -> Iterator[bytes]:
    yield GZIPPED


def deflated() -> Iterator[bytes]:
    yield DEFLATED


def empty() -> Iterator[bytes]:
    yield b"\x8b\x00\x80{}\x03"


BODIES = {
    "plain": ({}, plain),
    "gzip": ({"Content-Encoding": "gzip"}, gzipped),
    "deflate": ({"Content-Encoding": "deflate"}, deflated),
    "br": ({"Content-Encoding": "br"}, empty),
    "zstd": ({"Content-Encoding": "zstd"}, empty),
    "twice": ({"Content-Encoding": "gzip, gzip"}, empty),
    "upper case": ({"Content-Encoding": "GZIP"}, gzipped),
}


async def _model(url: str) -> str:
    setup = models.ModelSetup("local", url, "do", Answer, "tool", (), 2_000, None, 20.0, 0, 0)
    answered = await asyncio.to_thread(models.ask, setup, lambda: models.named_model("local", url, "k"), "hi", {})
    assert answered.text is None
    return answered.problem or ""


async def _daemon(url: str) -> str:
    async with Client(url, "bbk_key") as client:
        with pytest.raises(ApiError) as lost:
            await client.limits()
    return str(lost.value)


async def _stream(url: str) -> str:
    """A stream has no end, so its parser has the bound; this is about what comes before the first event."""
    exchange = HttpExchange(url)
    try:
        async with exchange.listen("/v1/events/stream", silence=5.0) as answer:
            parser = Parser()
            async for part in answer.parts:
                parser.feed(part)
    except (TransportFault, ValueError) as lost:
        return str(lost).replace("more than", "larger")
    finally:
        await exchange.aclose()
    return "it was read to its end"


async def _in_process(url: str) -> str:
    exchange = HttpExchange(url, transport=httpx.AsyncHTTPTransport(), reply_bytes_max=MEGABYTE)
    with pytest.raises(Exception, match=r"compressed|larger") as lost:
        await exchange.send("GET", "/")
    await exchange.aclose()
    return str(lost.value)


async def _shared(url: str) -> str:
    async with httpx.AsyncClient(transport=bounded_transport(MEGABYTE)) as client:
        with pytest.raises(BoundBroken) as lost:
            await client.get(url)
    assert isinstance(lost.value, httpx.TransportError), "what the callers of httpx expect"
    return str(lost.value)


async def _telegram(url: str) -> str:
    from bot.cli.operate.telegram_answers import CheckedRequest

    async with CheckedRequest() as request:
        with pytest.raises(Exception, match=r"compressed|larger") as lost:
            await request.do_request(f"{url}/botTOKEN/getMe", "POST")
    return str(lost.value)


CLIENTS: dict[str, Callable[[str], Awaitable[str]]] = {
    "model of an agent": _model,
    "daemon to service": _daemon,
    "event stream": _stream,
    "dashboard in one process": _in_process,
    "MCP": _shared,
    "Telegram": _telegram,
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("client", CLIENTS)
async def test_no_answer_is_read_beyond_its_bound(client: str, body: str, server: Server) -> None:
    server.headers, server.pieces = BODIES[body]
    problem = await CLIENTS[client](server.url)
    assert "compressed" in problem or "larger" in problem, "the caller is told why"
    assert server.sent < 40 * MEGABYTE


def answer_of(content: str) -> bytes:
    message = {"role": "assistant", "content": content}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json.dumps(
        {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    ).encode()


HEAVY = {
    "a million holds": answer_of(
        json.dumps({"decisions": [{"market": "BTC", "reason": "", "confidence": 0, "action": "hold"}] * 100_000})
    ),
    "many tool calls": b'{"choices": [{"message": {"tool_calls": [' + b",".join([b"{}"] * 20_000) + b"]}}]}",
    "deep": b'{"choices": ' + b"[" * 40_000 + b"]" * 40_000 + b"}",
    "deep in a text": answer_of("[" * 20_000),
}


@pytest.mark.parametrize("body", HEAVY.values(), ids=HEAVY.keys())
async def test_no_answer_of_a_model_makes_the_loop_wait(body: bytes, server: Server) -> None:
    """The daemon asks in a thread beside its loop, but both share one lock of the interpreter."""
    server.pieces = lambda: iter([body])
    # The first question imports the library.
    await _model(server.url)
    asked = asyncio.create_task(_model(server.url))
    longest, before, used = 0.0, time.thread_time(), time.monotonic()
    while not asked.done():
        await asyncio.sleep(0.001)
        longest = max(longest, time.monotonic() - used)
        used = time.monotonic()
    assert await asked
    assert longest < 1.0, f"the loop stood still for {longest:.2f} s"
    assert time.thread_time() - before < 5


async def test_a_model_is_kept_with_a_short_plain_name(server: Server) -> None:
    content = json.dumps(
        {
            "decisions": [{"action": "hold", "market": "BTC", "reason": "a\x1b[2J\nFAKE\u202e", "confidence": 0}],
            "notes": "x\x9by",
        }
    )
    body = json.loads(answer_of(content))
    body["model"] = "\x1b]0;owned\x07" + "m" * 50_000
    server.pieces = lambda: iter([json.dumps(body).encode()])
    setup = models.ModelSetup("local", server.url, "do", Answer, "json", (), 2_000, None, 20.0, 0, 0)
    answered = await asyncio.to_thread(
        models.ask, setup, lambda: models.named_model("local", server.url, "k"), "hi", {}
    )
    assert answered.problem is None
    assert len(answered.model) == models.NAME_MAX and answered.model.isprintable()
    decided = Answer.model_validate_json(answered.text or "")
    assert decided.decisions[0].reason.isprintable() and (decided.notes or "").isprintable()


def test_a_provider_without_a_bounded_client_is_refused() -> None:
    class Unbounded:
        def __init__(self, api_key: str) -> None: ...

    with pytest.raises(models.ConfigError, match="cannot be bounded; give the base_url"):
        models.bounded_client(Unbounded, "x:y", 100)


def test_an_address_from_the_environment_keeps_to_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://model.example/v1")
    with pytest.raises(models.ConfigError, match="use https"):
        models.named_model("openai:gpt-5", None, "k")
