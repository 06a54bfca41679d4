"""One HTTP request and its answer within a time limit. Returns the answer of any status, or raises TransportFault.

Requests over TCP use the project's own connections (connections.py), because httpx takes 8 to 16 times their processor
time. Streams, Unix sockets and apps in the same process use httpx. Only this module imports httpx.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

import httpx

from bot.client.connections import Address, Connections
from bot.client.faults import FailureKind, TransportFault
from bot.clock import monotonic_ns
from bot.errors import ConfigError
from bot.http_limits import context_for, is_compressed
from bot.plain_text import plain_json
from bot.wire.addresses import address_problem

# 5,000 candles take less than 1 MB
REPLY_BYTES_MAX: Final = 16 * 1024 * 1024
# a daemon has up to 50 orders and 50 candle requests in flight, and a few others
CONNECTIONS_MAX: Final = 128
# shorter than servers' timeouts, so that we close an idle connection before the server does
KEEPALIVE_S: Final = 3.0

Transport = httpx.AsyncBaseTransport

_TARGET: Final = re.compile(r"/[\x21-\x7e]*")
# a header value without line breaks, so that nobody can inject a header
_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")

# httpcore imports sniffio for every lock, several times per request. If it is not installed, each import searches the
# whole path, a fifth of the cost of a request. With None in sys.modules the import fails at once.
if importlib.util.find_spec("sniffio") is None:
    # A None there is the import system's own word for "not to be had".
    sys.modules["sniffio"] = None  # type: ignore[assignment]

# The most derived class that matches gives the fault. A class that is not listed is OTHER, and the outcome is in doubt.
FAULT_OF: Final[Mapping[type[BaseException], FailureKind]] = {
    httpx.ConnectError: FailureKind.CONNECT,
    httpx.ConnectTimeout: FailureKind.CONNECT_TIMEOUT,
    httpx.PoolTimeout: FailureKind.POOL_TIMEOUT,
    httpx.ReadError: FailureKind.READ,
    httpx.ReadTimeout: FailureKind.READ_TIMEOUT,
    httpx.WriteError: FailureKind.WRITE,
    httpx.WriteTimeout: FailureKind.WRITE_TIMEOUT,
    httpx.CloseError: FailureKind.CLOSE,
    httpx.RemoteProtocolError: FailureKind.PROTOCOL_REMOTE,
    httpx.LocalProtocolError: FailureKind.PROTOCOL_LOCAL,
    httpx.ProxyError: FailureKind.PROXY,
    httpx.UnsupportedProtocol: FailureKind.UNSUPPORTED,
    httpx.DecodingError: FailureKind.DECODING,
    httpx.TooManyRedirects: FailureKind.REDIRECTS,
}


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds.

    `total` bounds the whole exchange, because httpx has no limit for a server that sends a few bytes at a time.
    """

    total: float = 15.0
    connect: float = 3.0
    pool: float = 1.0


TIMEOUTS: Final = Timeouts()


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A complete answer, its texts without characters that are not printable.

    `sent_ns` and `received_ns` are monotonic.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    sent_ns: int
    received_ns: int


@dataclass(frozen=True, slots=True)
class Listening:
    """An answer that has started. `parts` ends with the answer, or raises TransportFault."""

    status: int
    headers: Mapping[str, str]
    parts: AsyncIterator[bytes]


