"""Secrets come by reference, and no message, repr or listing shows one."""

from __future__ import annotations

import json
import os
import traceback
from pathlib import Path

import pytest

from bot.config import ConfigError, Problem, load, redacted

SECRET = "hunter2-is-no-good"
TOKEN = "bbk_test_12345678_AAAABBBB_crc"
STRATEGIES = "strategies:\n  - {name: one, use: b, markets: [BTC], budget_usd: 100}\n"


def config(tmp_path: Path, api_key: str, rest: str = "") -> Path:
    file = tmp_path / "live.yaml"
    file.write_text(f"account: {{base_url: https://c.example, api_key: {api_key}}}\n{STRATEGIES}{rest}")
    return file


def refused(file: Path, environ: dict[str, str]) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        load(file, environ)
    told = "".join(traceback.format_exception(caught.value)) + repr(caught.value.problems)
    assert SECRET not in told
    assert TOKEN not in told
    return caught.value.problems


def private(file: Path, text: str = SECRET, mode: int = 0o600) -> Path:
    file.write_text(text)
    file.chmod(mode)
    return file


def test_a_secret_comes_from_the_environment(tmp_path: Path) -> None:
    settings = load(config(tmp_path, '"${env:KEY}"'), {"KEY": SECRET})
    assert settings.account.api_key is not None
    assert settings.account.api_key.get_secret_value() == SECRET


def test_a_secret_of_digits_stays_text(tmp_path: Path) -> None:
    settings = load(config(tmp_path, '"${env:KEY}"'), {"KEY": "0123"})
    assert settings.account.api_key is not None
    assert settings.account.api_key.get_secret_value() == "0123"


def test_a_secret_comes_from_a_file_beside_the_config(tmp_path: Path) -> None:
    private(tmp_path / "key", SECRET + "\n")
    settings = load(config(tmp_path, '"${file:key}"'), {})
    assert settings.account.api_key is not None
    assert settings.account.api_key.get_secret_value() == SECRET


def test_a_secret_comes_from_systemd(tmp_path: Path) -> None:
    folder = tmp_path / "credentials"
    folder.mkdir()
    private(folder / "bot-api-key", mode=0o440)
    settings = load(config(tmp_path, '"${credential:bot-api-key}"'), {"CREDENTIALS_DIRECTORY": str(folder)})
    assert settings.account.api_key is not None
    assert settings.account.api_key.get_secret_value() == SECRET


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620])
def test_a_file_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    private(tmp_path / "key", mode=mode)
    (found,) = refused(config(tmp_path, '"${file:key}"'), {})
    assert (found.line, found.column, found.key) == (1, 49, "account.api_key")
    assert f"the file key is readable by other users (mode {mode:04o}): chmod 600 it" in found.message


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("${env:KEY}", "the environment variable KEY is not set"),
        ("${env:EMPTY}", "the environment variable EMPTY is empty"),
        ("${file:none}", "the file none cannot be read: No such file or directory"),
        ("${file:.}", "the file . is not a file"),
        ("${file:empty}", "the file empty is empty"),
        ("${file:bytes}", "the file bytes is not UTF-8 text"),
        ("${file:~nobody-of-this-name/key}", "the folder that ~ means is not known here; write the whole path"),
        ("${file:large}", "the file large is larger than 65536 bytes"),
        (
            "${credential:key}",
            "comes from systemd (LoadCredential=), and systemd did not start this process with credentials",
        ),
        ("${vault:key}", "${vault:key} is not a reference; write ${credential:NAME} (systemd), ${file:PATH}"),
        ("${KEY}", "is not a reference"),
        ("x${env:EMPTY}", "a secret must be one reference and nothing else"),
    ],
)
def test_a_secret_that_cannot_be_had_says_why(tmp_path: Path, reference: str, message: str) -> None:
    private(tmp_path / "empty", "")
    private(tmp_path / "large", "x" * 65_537)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "bytes").chmod(0o600)
    (found,) = refused(config(tmp_path, f'"{reference}"'), {"EMPTY": ""})
    assert (found.line, found.column, found.key) == (1, 49, "account.api_key")
    assert message in found.message


@pytest.mark.parametrize(
    "held", [f"{SECRET}\nof live", f"{SECRET} ", f" {SECRET}", f"\ufeff{SECRET}", f"{SECRET}é", "  "]
)
def test_what_fits_into_no_header_is_no_key(tmp_path: Path, held: str) -> None:
    private(tmp_path / "key", held)
    for reference in ("${file:key}", "${env:KEY}"):
        (found,) = refused(config(tmp_path, f'"{reference}"'), {"KEY": held})
        assert (found.key, found.message) == (
            "account.api_key",
            (
                f"{reference} does not hold an API key: a key is one ASCII word without blanks, line breaks or a byte"
                " order mark"
            ),
        )


@pytest.mark.parametrize("name", ["../key", "a/b", ".", "..", "none"])
def test_a_credential_stays_inside_its_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "credentials"
    folder.mkdir()
    private(tmp_path / "key")
    (found,) = refused(config(tmp_path, f'"${{credential:{name}}}"'), {"CREDENTIALS_DIRECTORY": str(folder)})
    assert "letters, digits" in found.message or "cannot be read" in found.message


