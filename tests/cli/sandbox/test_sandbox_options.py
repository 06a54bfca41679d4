"""The options of `bot sandbox`: what is wrong ends with exit code 4 and one sentence, before anything is served;
what is right reaches the service.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bot.cli.app import call
from bot.service import host
from bot.service.host import HostOptions


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--allow-origin", "app.example"], "is not an origin"),
        (["--allow-origin", "https://app.example/path"], "is not an origin"),
        (["--host", "0.0.0.0", "--private-webhooks"], "only a service on loopback"),
        (["--invite-codes", "{folder}/none"], "cannot be read"),
        (["--invite-codes", "{folder}/empty"], "has no codes"),
        (["--invite-codes", "{folder}/short"], "code 2 must have 6 to 64 characters"),
    ],
)
def test_a_wrong_option_is_one_sentence(
    arguments: list[str], words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").write_text("\n\n")
    (tmp_path / "short").write_text("secret-one\nabc\n")
    assert call(["sandbox", "--port", "0", *(one.format(folder=tmp_path) for one in arguments)]) == 4
    said = capfd.readouterr().err.strip().splitlines()[-1]
    assert words in said
    assert "Traceback" not in said and "secret-one" not in said


def test_right_options_reach_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[HostOptions] = []

    def serve(options: HostOptions, **_: Any) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr(host, "serve", serve)
    codes = tmp_path / "codes"
    codes.write_text("one-code\n\ntwo-code\n")
    arguments = [
        "--allow-origin",
        "https://a.example",
        "--allow-origin",
        "http://localhost:5173",
        "--invite-codes",
        str(codes),
    ]
    assert call(["sandbox", *arguments, "--no-private-webhooks", "--no-rate-limits"]) == 0
    assert call(["sandbox"]) == 0
    first, plain = seen
    assert first.origins == ("https://a.example", "http://localhost:5173")
    assert first.invite_codes == ("one-code", "two-code")
    assert (first.webhooks_private, first.rate_limits) == (False, False)
    assert (plain.origins, plain.invite_codes, plain.webhooks_private, plain.rate_limits) == ((), (), None, True)
    assert "one-code" not in repr(first)
