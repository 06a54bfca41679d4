"""One rule for every address that a secret or a question is sent to, at each place of the config that takes one."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError

from bot import http_limits
from bot.agents.params import AgentParams
from bot.client.http import checked_base_url
from bot.config.references import Referred
from bot.config.settings import AccountSettings, Telegram
from bot.errors import ConfigError
from bot.service.webhooks.address_policy import TargetRefused, judge, target_of
from bot.wire.addresses import address_problem

AGENT = {"model": "local", "instructions": "x", "usd_per_million_in": 0, "usd_per_million_out": 0}
# what a reference gave
TOKEN = Referred("0" * 20)
PLACES = {
    "account.base_url": lambda url: AccountSettings.model_validate({"base_url": url, "api_key": TOKEN}),
    "agent base_url": lambda url: AgentParams.model_validate({**AGENT, "base_url": url}),
    "telegram.api_url": lambda url: Telegram.model_validate({"token": TOKEN, "chats": [1], "api_url": url}),
    "--base-url": checked_base_url,
}
METADATA = [
    "169.254.169.254",
    "169.254.170.2",
    "[fd00:ec2::254]",
    "[fd00:0ec2:0:0:0:0:0:254]",
    "[fd20:ce::254]",
    "[::ffff:169.254.169.254]",
    "[::ffff:a9fe:a9fe]",
    "[64:ff9b::a9fe:a9fe]",
    "[2002:a9fe:a9fe::1]",
    "2852039166",
    "0xa9fea9fe",
    "0xa9.0xfe.0xa9.0xfe",
    "0251.0376.0251.0376",
    "169.254.43518",
    "169.16689662",
    "metadata.google.internal",
    "METADATA.google.internal.",
    "100.100.100.200",
    "169.254.169.254.",
    "[fe80::a9fe:a9fe]",
    "metadata\u3002google\u3002internal",
    "metadata\ufe0f.google.internal",
    "METADATA.GOOG.",
    "169\uff0e254.169.254",
    "\u2460\u2465\u2468.254.169.254",
    "\uff4detadata.google.internal",
]
REFUSED = [
    "http://model.example/v1",
    "http://192.168.0.7:8000",
    "https://u:PW@host/v1",
    "https://u@host",
    "https://@host",
    "https://:PW@host",
    "file:///etc/passwd",
    "notaurl",
    "ftp://host",
    "https://",
    "https:///v1",
    "//host",
    "https://host?key=1",
    "https://host#x",
    "HTTP:/host",
    "https://ho st",
    "https://host\nX: y",
    "https://host\\evil",
    "https://[::1",
    "https://host:0",
    "https://host:99999",
    "javascript:1",
    "http://127.0.0.1.evil.example",
    "http://localhost.evil.example",
    "http://0.0.0.0:80",
    "https://" + "x" * 600,
    "http://[fe80::1%25eth0]",
    "https://[2001:db8::1%25eth0]",
    "http://[::1%25lo]:80",
    "http://[::1%lo]",
    "http://localhost.",
    "http://127.1",
    "https://169.254.169%2e254",
    "https://host%2e",
    "http://localhost%00.evil.example",
    "https://a..b",
    "https://.host",
    "https://-host",
    "https://host-",
    "https://" + "x" * 64 + ".example",
    "https://h:-1",
    "https://h:1_0",
    "https://h:80:90",
    "https://h;x",
    "https://h,g",
    "http://\uff4cocalhost",
    "http://\u2139localhost",
    "http://[::ffff:10.0.0.7]",
    "http://[::]",
    "https://\u2024",
    *(f"https://{host}/latest" for host in METADATA),
    *(f"http://{host}" for host in METADATA),
]
ALLOWED = [
    "https://host",
    "https://host:8443/v1",
    "http://127.0.0.1:11434/v1",
    "http://localhost:1",
    "http://[::1]:8700",
    "https://10.0.0.7",
    "https://b\u00fccher.example",
    "https://xn--bcher-kva.example./v1",
    "https://my_model.internal",
    "http://LOCALHOST:1",
    "https://[2001:db8::1]:8443",
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("url", REFUSED)
def test_an_address_that_could_leak_a_secret_is_refused_everywhere(place: str, url: str) -> None:
    with pytest.raises((ValidationError, ConfigError)):
        PLACES[place](url)
    assert address_problem(url) is not None


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("url", ALLOWED)
def test_https_and_this_machine_are_allowed_everywhere(place: str, url: str) -> None:
    PLACES[place](url)


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("host", METADATA)
def test_no_webhook_goes_to_the_credentials_of_a_machine(host: str, *, private: bool) -> None:
    with pytest.raises(TargetRefused):
        target_of(f"https://{host}/latest", private=private)


@pytest.mark.parametrize(
    "resolved",
    ["fd00:ec2::254", "fd00:ec2::253", "fd20:ce::254", "169.254.169.254", "::ffff:169.254.169.254", "168.63.129.16"],
)
def test_a_name_that_resolves_to_them_is_refused_too(resolved: str) -> None:
    with pytest.raises(TargetRefused):
        judge(resolved, private=True)


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "WSS_PROXY"])
@pytest.mark.parametrize(
    "text",
    [
        "file:///x",
        "http://u:PW@169.254.169.254:80",
        "http://[fd00:ec2::254]",
        "socks9://h",
        "http://h:x",
        "http://u:PW@169.254.169%2e254",
        "http://metadata\u3002google\u3002internal",
        "http://[fe80::1%25eth0]:3128",
        "http://h:99999",
    ],
)
def test_a_proxy_that_cannot_be_meant_is_refused_without_its_password(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=name) as refused:
        http_limits.check_proxies({name: text})
    assert "PW" not in str(refused.value)


def test_an_ordinary_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in http_limits.PROXIES:
        monkeypatch.delenv(name, raising=False)
    http_limits.check_proxies({"HTTPS_PROXY": "http://user:p%40ss@proxy.example:3128"})
    monkeypatch.setenv("HTTPS_PROXY", "proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "inside.example")
    assert http_limits.proxy_of(httpx.URL("https://api.example/")) == "http://proxy.example:3128"
    assert http_limits.proxy_of(httpx.URL("https://inside.example/")) is None
    assert http_limits.proxy_of(httpx.URL("http://api.example/")) is None


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    broken = tmp_path / "ca.pem"
    broken.write_text("no certificate")
    for path in (broken, tmp_path / "missing.pem"):
        with pytest.raises(ConfigError, match=f"SSL_CERT_FILE={path}"):
            http_limits.tls_context({"SSL_CERT_FILE": str(path)})
