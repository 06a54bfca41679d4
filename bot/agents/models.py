"""Asks a language model once, through pydantic-ai.

It runs in the thread of a question and knows no strategy, no account and no journal.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from bot.errors import ConfigError
from bot.extras import install
from bot.http_limits import BoundBroken, bounded_transport, cause_of
from bot.logs import redact_text
from bot.plain_text import one_line, plain_json
from bot.strategy import Answered
from bot.wire.addresses import address_problem

if TYPE_CHECKING:
    from pydantic_ai.models import Model

# The bytes of an HTTP answer, besides BYTES_A_TOKEN for each token that was asked for.
BODY_BYTES_MAX = 65_536
# bytes of JSON for a token; one of an East Asian language takes about 12 as escapes
BYTES_A_TOKEN = 16
# objects and lists in an HTTP answer; the library makes a Python object of each
VALUES_MAX = 5_000
# characters of the name that a model gives itself
NAME_MAX = 100
PROBLEM_MAX = 300
# characters of an answer; a longer one is dropped
ANSWER_MAX = 20_000
# most tokens that one request may ask for
TOKENS_MAX = 50_000
# The bars of one call.
TOOL_BARS_MAX = 200
# The tokens of one call's result, at most as many as its bytes.
TOOL_TOKENS_MAX = 30_000
# requests for one question; a second one is for an answer that does not fit
WITHOUT_TOOLS, WITH_TOOLS = 2, 4


def missing() -> str:
    """What to install for agents."""
    return f"an agent needs pydantic-ai: {install('agents')}"


# market -> bars, position and orders, as of the question
Snapshot = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class ModelSetup:
    """Everything besides the prompt that decides an answer. Prices are in USD for a million tokens."""

    model: str
    base_url: str | None
    instructions: str
    schema: type[BaseModel]
    answer_as: str
    tools: Sequence[str]
    max_tokens: int
    temperature: float | None
    timeout_s: float
    usd_in: float
    usd_out: float

    @cached_property
    def text(self) -> str:
        """As JSON, without addresses and prices: part of the key of a recorded answer."""
        return json.dumps(
            {
                "model": self.model,
                "instructions": self.instructions,
                "schema": self.schema.model_json_schema(),
                "answer_as": self.answer_as,
                "tools": list(self.tools),
                "max_tokens": self.max_tokens,
                "temperature": self.temperature,
            },
            sort_keys=True,
        )

    @property
    def requests_max(self) -> int:
        return WITH_TOOLS if self.tools else WITHOUT_TOOLS

    def most(self, prompt: str) -> tuple[int, float]:
        """The most tokens and USD that one question can take. A token has at least one byte, so bytes are a bound."""
        fixed = len(prompt.encode()) + len(self.text.encode()) + 2_000
        grown = self.max_tokens + (TOOL_TOKENS_MAX if self.tools else 2_000)
        tokens_in = sum(fixed + number * grown for number in range(self.requests_max))
        tokens_out = self.requests_max * self.max_tokens
        return tokens_in + tokens_out, self.usd(tokens_in, tokens_out)

    def usd(self, tokens_in: int, tokens_out: int) -> float:
        return (tokens_in * self.usd_in + tokens_out * self.usd_out) / 1_000_000


def ask(setup: ModelSetup, make_model: Callable[[], Model], prompt: str, snapshot: Snapshot) -> Answered:
    """Ask once. A model that fails gives an Answered with a problem; what it used until then is counted."""
    try:
        from pydantic_ai import Agent, NativeOutput, PromptedOutput
        from pydantic_ai.exceptions import ModelHTTPError
        from pydantic_ai.usage import RunUsage, UsageLimits
    except ImportError as error:
        raise ConfigError(missing()) from error
    usage = RunUsage()
    kinds: dict[str, Any] = {"json": PromptedOutput, "schema": NativeOutput}
    output: Any = kinds[setup.answer_as](setup.schema) if setup.answer_as in kinds else setup.schema
    settings: Any = {"max_tokens": setup.max_tokens, "timeout": setup.timeout_s}
    if setup.temperature is not None:
        settings["temperature"] = setup.temperature

    async def run() -> tuple[str, str]:
        # Any, because pydantic-ai lists thousands of names in its types.
        model: Any = make_model()
        agent: Any = Agent(
            model,
            output_type=output,
            instructions=setup.instructions,
            tools=tools_of(setup.tools, snapshot),
            retries=1,
            model_settings=settings,
        )
        limits = UsageLimits(request_limit=setup.requests_max, total_tokens_limit=setup.most(prompt)[0])
        result = await asyncio.wait_for(agent.run(prompt, usage=usage, usage_limits=limits), setup.timeout_s)
        text = plain_json(result.output.model_dump_json().encode()).decode()
        return text, one_line(result.response.model_name or setup.model, NAME_MAX)

    text: str | None = None
    problem: str | None = None
    model, is_billed = setup.model, True
    try:
        answer, model = asyncio.run(run())
        if len(answer) > ANSWER_MAX:
            problem = f"the answer has {len(answer)} characters; the limit is {ANSWER_MAX}"
        else:
            text = answer
    except TimeoutError:
        problem = f"no answer within {setup.timeout_s:g} s"
    except ModelHTTPError as error:
        problem, is_billed = f"the model's server answers {error.status_code}", False
    except Exception as error:  # noqa: BLE001 - after any failure of a model, its strategy skips the turn
        reason = cause_of(error, BoundBroken) or error
        problem = f"{type(reason).__name__}: {one_line(redact_text(str(reason)), PROBLEM_MAX)}"
    used = usage.input_tokens + usage.output_tokens
    usd = setup.usd(usage.input_tokens, usage.output_tokens) if used or not is_billed else None
    return Answered(text, problem, model, usage.input_tokens, usage.output_tokens, usd)


def tools_of(names: Sequence[str], snapshot: Snapshot) -> list[Callable[..., Any]]:
    """The read-only functions that a model may call. They read a copy that was made with the question."""

    def bars(market: str, n: int) -> list[Any]:
        """The last n bars of a market (at most 200): close time in unix milliseconds, open, high, low, close,
        volume.
        """
        return list(snapshot.get(market, {}).get("bars", ()))[-max(1, min(n, TOOL_BARS_MAX)) :]

    def position(market: str) -> Any:
        """The open position in a market, null if there is none."""
        return snapshot.get(market, {}).get("position")

    def orders(market: str) -> list[Any]:
        """The working orders of a market: resting limits, armed stops and targets."""
        return list(snapshot.get(market, {}).get("orders", ()))

    known: dict[str, Callable[..., Any]] = {"bars": bars, "position": position, "orders": orders}
    return [known[name] for name in names]


def named_model(name: str, base_url: str | None, api_key: str | None, max_tokens: int = TOKENS_MAX) -> Model:
    """A model by its name in pydantic-ai, `openai:NAME` or `anthropic:NAME`; with `base_url` any server that speaks the
    OpenAI protocol.

    The client repeats nothing by itself where we can say so, because repeats would pass our counters. It reads no more
    of an answer than `max_tokens` tokens can have.
    """
    try:
        from pydantic_ai.models import infer_model
        from pydantic_ai.providers import infer_provider_class
    except ImportError as error:
        raise ConfigError(missing()) from error
    kind, _, short = name.partition(":")
    if base_url is not None or kind == "openai":
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        client = bounded_client(OpenAIProvider, name, max_tokens)
        served = OpenAIProvider(base_url=base_url, api_key=api_key or "none", http_client=client)
        _check_address(served)
        served.client.max_retries = 0
        return OpenAIChatModel(short if kind == "openai" else name, provider=served)

    def provider(provider_name: str) -> Any:
        provider_class: Any = infer_provider_class(provider_name)
        built = provider_class(api_key=api_key, http_client=bounded_client(provider_class, name, max_tokens))
        _check_address(built)
        return built

    return infer_model(name, provider_factory=provider)


def bounded_client(provider: Any, name: str, max_tokens: int) -> Any:
    """An HTTP client for the server of a model, which is not trusted: its answer is bounded before it is parsed.

    ConfigError if the provider takes no client. A provider wants a client of httpx or of httpx2, as its signature says.
    """
    wanted = signature(provider).parameters.get("http_client")
    if wanted is None or provider.__module__.endswith(
        ".huggingface"
        # The provider of Hugging Face ignores the client.
    ):
        raise ConfigError(
            f"model {name}: answers of this provider cannot be bounded; give the base_url of a server with the OpenAI"
            " protocol"
        )
    is_second = "httpx2" in str(wanted.annotation) or "HTTPClient" in str(wanted.annotation)
    library: Any = import_module("httpx2" if is_second and find_spec("httpx2") is not None else "httpx")
    bytes_max = BODY_BYTES_MAX + BYTES_A_TOKEN * max_tokens
    transport = bounded_transport(bytes_max, values_max=VALUES_MAX, library=library)
    return library.AsyncClient(transport=transport, follow_redirects=False)


def _check_address(provider: Any) -> None:
    """A provider may take its address from the environment, where no config checks it."""
    address = str(provider.base_url)
    problem = address_problem(address)
    if problem is not None:
        raise ConfigError(f"the address of the model's server {problem}")