@pytest.mark.parametrize("literal", [SECRET, f'"{SECRET}"', TOKEN, "12345678901234"])
def test_a_secret_in_the_file_is_refused_with_the_way_out(tmp_path: Path, literal: str) -> None:
    (found,) = refused(config(tmp_path, literal), {})
    assert "a secret must not be in the file; write ${credential:NAME}" in found.message
    assert "12345678901234" not in found.shown


@pytest.mark.parametrize(
    "text",
    [
        f"account: {{base_url: nowhere, api_key: {SECRET}, nope: 1}}\n{STRATEGIES}",
        f"account: {{base_url: https://c.example, api_kee: {SECRET}}}\n{STRATEGIES}",
        f"account:\n  base_url: https://c.example\n  api_key:\n    - {SECRET}\n{STRATEGIES}",
        f"account:\n  base_url: https://c.example\n  api_key: {{a: {SECRET}\n{STRATEGIES}",
        f"account: {{base_url: https://c.example, api_key: '{SECRET}}}\n{STRATEGIES}",
        f"account: {TOKEN}\n{STRATEGIES}",
        f"account: {{base_url: {TOKEN}}}\n{STRATEGIES}",
        f"account: {{base_url: 'https://me:{SECRET}@c.example', nope: 1}}\n{STRATEGIES}",
        f"account:\n  base_url: https//me:{SECRET}@c.example\n{STRATEGIES}",
        f"account:\n  base_url: https://c.example?key={SECRET}\n{STRATEGIES}",
        f"account: {{base_url: embedded}}\n{STRATEGIES}{TOKEN}: 1\n",
        f"account: {{base_url: https://c.example, api_key: |\n  {SECRET}\n  }}\n{STRATEGIES}",
        f"account:\n  base_url: nowhere\n  api_key: >-\n    {SECRET}\n    {SECRET}\n{STRATEGIES}",
        f"account: {{base_url: embedded}}\n{STRATEGIES}log: {{token: {SECRET}}}\n",
        f"account: {{base_url: https://c.example, api_key:{SECRET}}}\n{STRATEGIES}",
        f"account: {{base_url: https://c.example, api_key={SECRET}}}\n{STRATEGIES}",
        f"account: {{api_key:{SECRET} base_url: https://c.example}}\n{STRATEGIES}",
        # No YAML, with the place of the mistake in the secret's own line.
        f"account: {{base_url: https://c.example, api_key: {SECRET}]\n{STRATEGIES}",
        f"account:\n  api_key: {SECRET} base_url: https://c.example\n{STRATEGIES}",
        f"account:\n  api_key:{SECRET} base_url: https: x\n{STRATEGIES}",
        f"account:\n  api_key:\n    {SECRET}: a: b\n{STRATEGIES}",
        f'account:\n  "api_key": "{SECRET}\\q"\n{STRATEGIES}',
        f"account:\n  api_key: @{SECRET}\n{STRATEGIES}",
        f"account:\n  api_key: *{SECRET}\n{STRATEGIES}",
        f"account: {{base_url: embedded}}\nnotify:\n  urls:\n  - @{SECRET}\n{STRATEGIES}",
    ],
)
def test_no_message_shows_a_secret_wherever_it_was_put(tmp_path: Path, text: str) -> None:
    file = tmp_path / "live.yaml"
    file.write_text(text)
    assert refused(file, {})


def test_an_address_without_a_secret_is_shown_with_what_is_wrong_in_it(tmp_path: Path) -> None:
    file = tmp_path / "live.yaml"
    file.write_text(f"account:\n  base_url: htps://c.example\n  api_key: ${{env:KEY}}\n{STRATEGIES}")
    (found,) = refused(file, {"KEY": SECRET})
    assert "base_url: htps://c.example" in found.shown


def test_a_reference_is_shown_where_the_file_is_no_yaml(tmp_path: Path) -> None:
    (found,) = refused(config(tmp_path, "${env:KEY}"), {"KEY": SECRET})
    assert "api_key: ${env:KEY}" in found.shown


def test_no_message_shows_what_a_reference_stands_for(tmp_path: Path) -> None:
    file = config(tmp_path, '"${env:KEY}"', 'log: {level: "${env:KEY}"}\nnope: 1\n')
    found = refused(file, {"KEY": SECRET})
    assert [problem.key for problem in found] == ["log.level", "nope"]


def test_a_config_that_is_shown_hides_its_secrets(tmp_path: Path) -> None:
    rest = 'log: {level: "${env:LEVEL}"}\n'
    text = (
        config(tmp_path, '"${env:KEY}"', rest)
        .read_text()
        .replace("budget_usd: 100", 'budget_usd: 100, params: {feed_token: "${env:KEY}", url: ' + TOKEN + "}")
    )
    (tmp_path / "live.yaml").write_text(text)
    settings = load(tmp_path / "live.yaml", {"KEY": SECRET, "LEVEL": "debug"})
    assert settings.strategies[0].params["feed_token"] == SECRET
    shown = json.dumps(redacted(settings))
    assert SECRET not in shown
    assert TOKEN not in shown
    assert '"level": "debug"' in shown
    assert SECRET not in repr(settings.account)
    assert SECRET not in str(settings.account)
    assert SECRET not in settings.account.model_dump_json()


def test_a_named_pipe_does_not_hold_the_daemon_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (found,) = refused(config(tmp_path, '"${file:pipe}"'), {})
    assert "is not a file" in found.message
