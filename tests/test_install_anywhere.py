"""The wheel alone, in an environment and a folder with nothing else: it works, or says in one sentence what is wrong.

Also where the calls are absent that only Linux has: by Python's names, and by the kernel's refusal.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.documents import ROOT
from tests.environments import build_wheel, environment_of

WAIT_S = 180
PR_CAPBSET_DROP = 24
# CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: without them the rights of files hold for root, too
OVERRIDES = (1, 2)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def bot(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command `bot` of an environment whose path has a space."""
    return environment_of(wheel, tmp_path_factory.mktemp("an environment") / "env") / "bin" / "bot"


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty folder; its path is short enough for a socket and has a space."""
    folder = Path(tempfile.mkdtemp(prefix="a b"))
    yield folder
    for closed in (folder, *folder.glob("*")):
        closed.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def home_of(place: Path) -> Path:
    home = place / "home"
    home.mkdir(exist_ok=True)
    return home


def run(
    bot: Path,
    command: str,
    place: Path,
    environ: Mapping[str, str] | None = None,
    before: Callable[[], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command of the wheel without a terminal, from the folder."""
    home = str(home_of(place))
    return subprocess.run(
        [bot, *shlex.split(command)],
        cwd=place,
        env={"PATH": f"{bot.parent}:{os.defpath}", "HOME": home, "XDG_RUNTIME_DIR": home, **(environ or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        timeout=WAIT_S,
        check=False,
        start_new_session=True,
        preexec_fn=before,
    )


def obey_rights() -> None:
    libc = ctypes.CDLL(None)
    for capability in OVERRIDES:
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def close_umask() -> None:
    os.umask(0o077)


@dataclass(frozen=True)
class Circumstance:
    """`closed`: folders that may not be written; `says`: what the one line of an error must say, else it works."""

    command: str
    environ: Mapping[str, str] = field(default_factory=dict)
    before: Callable[[], None] | None = None
    closed: tuple[str, ...] = ()
    says: str = ""
    remedy: str = ""


NO_UTF8 = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
CIRCUMSTANCES = {
    "a folder that may not be written, demo": Circumstance("demo --for 1s", before=obey_rights, closed=(".",)),
    "a folder that may not be written, init": Circumstance(
        "init mine", before=obey_rights, closed=(".",), says="Name a folder that you may write", remedy="init home/mine"
    ),
    "a home that may not be written, demo": Circumstance(
        "demo --for 1s",
        before=obey_rights,
        closed=("home",),
        says="a folder that you may write (bot demo: --state-dir)",
        remedy="demo --for 1s --state-dir state",
    ),
    "a home that may not be written, init": Circumstance("init mine", before=obey_rights, closed=("home",)),
    "a locale without UTF-8, demo": Circumstance("demo --for 1s", NO_UTF8),
    "a locale without UTF-8, init": Circumstance("init mine", NO_UTF8),
    "a closed umask, demo": Circumstance("demo --for 1s", before=close_umask),
    "a closed umask, init": Circumstance("init mine", before=close_umask),
}


@pytest.mark.parametrize("name", CIRCUMSTANCES)
def test_the_wheel_works_or_says_in_one_sentence_what_is_wrong(name: str, bot: Path, place: Path) -> None:
    case = CIRCUMSTANCES[name]
    home_of(place)
    for folder in case.closed:
        (place / folder).chmod(0o555)
    done = run(bot, case.command, place, case.environ, case.before)
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    if not case.says:
        assert done.returncode == 0, said
        return
    assert (done.returncode in (1, 4), done.stdout, done.stderr.count("\n")) == (True, "", 1), said
    assert done.stderr.startswith("error: ") and case.says in done.stderr
    again = run(bot, case.remedy, place, case.environ, case.before)
    assert again.returncode == 0, again.stderr


def test_a_new_user_makes_checks_and_backtests_a_config_with_the_wheel_alone(bot: Path, place: Path) -> None:
    rows = ["ts,open,high,low,close,volume"]
    for minute in range(20 * 24 * 60):
        px = 100_000 + 900 * ((minute // 180) % 4) + minute % 7
        rows.append(f"{1_750_000_020_000 // 60_000 * 60_000 + minute * 60_000},{px},{px + 5},{px - 5},{px + 1},10")
    (place / "candles.csv").write_text("\n".join(rows) + "\n")
    for command in ("init mine", "check mine/bot.yaml", "backtest mine/bot.yaml --data BTC=candles.csv"):
        done = run(bot, command, place)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert str(ROOT) not in done.stdout + done.stderr


def test_a_missing_extra_is_named_with_a_command_that_works_in_this_environment(
    bot: Path, wheel: Path, place: Path
) -> None:
    done = run(bot, "paper --exchange kraken", place)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    said = re.search(r"\): (.+?)\. Or give it an environment of its own: (.+?), and set", done.stderr)
    assert said is not None, done.stderr
    words = shlex.split(said[1])
    assert words[:4] == [str(bot.parent / "python"), "-m", "pip", "install"]
    assert re.fullmatch(r"bracketbot\[markets\] @ file://\S+\.whl", words[4])
    # The same command for an extra whose packages are here, so that it needs no network; then as the guides write it.
    for named in (words[4].replace("[markets]", "[ui]"), f"{wheel}[ui]"):
        tried = subprocess.run(
            [*words[:4], named, "--no-index", "--dry-run"], capture_output=True, text=True, check=False
        )
        assert tried.returncode == 0, tried.stderr
    # A name that is not there is refused, so that the command above has been read.
    words[4] = words[4].replace("[markets]", "[ui]").replace("bracketbot-", "nothing-")
    tried = subprocess.run([*words, "--no-index", "--dry-run"], capture_output=True, text=True, check=False)
    assert tried.returncode != 0


def test_an_old_python_gets_one_sentence() -> None:
    code = "import runpy, sys; sys.version_info = (3, 10, 13); runpy.run_module('bot', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("error: Bracketbot needs Python 3.11 or newer; ")


def test_an_installer_knows_the_oldest_python(bot: Path) -> None:
    (metadata,) = bot.parent.parent.glob("lib/python*/site-packages/bracketbot-*.dist-info/METADATA")
    assert "Requires-Python: >=3.11" in metadata.read_text().splitlines()


# -- Without the calls that only Linux has

# Loaded by each Python of the environment, also by those that the daemon starts.
ABSENT = """\
import ctypes, os, socket, sys, time

for module, names in ((os, "pidfd_open posix_fallocate"), (socket, "SO_PEERCRED SOCK_CLOEXEC SOCK_NONBLOCK"),
                      (time, "CLOCK_BOOTTIME")):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)


class Library(ctypes.CDLL):
    def __getattr__(self, name):
        if name in ("prctl", "mallopt"):
            raise AttributeError(name)
        return super().__getattr__(name)


def refuse_proc(event, args):
    if event in ("open", "os.listdir", "os.scandir", "socket.bind", "socket.connect"):
        path = args[event.startswith("socket.")]
        if isinstance(path, str) and path.startswith("/proc"):
            raise FileNotFoundError(2, "no /proc here", path)


def readlink(path, _readlink=os.readlink, **given):
    refuse_proc("open", (os.fspath(path),))
    return _readlink(path, **given)


ctypes.CDLL, os.readlink = Library, readlink
sys.addaudithook(refuse_proc)
"""
# Refuses by seccomp what the kernel offers, and runs the command that follows. The filter holds for all children.
REFUSED = """\
import ctypes, os, struct, sys

LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
REFUSE, ALLOW = 0x00050000, 0x7FFF0000
numbers = {"x86_64": (157, 434, 285, 55), "aarch64": (167, 434, 47, 209)}[os.uname().machine]
rows = [(LOAD, 0, 0, 0)]
for number in numbers[:3]:
    rows += [(EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE | 38)]
# getsockopt(_, SOL_SOCKET, SO_PEERCRED, ...)
rows += [(EQUAL, 0, 5, numbers[3]), (LOAD, 0, 0, 24), (EQUAL, 0, 3, 1), (LOAD, 0, 0, 32), (EQUAL, 0, 1, 17)]
rows += [(RETURN, 0, 0, REFUSE | 92), (RETURN, 0, 0, ALLOW)]
program = b"".join(struct.pack("HBBI", *row) for row in rows)
code = ctypes.create_string_buffer(program, len(program))
prog = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rows), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, prog, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.argv[1], sys.argv[1:])
"""
PROBE = """
import ctypes, os, socket
from bot import operating_system as system
one, other = socket.socketpair()
print([system._libc_call("prctl", 3, 0, 0, 0, 0), system.peer_uid(one), system.kernel_boot_id(), system.path_of(0)])
"""


@pytest.fixture(scope="module", params=["absent", "refused"])
def without(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The words before the arguments of `bot`, where these calls cannot be made."""
    environment = environment_of(wheel, tmp_path_factory.mktemp("without") / "env")
    command = environment / "bin" / "bot"
    if request.param == "refused":
        if platform.machine() not in ("x86_64", "aarch64"):
            pytest.skip("the numbers of the system calls are not known for this machine")
        return [sys.executable, "-c", REFUSED, str(environment / "bin" / "python"), str(command)]
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "absent_calls.py").write_text(ABSENT)
    (packages / "absent_calls.pth").write_text("import absent_calls\n")
    return [str(environment / "bin" / "python"), str(command)]


def heartbeats_of(environment: str) -> list[int]:
    pids = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:
            continue
        if environment.encode() in words[0] and any(b"liveness.heartbeat" in word for word in words):
            pids.append(int(file.parent.name))
    return pids


def test_without_these_calls_the_demo_trades_is_killed_and_continues(without: list[str], place: Path) -> None:
    home = str(home_of(place))
    environ = {"PATH": os.defpath, "HOME": home, "XDG_RUNTIME_DIR": home}
    python = without[-2]

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*without, *words], cwd=place, env=environ, capture_output=True, text=True, timeout=WAIT_S, check=False
        )

    probe = subprocess.run([*without[:-1], "-c", PROBE], env=environ, capture_output=True, text=True, check=True)
    known = re.fullmatch(r"\[(\S+), (\S+), (\S+), .+\]\n", probe.stdout)
    assert known is not None, probe.stdout
    dumpable, peer, boot = known.groups()
    assert (dumpable in ("None", "-1"), peer) == (True, "None"), "the calls cannot be made"
    assert (boot == "None") == (len(without) == 2)
    with subprocess.Popen(
        [*without, "demo", "--no-dashboard"],
        cwd=place,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as demo:
        assert demo.stdout is not None
        said = ""
        for line in demo.stdout:
            said += line
            if re.search(r"  stop  .*armed", line):
                break
        status = call("status", "--json")
        try:
            assert demo.poll() is None, said
            assert status.returncode == 0, status.stdout + status.stderr
            assert json.loads(status.stdout)["state"] == "RUNNING"
            assert heartbeats_of(python)
        finally:
            demo.send_signal(signal.SIGKILL)
    account = re.search(r"account acc_\d+", said)
    assert account is not None
    end = time.monotonic() + WAIT_S
    while heartbeats_of(python):
        assert time.monotonic() < end, "the heartbeat process outlives its daemon"
        time.sleep(0.1)
    again = call("demo", "--no-dashboard", "--for", "2s")
    text = again.stdout + again.stderr
    assert again.returncode == 0, text
    assert "The last run was killed" in text
    assert account[0] in text
    assert "Traceback" not in said + text
