"""The pytest plugin, as a user's own project meets it: one line for a fresh service, options by a mark, nothing left
behind.
"""

from __future__ import annotations

import ssl
import subprocess
import sys
import threading

import httpx
import pytest

from bot.testing.hyperliquid import LocalExchange
from bot.testing.sandbox import Options, Sandbox, options_of
from tests.documents import PAGES, blocks

pytest_plugins = ["pytester"]

ENTRY = {"market": "BTC", "side": "long", "usdAmount": 100, "bracket": {"stopLoss": {"pct": 2}}}


def test_a_test_gets_a_fresh_service_in_one_line(sandbox: Sandbox) -> None:
    http = sandbox.client()
    account = http.get("/v1/account").json()
    assert account["accountId"] == sandbox.account_id
    assert account["balanceUsd"] == "10000"
    before = sandbox.digest()
    assert sandbox.price("BTC", 100_000)["markPx"] == "100000"
    done = http.post("/v1/orders", json=ENTRY)
    assert done.status_code == 200, done.text
    assert sandbox.digest() != before
    sandbox.price("BTC", "97000")
    assert http.get("/v1/account").json()["positions"] == []
    now = account["serverTime"]
    assert sandbox.advance(60_000)["now"] == now + 60_000


def test_snapshots_and_faults_are_at_hand(sandbox: Sandbox) -> None:
    http = sandbox.client()
    before = sandbox.digest()
    sandbox.snapshot()
    sandbox.fault("post_orders", "lose_reply")
    with pytest.raises(httpx.RemoteProtocolError):
        http.post("/v1/orders", json=ENTRY)
    assert len(http.get("/v1/trades").json()["trades"]) == 1
    sandbox.restore()
    assert sandbox.digest() == before
    with pytest.raises(AssertionError, match="404"):
        sandbox.restore("never")


def test_a_service_and_an_exchange_on_plain_http_read_no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take longer to read than these take to start."""

    def read(*_: object, **__: object) -> None:
        pytest.fail("certificates are read")

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", read)
    with Sandbox() as sandbox, LocalExchange() as exchange:
        assert sandbox.client().get("/v1/account").status_code == 200
        assert exchange.state()["now"] > 0


async def test_the_packages_own_clients_fit(sandbox: Sandbox) -> None:
    async with sandbox.async_client() as client, sandbox.control_client() as control:
        assert (await client.account()).account_id == sandbox.account_id
        assert (await control.clock()).mode == "manual"
        made = await control.snapshot("a")
        assert (await control.restore("a")).digest == made.digest
        assert (await control.reset()).now <= made.at


@pytest.mark.sandbox(clock="60x", seed=3, markets=["BTC"], balance="500")
def test_a_mark_says_how_the_service_is(sandbox: Sandbox) -> None:
    http = sandbox.client()
    assert [market["coin"] for market in http.get("/v1/markets").json()["markets"]] == ["BTC"]
    assert http.get("/v1/account").json()["balanceUsd"] == "500"
    assert sandbox.control("GET", "/clock")["speed"] == 60


def test_the_same_seed_gives_the_same_prices() -> None:
    def prices(seed: int) -> object:
        with Sandbox(Options(seed=seed, markets=("BTC",))) as one:
            one.advance(600_000)
            return one.client().get("/v1/markets/BTC/candles?interval=1m&limit=20").json()["candles"]

    assert prices(4) == prices(4) != prices(5)


def test_nothing_is_left_behind() -> None:
    with Sandbox(Options(markets=("BTC",))) as one:
        address = one.base_url
    assert not [thread for thread in threading.enumerate() if thread.name == "sandbox"]
    with pytest.raises(httpx.ConnectError):
        httpx.get(address, trust_env=False)


def test_a_service_that_cannot_start_says_why() -> None:
    """Also when its thread is still there by then, and the loop in it is closed."""

    class Lingers(Sandbox):
        def _run(self) -> None:
            super()._run()
            threading.Event().wait(0.2)

    for made in (Sandbox, Lingers):
        with pytest.raises(Exception, match="no market 'NOPE'"), made(Options(markets=("NOPE",))):
            pass


def test_a_wrong_option_is_named() -> None:
    for args, given, said in (
        (("60x",), {}, "keyword arguments only"),
        ((), {"speed": 60}, "has no argument 'speed'"),
        ((), {"markets": "BTC"}, "is a list"),
        ((), {"clock": "fast"}, "must be real, manual"),
        ((), {"prices": "made up"}, "'simulated' or 'pushed'"),
    ):
        with pytest.raises((TypeError, ValueError), match=said):
            options_of(args, given)


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini(
        "[pytest]\naddopts = --strict-markers\nfilterwarnings = error\nasyncio_default_fixture_loop_scope = function\n"
    )
    return pytester


WRONG = """

@pytest.mark.sandbox(clok="60x")
def test_wrong(sandbox):
    pass
"""


def test_a_project_needs_no_conftest_and_the_tests_of_the_docs_pass(project: pytest.Pytester) -> None:
    (example,) = blocks("py", PAGES["testing-your-client"])
    project.makepyfile(example + WRONG)
    done = project.runpytest_subprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=3, errors=1)
    done.stdout.fnmatch_lines(["*@pytest.mark.sandbox: has no argument 'clok'; it has clock, seed, markets*"])
    done.stdout.no_fnmatch_line("*service.ready*")


def test_the_fixture_and_its_mark_are_documented(project: pytest.Pytester) -> None:
    project.makepyfile("def test_nothing(): pass")
    project.runpytest_inprocess("--markers").stdout.fnmatch_lines(["@pytest.mark.sandbox(clock='manual', *"])
    project.runpytest_inprocess("--fixtures").stdout.fnmatch_lines(
        ["sandbox -- *", "*A trading service of the test's own*"]
    )


def test_the_plugin_imports_only_pytest() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules); import bot.testing.plugin; print(*sorted(set(sys.modules) -"
        " before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["bot", "bot.testing", "bot.testing.plugin"]
