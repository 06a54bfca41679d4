"""How to install an extra: each way that this package can be installed, and that what is named is there."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from bot import extras

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
WHEEL = "file:///tmp/my%20files/bracketbot-0.1.0-py3-none-any.whl"
GIT = {"url": "https://example.com/bot.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
# direct_url.json of an installation -> the arguments that `pip install` gets.
INSTALLATIONS: tuple[tuple[dict[str, Any], list[str]], ...] = (
    ({}, ["bracketbot[ui]"]),
    ({"url": WHEEL, "archive_info": {}}, [f"bracketbot[ui] @ {WHEEL}"]),
    ({"url": "file:///srv/bot", "dir_info": {}}, ["bracketbot[ui] @ file:///srv/bot"]),
    ({"url": "file:///srv/my%20bot", "dir_info": {"editable": True}}, ["-e", "/srv/my bot[ui]"]),
    (GIT, ["bracketbot[ui] @ git+https://example.com/bot.git@abc"]),
)


@pytest.mark.parametrize(("origin", "arguments"), INSTALLATIONS)
def test_the_command_of_an_installation_names_where_it_came_from(origin: dict[str, Any], arguments: list[str]) -> None:
    said = extras.command(("ui",), origin, prefix=Path("/opt/environment"), python="/opt/my python")
    assert shlex.split(said) == ["/opt/my python", "-m", "pip", "install", *arguments]
    if arguments[0] != "-e":
        assert Requirement(arguments[0]).extras == {"ui"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_command_of_a_clone_brings_the_packages_of_the_extra(extra: str, tmp_path: Path) -> None:
    clone = tmp_path / "my bot"
    clone.mkdir()
    (clone / "Makefile").touch()
    origin = {"url": clone.as_uri(), "dir_info": {"editable": True}}
    words = shlex.split(extras.command((extra,), origin, prefix=clone / ".venv", python="python"))
    if words[0] != "make":
        assert words[0] == str(clone / ".tools/bin/uv")
        assert words[-2:] == ["-e", f"{clone}[{extra}]"]
        return
    assert words[:3] == ["make", "-C", str(clone)]
    pins = {".venv/dev.stamp": "requirements-dev.txt", ".venv/markets.stamp": "requirements-markets.txt"}[words[3]]
    subprocess.run(["make", "-n", "-C", str(REPOSITORY), words[3]], check=True, capture_output=True)
    pinned = set(re.findall(r"^([a-z0-9_.-]+)==", (REPOSITORY / pins).read_text(encoding="utf-8"), re.MULTILINE))
    assert {Requirement(one).name.lower() for one in EXTRAS[extra]} <= pinned


def test_nothing_else_in_the_program_says_how_to_install_the_package() -> None:
    said = [
        f"{path.relative_to(REPOSITORY)}:{number}"
        for path in sorted((REPOSITORY / "bot").rglob("*.py"))
        if path.name != "extras.py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if "bracketbot[" in line
    ]
    assert not said
