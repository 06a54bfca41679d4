"""A machine that reaches exchanges only by a proxy: the feeder of the embedded service uses it, and nothing shows
its password.
"""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bot.cli.run.embedded_service import Embedded, ServiceFailed
from bot.market_data.ccxt_feeder import plain

REFUSAL = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Proxy:
    """A proxy that refuses every request and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as lines:
                self.asked.append("".join(line.decode() for line in iter(lines.readline, b"\r\n")))
                connection.sendall(REFUSAL)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy()
    yield made
    made.close()


def test_the_embedded_service_asks_the_exchange_through_the_proxy_and_shows_no_password(
    proxy: Proxy, markets_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy", "HTTPS_PROXY", "BOT_MARKETS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BOT_MARKETS_PYTHON", markets_python)
    monkeypatch.setenv("https_proxy", f"http://me:hidden@127.0.0.1:{proxy.port}")
    service = Embedded(tmp_path / "state", prices=("ccxt:kraken",), markets=("BTC",))
    with pytest.raises(ServiceFailed, match="Proxy Authentication Required") as failed:
        service.ensure()
    asked = proxy.asked[0]
    assert asked.startswith("CONNECT api.kraken.com:443")
    assert base64.b64encode(b"me:hidden").decode() in asked
    shown = str(failed.value) + "".join(one.read_text() for one in (tmp_path / "state").glob("sandbox.[lo]*"))
    assert "hidden" not in shown


def test_the_error_of_a_wrong_proxy_address_loses_its_password() -> None:
    assert plain(ValueError("bad port in 'http://me:hid/den@proxy:x' ")) == "bad port in 'http://***@proxy:x'"
