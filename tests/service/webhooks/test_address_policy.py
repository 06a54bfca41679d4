"""Addresses of webhooks: every special-purpose address is refused in every spelling, by form and by the result of
name resolution.
"""

from __future__ import annotations

import pytest

from bot.service.webhooks.address_policy import TargetRefused, addresses_of, judge, literals, target_of

NEVER = [
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "192.0.0.8",
    "192.0.0.170",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
    "100::1",
    "2001:db8::1",
    "3fff::1",
    "5f00::1",
    "2001::1",
    "2001:2::1",
    "64:ff9b:1::1",
    "::ffff:169.254.169.254",
    "::169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "2001:0:a9fe:a9fe::1",
    "2001:0:808:808:0:0:5601:5601",
    "4000::1",
    "::ffff:0:127.0.0.1",
]
PRIVATE = [
    "127.0.0.1",
    "127.9.9.9",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "::1",
    "fc00::1",
    "fd12::1",
]
DISGUISED = [
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::c0a8:101",
    "2002:7f00:1::",
    "2002:a00:1::",
]
PUBLIC = [
    "8.8.8.8",
    "1.1.1.1",
    "172.32.0.1",
    "100.128.0.1",
    "2606:4700::1",
    "2a00:1450::1",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
]


@pytest.mark.parametrize("address", NEVER)
@pytest.mark.parametrize("private", [False, True])
def test_a_special_purpose_address_is_never_connected_to(address: str, private: bool) -> None:
    with pytest.raises(TargetRefused):
        judge(address, private=private)


@pytest.mark.parametrize("address", PRIVATE + DISGUISED)
def test_a_private_address_is_for_a_service_on_loopback_only(address: str) -> None:
    with pytest.raises(TargetRefused):
        judge(address, private=False)
    judge(address, private=True)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_accepted(address: str) -> None:
    judge(address, private=False)


@pytest.mark.parametrize(
    "spelling",
    [
        "0x7f000001",
        "2130706433",
        "127.1",
        "017700000001",
        "0177.0.0.1",
        "0x7f.1",
        "127.0.0.1",
        "[::1]",
        "[::ffff:7f00:1]",
    ],
)
def test_no_spelling_of_loopback_is_accepted(spelling: str) -> None:
    with pytest.raises(TargetRefused, match="not a public address"):
        target_of(f"https://{spelling}/hook", private=False)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://example.com/", "https"),
        ("ftp://example.com/", "https"),
        ("https://example.com:8443/", "443"),
        ("https://example.com:80/", "443"),
        ("https://user@example.com/", "user name"),
        ("https://user:pw@example.com/", "user name"),
        ("https://@example.com/", "user name"),
        ("https:///x", "host"),
        ("https://exa%6dple.com/", "host"),
        ("https://[fe80::1%25eth0]/", "host"),
        ("https://a\\b/", "host"),
        ("https://localhost/", "not a public address|the service's own machine"),
        ("https://x.localhost./", "the service's own machine"),
        ("https://[::1/", "well-formed"),
        ("https://example.com:99999/", "well-formed"),
    ],
)
def test_an_address_of_invalid_form_is_refused(url: str, why: str) -> None:
    with pytest.raises(TargetRefused, match=why):
        target_of(url, private=False)


def test_a_service_on_loopback_accepts_http_and_any_port() -> None:
    target = target_of("http://127.0.0.1:8080/a?b=1#c", private=True)
    assert (target.host, target.port, target.path, target.authority) == ("127.0.0.1", 8080, "/a?b=1", "127.0.0.1:8080")
    assert target_of("https://[2606:4700::1]/", private=False).authority == "[2606:4700::1]"


async def test_one_bad_address_among_good_ones_refuses_the_name() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["8.8.8.8", "2606:4700::1", "::ffff:10.0.0.1"]

    with pytest.raises(TargetRefused, match="10.0.0.1|a00:1"):
        await addresses_of(target_of("https://example.com/", private=False), resolve, private=False)


def test_a_host_name_is_not_taken_for_an_ip_literal() -> None:
    assert literals("example.com") == []
    assert literals("x" * 300) == []
