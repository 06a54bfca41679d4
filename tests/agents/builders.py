"""Agents with scripted models, a kernel that runs them on a FaultyPort, and a local server that speaks the OpenAI
protocol, with its faults.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from bot.agents import AgentStrategy
from bot.runtime.kernel.kernel import Kernel
from bot.runtime.strategy_host.asker import ThreadAsker
from tests.faulty_port import FaultyPort
from tests.runtime.builders import make_kernel, minutes

pytest.importorskip("pydantic_ai")

from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

PARAMS = {
    "model": "test:scripted",
    "instructions": "Trade well.",
    "usd_per_million_in": 1.0,
    "usd_per_million_out": 4.0,
}
# from the prompt to the arguments of the answer's tool
Said = Callable[[str], Any]


def open_(**more: Any) -> dict[str, Any]:
    given = {
        "action": "open",
        "market": "BTC",
        "side": "long",
        "usd": 50,
        "stop_pct": 2,
        "reason": "r",
        "confidence": 0.8,
    }
    return {"decisions": [given | more]}


def close(**more: Any) -> dict[str, Any]:
    return {"decisions": [{"action": "close", "market": "BTC", "reason": "done", "confidence": 0.9} | more]}


HOLD = {"decisions": [{"action": "hold", "market": "BTC", "reason": "nothing to do", "confidence": 0.5}]}


class Scripted:
    """Mixed into an agent: its model answers what `said` returns for a prompt. An exception is raised in the model."""

    said: Said
    prompts: list[str]

    def make_model(self) -> Any:
        async def function(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            prompt = str(messages[0].parts[-1].content)  # type: ignore[union-attr]
            self.prompts.append(prompt)
            answer = self.said(prompt)
            if isinstance(answer, BaseException):
                raise answer
            args = answer if isinstance(answer, str) else json.dumps(answer)
            return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, args)])

        return FunctionModel(function)


def scripted(
    kind: type[AgentStrategy], *said: Any, markets: Sequence[str] = ("BTC",), name: str = "agent", **params: Any
) -> Any:
    """An agent of this class that gives these answers, one after the other; the last one again and again."""
    left = list(said)

    def next_one(prompt: str) -> Any:
        answer = left.pop(0) if len(left) > 1 else left[0]
        return answer(prompt) if callable(answer) else answer

    made: Any = type(kind.__name__, (Scripted, kind), {})(name=name, markets=markets, params={**PARAMS, **params})
    made.prompts, made.said = [], next_one
    return made


def agent(*said: Any, **more: Any) -> Any:
    return scripted(AgentStrategy, *said, **more)


async def running(*strategies: Any, venue: FaultyPort | None = None, **more: Any) -> tuple[FaultyPort, Kernel]:
    """A recovered kernel with enough bars that every indicator is ready."""
    venue = venue or FaultyPort()
    for _ in range(25):
        venue.minute(BTC="100")
    kernel = make_kernel(venue, strategies=list(strategies), **more)
    await kernel.recover()
    await kernel.cycle()
    await answered(kernel)
    return venue, kernel


async def answered(kernel: Kernel, *, within_s: float = 60.0) -> None:
    """Wait for the replies of all questions under way, then run the pass that takes them."""
    asker = kernel.strategy_host.asker
    assert isinstance(asker, ThreadAsker)
    for thread in list(asker._threads.values()):
        await asyncio.to_thread(thread.join, within_s)
    await kernel.cycle()


async def bars(kernel: Kernel, venue: FaultyPort, *closes: str) -> None:
    for close_px in closes:
        await minutes(kernel, venue, close_px)
        await answered(kernel)


def asks(kernel: Kernel) -> list[dict[str, Any]]:
    kernel.journal.flush()
    return list(kernel.journal.db["asks"].rows)


def lines(kernel: Kernel) -> list[dict[str, Any]]:
    """The outcomes of all decisions, in order."""
    return [outcome for ask in asks(kernel) for outcome in json.loads(ask["outcomes"])]


# -- a server


class _Handler(BaseHTTPRequestHandler):
    server: Any

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((dict(self.headers), body))
        fault = self.server.fault
        if fault == "hang":
            self.server.release.wait()
            return
        if isinstance(fault, int):
            self._send(fault, {"error": {"message": "no", "type": "fault"}})
            return
        arguments = (
            "this is no JSON"
            if fault == "nonsense"
            else json.dumps(self.server.answer(body) if callable(self.server.answer) else self.server.answer)
        )
        call = {"name": body["tools"][0]["function"]["name"], "arguments": arguments}
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": call}],
        }
        self._send(200, {
            "id": "x", "object": "chat.completion", "created": 1, "model": "local-7b-2026-01",
            "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}],
            "usage": {"prompt_tokens": 1_000, "completion_tokens": 100, "total_tokens": 1_100},
        })  # fmt: skip

    def _send(self, status: int, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def model_server(answer: Any = HOLD, *, fault: str | int | None = None) -> Iterator[Any]:
    """A server on this machine;

    `url` is its address. `fault`: hang (until the end of the block), nonsense or a status.
    """
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.answer, server.fault, server.release, server.requests = answer, fault, threading.Event(), []
    server.url = f"http://127.0.0.1:{server.server_port}/v1"
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.release.set()
        server.shutdown()
        server.server_close()
