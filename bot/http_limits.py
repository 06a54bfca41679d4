"""What every HTTP client of the project has in common: the certificates that it trusts, and a bound on what it reads.

An answer is read to its end before a caller sees it, and never more than its bound of it. Answers are asked for
uncompressed, and a compressed one is refused, so the bytes that are counted are the bytes that are parsed.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import certifi
import httpx

from bot.errors import ConfigError
from bot.wire.addresses import is_metadata

CERTIFICATES: Final = "SSL_CERT_FILE"
# How to reach another machine. A value may hold a password, so it is passed on to a process that needs it, and never
# shown.
PROXIES: Final = tuple(
    name
    for plain in ("http_proxy", "https_proxy", "ws_proxy", "wss_proxy", "all_proxy", "no_proxy")
    for name in (plain, plain.upper())
)
NETWORK: Final = (*PROXIES, CERTIFICATES)
_OF_TRANSFER: Final = (b"content-length", b"transfer-encoding", b"content-encoding")
PROXY_SCHEMES: Final = ("http", "https", "socks5", "socks5h")


class BoundBroken(Exception):
    """An answer does not keep to what its reader allows. Nothing of it is used."""


class _LostAnswer(BoundBroken, httpx.TransportError):
    """A BoundBroken that callers of httpx catch as a transport error."""


def certificate_files(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The files of trusted certificates: the list that is installed with Python, and SSL_CERT_FILE.

    ConfigError if that cannot be read.
    """
    chosen = environ.get(CERTIFICATES)
    if not chosen:
        return [certifi.where()]
    try:
        ssl.create_default_context(cafile=chosen)
    except (OSError, ssl.SSLError) as error:
        why = (
            os.strerror(error.errno)
            if error.errno and error.filename is None and not isinstance(error, ssl.SSLError)
            else ""
        )
        raise ConfigError(
            f"{CERTIFICATES}={chosen}: {why or 'cannot be read as certificates'}; name a file with certificates in PEM"
            " form"
        ) from None
    return [certifi.where(), chosen]


def tls_context(environ: Mapping[str, str] = os.environ) -> ssl.SSLContext:
    """A context that trusts the certificates of `certificate_files`."""
    first, *others = certificate_files(environ)
    context = ssl.create_default_context(cafile=first)
    for file in others:
        context.load_verify_locations(cafile=file)
    return context


def context_for(*, needs_tls: bool) -> ssl.SSLContext:
    """`tls_context`, or one without certificates for plain HTTP: reading them takes longer than a local server's
    answer.
    """
    return tls_context() if needs_tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


# open until the process ends; then the file is removed
_bundles: list[Any] = []


def share_certificates(environ: MutableMapping[str, str] = os.environ) -> None:
    """Name the certificates as requests and curl do, for the libraries of this process that use them.

    They take one file.
    """
    files = certificate_files(environ)
    if len(files) == 1 or any(environ.get(name) for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")):
        return
    bundle = tempfile.NamedTemporaryFile(prefix="bot-certificates-", suffix=".pem")  # noqa: SIM115 - kept in `_bundles`
    bundle.write(b"\n".join(Path(file).read_bytes() for file in files))
    bundle.flush()
    _bundles.append(bundle)
    environ["REQUESTS_CA_BUNDLE"] = environ["CURL_CA_BUNDLE"] = bundle.name


def check_proxies(environ: Mapping[str, str] = os.environ) -> None:
    """ConfigError for a proxy of the environment that cannot be used. Its text may hold a password and is not shown."""
    for name in PROXIES:
        text = environ.get(name)
        if not text or name.lower() == "no_proxy":
            continue
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            host, _ = parts.hostname, parts.port
        except ValueError:
            host = None
        else:
            host = host if parts.scheme in PROXY_SCHEMES and "%" not in (host or "") else None
        if not host:
            raise ConfigError(f"{name}: must be an address such as http://host:port ({', '.join(PROXY_SCHEMES)})")
        if is_metadata(host):
            raise ConfigError(f"{name}: is where a cloud keeps the credentials of its machines: nothing is sent there")


def proxy_of(url: Any) -> str | None:
    """The proxy of the environment for this address."""
    if proxy_bypass(url.host):
        return None
    proxies = getproxies()
    chosen = proxies.get(url.scheme) or proxies.get("all")
    if not chosen:
        return None
    check_proxies()
    return chosen if "://" in chosen else f"http://{chosen}"


def is_compressed(headers: Mapping[str, str]) -> bool:
    return (headers.get("content-encoding") or "identity").strip().lower() not in ("", "identity")


def bounded_transport(
    bytes_max: int, *, values_max: int | None = None, trusts_proxies: bool = True, library: Any = httpx
) -> Any:
    """A transport of httpx that reads at most `bytes_max` of an answer, with at most `values_max` objects and lists in
    its JSON.

    `trusts_proxies`: use the proxies of the environment. `library`: httpx, or another release of it that a client
    wants.
    """
    kind = _LostAnswer if library is httpx else BoundBroken

    class Bounded(library.AsyncBaseTransport):  # type: ignore[misc]  # the base is an argument
        def __init__(self) -> None:
            self._transports: dict[tuple[str | None, bool], Any] = {}

        async def handle_async_request(self, request: Any) -> Any:
            request.headers["Accept-Encoding"] = "identity"
            answer = await self._transport_to(request.url).handle_async_request(request)
            try:
                body = await self._read(answer)
            finally:
                await answer.aclose()
            # The body has been read to its end, so headers about its transfer (length, encoding) no longer apply.
            headers = [(name, value) for name, value in answer.headers.raw if name.lower() not in _OF_TRANSFER]
            extensions = {name: value for name, value in answer.extensions.items() if name != "network_stream"}
            return library.Response(answer.status_code, headers=headers, content=body, extensions=extensions)

        async def _read(self, answer: Any) -> bytes:
            if is_compressed(answer.headers):
                raise kind("the answer is compressed, which was not asked for")
            body, values = bytearray(), 0
            async for part in answer.stream:
                values += part.count(b"{") + part.count(b"[")
                if len(body) + len(part) > bytes_max:
                    raise kind(f"the answer is larger than {bytes_max:,} bytes")
                if values_max is not None and values > values_max:
                    raise kind(f"the answer has more than {values_max:,} objects and lists")
                body += part
            return bytes(body)

        def _transport_to(self, url: Any) -> Any:
            proxy = proxy_of(url) if trusts_proxies else None
            needs_tls = url.scheme == "https" or (proxy or "").startswith("https:")
            if (proxy, needs_tls) not in self._transports:
                self._transports[proxy, needs_tls] = library.AsyncHTTPTransport(
                    verify=context_for(needs_tls=needs_tls), retries=0, proxy=proxy, trust_env=False
                )
            return self._transports[proxy, needs_tls]

        async def aclose(self) -> None:
            for transport in self._transports.values():
                await transport.aclose()

    return Bounded()


def cause_of(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    """The error of this kind behind an error of a library, which may hide it in causes."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        if isinstance(current, kind):
            return current
        seen.add(id(current))
        current = current.__cause__ or current.__context__
    return None
