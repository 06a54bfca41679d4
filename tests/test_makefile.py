"""The Makefile's installation: one at a time, `bot` never away, a stamp only for what runs, and a sentence for an
old Python. With an installer that only notes its calls.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

INSTALLER = """\
#!/bin/bash
# A stand-in of uv: `venv` makes an environment, `pip install` adds `bot`. Two at once are an error.
echo "$*" >> calls
mkdir busy 2>/dev/null || { echo "two installers at once" >> calls; exit 9; }
trap 'rmdir busy' EXIT
case "$1" in
venv) rm -rf .venv/bin; mkdir -p .venv/bin; printf '#!/bin/bash\\n' > .venv/bin/python; chmod +x .venv/bin/python ;;
pip)
	sleep 0.1
	printf '#!/bin/bash\\nexit $(cat broken 2>/dev/null || echo 0)\\n' > .venv/bin/bot; chmod +x .venv/bin/bot
	[ "$(cat broken-once 2>/dev/null)" = "" ] || { mv broken-once was-broken; echo 1 > broken; }
	[ "$*" != "${*/--exact/}" ] && [ -e was-broken ] && [ "$(grep -c ^venv calls)" -gt 1 ] && rm -f broken
	true ;;
esac
"""


@pytest.fixture
def clone(tmp_path: Path, repository: Path) -> Path:
    """A folder with the Makefile and the stand-in for uv."""
    for name in (
        "Makefile",
        "requirements.txt",
        "requirements-dev.txt",
        "requirements-uv.txt",
        "requirements-markets.txt",
        "pyproject.toml",
    ):
        shutil.copy(repository / name, tmp_path / name)
    version = (repository / "requirements-uv.txt").read_text().split("uv==")[1].split()[0]
    ready = tmp_path / ".tools" / f"uv-{version}.dist-info" / "RECORD"
    installer = tmp_path / ".tools" / "bin" / "uv"
    for file in (ready, installer):
        file.parent.mkdir(parents=True)
    ready.touch()
    installer.write_text(INSTALLER)
    installer.chmod(0o755)
    for name in tmp_path.iterdir():
        if name.is_file():
            os.utime(name, (1_700_000_000, 1_700_000_000))
    os.utime(ready, (1_700_000_000, 1_700_000_000))
    return tmp_path


def make(clone: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.Popen(
        ["make", *arguments], cwd=clone, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def calls(clone: Path) -> list[str]:
    return (clone / "calls").read_text().splitlines()


def test_two_at_once_install_once_and_both_are_done(clone: Path) -> None:
    both = [make(clone, ".venv/dev.stamp") for _ in range(2)]
    for one in both:
        out, err = one.communicate(timeout=60)
        assert one.returncode == 0, out + err
    assert [call.split()[0] for call in calls(clone)] == ["venv", "pip", "pip"]
    assert (clone / ".venv" / "dev.stamp").exists()


def test_the_demo_beside_the_tests_takes_no_tool_of_the_tests_away(clone: Path) -> None:
    tests = make(clone, ".venv/dev.stamp")
    demo = make(clone, ".venv/run.stamp")
    assert (tests.wait(timeout=60), demo.wait(timeout=60)) == (0, 0)
    kept = [call for call in calls(clone) if "--exact" in call]
    wanted = (clone / ".venv" / "wanted.txt").read_text()
    assert "two installers at once" not in calls(clone)
    assert wanted == (clone / "requirements-dev.txt").read_text() + "-e .\n" and kept
    for one in (tests, demo):
        one.communicate()


def test_a_repeated_installation_uninstalls_nothing_first(clone: Path) -> None:
    """`pip sync` and `venv --clear` would take `bot` away from a daemon that is started meanwhile."""
    first = make(clone, ".venv/dev.stamp")
    first.communicate(timeout=60)
    (clone / "calls").write_text("")
    os.utime(clone / ".venv" / "dev.stamp", (1_700_000_000, 1_700_000_000))
    os.utime(clone / "requirements-dev.txt", (1_700_000_100, 1_700_000_100))
    again = make(clone, ".venv/dev.stamp")
    while again.poll() is None:
        assert (clone / ".venv" / "bin" / "bot").exists()
    again.communicate()
    assert again.returncode == 0
    assert calls(clone) and all(call.startswith("pip install ") for call in calls(clone))


@pytest.mark.parametrize("name", ["clone", "my clone"])
def test_a_link_to_the_folder_is_the_same_folder(
    name: str, clone: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Otherwise each of the two ways to the folder empties the environment that a daemon runs in."""
    link = tmp_path_factory.mktemp("links") / name
    link.symlink_to(clone)
    for folder in (clone, link, clone):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        command = ["make", ".venv/run.stamp"]
        subprocess.run(command, cwd=folder, env=environment | {"PWD": str(folder)}, check=True, capture_output=True)
    assert [call.split()[0] for call in calls(clone)] == ["venv", "pip", "pip"]


def test_an_installation_that_does_not_run_gets_no_stamp(clone: Path) -> None:
    (clone / "broken").write_text("1")
    one = make(clone, ".venv/run.stamp")
    _, err = one.communicate(timeout=60)
    assert one.returncode != 0 and "Starting again with an empty .venv" in err
    assert not (clone / ".venv" / "run.stamp").exists()


def test_an_installation_that_was_broken_is_made_anew(clone: Path) -> None:
    (clone / "broken-once").write_text("1")
    one = make(clone, ".venv/run.stamp")
    one.communicate(timeout=60)
    assert one.returncode == 0
    assert [call.split()[0] for call in calls(clone)] == ["venv", "pip", "pip", "venv", "pip", "pip"]


@pytest.mark.parametrize("target", ["install", ".venv/dev.stamp", ".venv/run.stamp"])
@pytest.mark.parametrize("tools", [True, False])
def test_an_old_python_gets_one_sentence(target: str, *, tools: bool, clone: Path) -> None:
    old = clone / "python3.10"
    old.write_text('#!/bin/bash\n[ "$1" = --version ] && echo Python 3.10.13 || exit 1\n')
    old.chmod(0o755)
    if not tools:
        shutil.rmtree(clone / ".tools")
    one = make(clone, target, f"PYTHON={old}")
    out, err = one.communicate(timeout=60)
    assert one.returncode != 0
    assert f"Bracketbot needs Python 3.11 to 3.14; {old} here is Python 3.10.13." in err
    assert "resolv" not in out + err and not (clone / "calls").exists()
