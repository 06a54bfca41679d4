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
WHEEL = "https://example.com/my%20files/bracketbot-0.1.0-py3-none-any.whl"
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
    here = extras.Installation(origin, Path("/opt/environment"), "/opt/my python")
    said = extras.command(("ui",), here)
    assert shlex.split(said) == ["/opt/my python", "-m", "pip", "install", *arguments]
    if arguments[0] != "-e":
        assert Requirement(arguments[0]).extras == {"ui"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_command_of_a_clone_brings_the_packages_of_the_extra(extra: str, tmp_path: Path) -> None:
    clone = tmp_path / "my bot"
    clone.mkdir()
    (clone / "Makefile").touch()
    origin = {"url": clone.as_uri(), "dir_info": {"editable": True}}
    words = shlex.split(extras.command((extra,), extras.Installation(origin, clone / ".venv", "python")))
    if words[0] != "make":
        assert words[0] == str(clone / ".tools/bin/uv")
        assert words[-2:] == ["-e", f"{clone}[{extra}]"]
        return
    assert words[:3] == ["make", "-C", str(clone)]
    pins = {".venv/dev.stamp": "requirements-dev.txt", ".venv/markets.stamp": "requirements-markets.txt"}[words[3]]
    subprocess.run(["make", "-n", "-C", str(REPOSITORY), words[3]], check=True, capture_output=True)
    pinned = set(re.findall(r"^([a-z0-9_.-]+)==", (REPOSITORY / pins).read_text(encoding="utf-8"), re.MULTILINE))
    assert {Requirement(one).name.lower() for one in EXTRAS[extra]} <= pinned


def test_nothing_else_in_the_program_says_how_to_install_a_package() -> None:
    said = [
        f"{path.relative_to(REPOSITORY)}:{number}"
        for path in sorted((REPOSITORY / "bot").rglob("*.py"))
        if path.name != "extras.py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"bracketbot\[|pip3? install|pipx |uv (tool|pip) |apt(-get)? install", line)
    ]
    assert not said


# What the environment is made with -> how packages get into it.
INSTALLERS = {
    "pip": ((), True, ["/opt/my python", "-m", "pip", "install"]),
    "uv": (("uv-receipt.toml",), False, ["uv", "pip", "install", "--python", "/opt/my python"]),
    "pipx": (("pipx_metadata.json",), True, ["pipx", "runpip", "my bot", "install"]),
}


@pytest.mark.parametrize("name", INSTALLERS)
def test_a_command_uses_the_installer_of_its_environment(name: str, tmp_path: Path) -> None:
    files, has_pip, words = INSTALLERS[name]
    prefix = tmp_path / "my bot"
    prefix.mkdir()
    for file in files:
        (prefix / file).touch()
    here = extras.Installation({}, prefix, "/opt/my python", has_pip=has_pip)
    assert shlex.split(extras.command(("ui",), here)) == [*words, "bracketbot[ui]"]


def test_a_wheel_that_is_gone_is_not_named_but_the_packages_of_the_extra(tmp_path: Path) -> None:
    wheel = tmp_path / "bracketbot-0.1.0-py3-none-any.whl"
    needs = ["jinja2>=3.1.6,<4 ; extra == 'ui'", "litecharts==0.2.0 ; extra == 'ui'", "polars>=2 ; extra == 'data'"]
    here = extras.Installation({"url": wheel.as_uri(), "archive_info": {}}, tmp_path, "python", True, needs)
    gone = shlex.split(extras.command(("ui",), here))
    assert gone == ["python", "-m", "pip", "install", "jinja2>=3.1.6,<4", "litecharts==0.2.0"]
    wheel.touch()
    assert shlex.split(extras.command(("ui",), here))[-1] == f"bracketbot[ui] @ {wheel.as_uri()}"


def test_an_environment_apart_gets_the_packages_of_the_extra() -> None:
    for extra in ("markets", "calendars"):
        words = shlex.split(extras.own_environment("apart", extra))
        assert words[1:5] == ["-m", "venv", "apart", "&&"]
        assert words[5:] == ["apart/bin/pip", "install", *EXTRAS[extra]]
