"""The file with an agent's key: its address, and what is wrong with a file."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import eth_account
import pytest

from bot.errors import ConfigError
from bot.exchanges.hyperliquid import agent_key
from bot.exchanges.hyperliquid.agent_key import CURVE_ORDER, address_of_key_file
from bot.extras import install


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "agent"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("form", ["0x{}", "{}", "0x{}\n", "  {}\r\n"])
@pytest.mark.parametrize("key", ["01" * 32, "f" * 63 + "0", f"{7:064x}"])
def test_the_address_of_a_key_is_the_one_that_the_signing_library_computes(tmp_path: Path, key: str, form: str) -> None:
    if int(key, 16) >= CURVE_ORDER:
        key = "7" + key[1:]
    found = address_of_key_file(written(tmp_path, form.format(key)))
    assert found == eth_account.Account.from_key(f"0x{key}").address.lower()


SECRET = "ab" * 32


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("", 0o600, "64 hexadecimal digits"),
        (SECRET[:-1], 0o600, "64 hexadecimal digits"),
        (f"{SECRET} {SECRET}", 0o600, "64 hexadecimal digits"),
        (SECRET * 200, 0o600, "64 hexadecimal digits"),
        ("0" * 64, 0o600, "64 hexadecimal digits"),
        (f"{CURVE_ORDER:064x}", 0o600, "64 hexadecimal digits"),
        (SECRET, 0o640, "mode 0640); chmod 600 it"),
        (SECRET, 0o604, "mode 0604); chmod 600 it"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_without_its_content(
    tmp_path: Path, text: str, mode: int, words: str
) -> None:
    path = written(tmp_path, text, mode)
    with pytest.raises(ConfigError) as caught:
        address_of_key_file(path)
    assert words in str(caught.value) and str(path) in str(caught.value)
    assert SECRET[:12] not in str(caught.value)


def test_without_its_library_the_error_names_the_extra_that_has_it(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_key, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=re.escape(f"needs pycryptodome: {install('exchange')}")):
        address_of_key_file(written(tmp_path, SECRET))
    extras = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(one.startswith("pycryptodome") for one in extras["exchange"])


def test_a_missing_file_a_folder_and_a_pipe_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, words in (("none", "No such file"), (".", "is not a file"), ("pipe", "is not a file")):
        with pytest.raises(ConfigError, match=words):
            address_of_key_file(tmp_path / name)