class HttpExchange:
    """Sends requests to one service. It does not redirect, retry, compress, or use proxies of the environment."""

    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str] | None = None,
        transport: Transport | None = None,
        timeouts: Timeouts = TIMEOUTS,
        reply_bytes_max: int = REPLY_BYTES_MAX,
    ) -> None:
        self.base_url = checked_base_url(base_url)
        self.timeouts = timeouts
        self._reply_bytes_max = reply_bytes_max
        lines = {"Accept": "application/json", "Accept-Encoding": "identity", **(headers or {})}
        self._connections: Connections | None = None
        if transport is None:
            url = httpx.URL(self.base_url)
            is_tls = url.scheme == "https"
            context = context_for(needs_tls=is_tls)
            context.set_alpn_protocols(["http/1.1"])
            # The encoded form, as in Host: encoding the Unicode form again, by older rules, can give another name.
            host = url.raw_host.decode("ascii")
            address = Address(host, url.port or (443 if is_tls else 80), context if is_tls else None)
            self._connections = Connections(
                address,
                most=CONNECTIONS_MAX,
                idle_s=KEEPALIVE_S,
                connect_s=timeouts.connect,
                pool_s=timeouts.pool,
                bytes_max=reply_bytes_max,
            )
            self._base_path = url.raw_path.decode("ascii").rstrip("/")
            self._lines = _lines({"Host": url.netloc.decode("ascii"), **lines})
            transport = httpx.AsyncHTTPTransport(verify=context, retries=0, trust_env=False)
        self._http = httpx.AsyncClient(
            transport=transport,
            headers=lines,
            timeout=httpx.Timeout(timeouts.total, connect=timeouts.connect, pool=timeouts.pool),
            follow_redirects=False,
            trust_env=False,
        )

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        total: float | None = None,
    ) -> HttpReply:
        """Send a request and read its answer within `total` seconds.

        Raises TransportFault without a complete answer.
        """
        extra = dict(headers or {})
        if body is not None:
            extra["Content-Type"] = "application/json"
        sent_ns = monotonic_ns()
        deadline = asyncio.timeout(self.timeouts.total if total is None else total)
        fields: Mapping[str, str]
        try:
            async with deadline:
                if self._connections is not None:
                    request = self._request(method, path, query, extra, body)
                    status, fields, content = await self._connections.exchange(request)
                else:
                    status, fields, content = await self._through_httpx(method, path, query, extra, body)
        except TimeoutError as error:
            if not deadline.expired():
                raise TransportFault(FailureKind.OTHER, str(error)) from error
            raise TransportFault(FailureKind.TOTAL_TIMEOUT, "the whole exchange took too long") from None
        _refuse_compressed(fields)
        return HttpReply(status, fields, plain_json(content), sent_ns, monotonic_ns())

    def _request(
        self, method: str, path: str, query: Mapping[str, str] | None, headers: Mapping[str, str], body: bytes | None
    ) -> bytes:
        """The bytes of a request. TransportFault if a character would change its meaning."""
        target = f"{self._base_path}{path}?{urlencode(query)}" if query else self._base_path + path
        if _TARGET.fullmatch(target) is None:
            raise TransportFault(FailureKind.PROTOCOL_LOCAL, "the path has characters that no request may have")
        length = "" if body is None and method == "GET" else f"Content-Length: {len(body or b'')}\r\n"
        head = f"{method} {target} HTTP/1.1\r\n{self._lines}{_lines(headers)}{length}\r\n"
        return head.encode("ascii") + (body or b"")

    async def _through_httpx(
        self, method: str, path: str, query: Mapping[str, str] | None, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, Mapping[str, str], bytes]:
        url = self.base_url + path
        try:
            async with self._http.stream(method, url, params=query or None, content=body, headers=headers) as answer:
                _refuse_compressed(answer.headers)
                return answer.status_code, answer.headers, await self._read(answer)
        except TimeoutError:
            raise
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as error:
            raise TransportFault(fault_of(error), str(error)) from error

    @asynccontextmanager
    async def listen(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        silence: float,
    ) -> AsyncIterator[Listening]:
        """A streamed answer.

        It must start within the total timeout; then at most `silence` seconds may pass between two parts.
        """
        timeout = httpx.Timeout(silence, connect=self.timeouts.connect, pool=self.timeouts.pool)
        request = self._http.build_request(
            "GET", self.base_url + path, params=query or None, headers=headers, timeout=timeout
        )
        try:
            async with asyncio.timeout(self.timeouts.total):
                answer = await self._http.send(request, stream=True)
        except TimeoutError:
            raise TransportFault(FailureKind.TOTAL_TIMEOUT, "no answer began in time") from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as error:
            raise TransportFault(fault_of(error), str(error)) from error
        try:
            _refuse_compressed(answer.headers)
            yield Listening(answer.status_code, answer.headers, _parts(answer))
        finally:
            await answer.aclose()

    async def _read(self, answer: httpx.Response) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in answer.aiter_bytes():
            size += len(part)
            if size > self._reply_bytes_max:
                raise TransportFault(FailureKind.TOO_LARGE, f"the answer is larger than {self._reply_bytes_max} bytes")
            parts.append(part)
        return b"".join(parts)

    async def aclose(self) -> None:
        if self._connections is not None:
            await self._connections.close()
        await self._http.aclose()


def _refuse_compressed(headers: Mapping[str, str]) -> None:
    """Before a byte of the body is read: httpx would decode it, and no bound holds for what it becomes."""
    if is_compressed(headers):
        raise TransportFault(FailureKind.DECODING, "the answer is compressed, which was not asked for")


def _lines(headers: Mapping[str, str]) -> str:
    """The header lines. TransportFault for a value with a line break."""
    if not all(map(_VALUE.fullmatch, headers.values())):
        raise TransportFault(FailureKind.PROTOCOL_LOCAL, "a header has characters that no header may have")
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


async def _parts(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for part in answer.aiter_bytes():
            yield part
    except (httpx.HTTPError, httpx.StreamError, OSError) as error:
        raise TransportFault(fault_of(error), str(error)) from error


def unix_transport(path: str) -> Transport:
    """A transport over a Unix socket. The file's permissions are the credential."""
    return httpx.AsyncHTTPTransport(uds=path, retries=0, trust_env=False)


def fault_of(error: BaseException) -> FailureKind:
    """The fault of an exception of httpx."""
    return next((FAULT_OF[kind] for kind in type(error).__mro__ if kind in FAULT_OF), FailureKind.OTHER)


def checked_base_url(text: str) -> str:
    """The base address without a trailing slash. ConfigError unless it is https, or http to this machine."""
    problem = address_problem(text)
    if problem is not None:
        raise ConfigError(f"base_url {problem}")
    return text.rstrip("/")
