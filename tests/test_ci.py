"""`.ci/run` on a new machine: it installs the programs without which tests skip, or fails with a clear error."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WAIT_S = 120


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH of stand-in programs.

    Each appends its call to the file $CALLS; apt-get fails when its arguments contain $APT_FAILS.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "dirname", "env"):
        (folder / name).symlink_to(shutil.which(name) or name)
    for name, does in {
        "id": "echo ${USER_ID:-0}",
        "apt-get": '[[ " $* " != *" ${APT_FAILS:-none} "* ]]',
        "make": "",
    }.items():
        (folder / name).write_text(f'#!{shutil.which("bash")}\necho "{name} $*" >> "$CALLS"\n{does}\n')
        (folder / name).chmod(0o755)
    return folder


def land(machine: Path, **environ: str) -> tuple[int, list[str], str]:
    """The exit code of .ci/run, the calls of apt-get and make, and the text on standard error."""
    calls = machine.parent / "calls"
    done = subprocess.run(
        [str(ROOT / ".ci" / "run")],
        env={"PATH": str(machine), "CALLS": str(calls), **environ},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    made = [line for line in calls.read_text().splitlines() if not line.startswith("id")]
    return done.returncode, made, done.stderr


def test_landing_installs_only_what_is_missing_and_then_runs_the_tests(machine: Path) -> None:
    (machine / "strace").symlink_to(machine / "make")
    code, made, _ = land(machine)
    assert code == 0
    assert made[0].startswith("apt-get")
    assert made[0].endswith(" update")
    assert made[1].split()[-2:] == ["chromium", "postgresql"]
    assert "strace" not in made[1]
    assert made[2:] == ["make test"]


@pytest.mark.parametrize(("there", "user"), [(("chromium", "strace", "psql"), "0"), ((), "1000")])
def test_landing_installs_nothing_when_all_is_there_or_without_root(
    machine: Path, there: tuple[str, ...], user: str
) -> None:
    for name in there:
        (machine / name).symlink_to(machine / "make")
    assert land(machine, USER_ID=user)[:2] == (0, ["make test"])


@pytest.mark.parametrize("step", ["update", "install"])
def test_landing_fails_clearly_when_the_registry_does_not_answer(machine: Path, step: str) -> None:
    code, made, said = land(machine, APT_FAILS=step)
    assert code == 1
    assert "make test" not in made
    assert "could not install chromium strace postgresql" in said
