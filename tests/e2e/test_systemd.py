"""An installed unit under a systemd that is process 1: of a container over this machine's own files, which keeps
nothing. Part of `make soak`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import is_soaked

# for a start, and for a kill by the watchdog with the start after it
WAIT_S = 60
STOP_S = 5.0
UNIT = "bot-live.service"
STATE = Path("/var/lib/private/bot-live")
PORT = 18_080
CONFIG = """\
account: {base_url: "http://127.0.0.1:%d", api_key: "${credential:api-key}"}
dead_man: {heartbeat_seconds: 60, on_miss: flatten}
strategies_dir: %s
strategies:
  - {name: trend, use: "trend:Trend", markets: [BTC], interval: 1m, budget_usd: 500, max_leverage: 3}
"""
# Without its own filter of system calls, so that the systemd inside may load what enforces IPAddressDeny= and
# DevicePolicy=.
BOOT = """\
echo $$ > "$1/cgroup.procs"
exec unshare --mount --propagation private sh -ec '
group=$1; folder=$2; shift 2
mount -t tmpfs -o mode=755 none "$folder"
mkdir "$folder/files" "$folder/work" "$folder/tree"
mount -t overlay none -o "lowerdir=/,upperdir=$folder/files,workdir=$folder/work" "$folder/tree"
rm -f "$folder/tree/etc/machine-id" && : > "$folder/tree/etc/machine-id"
mount -t cgroup2 none /sys/fs/cgroup
exec env SYSTEMD_SECCOMP=0 systemd-nspawn --quiet --register=no --keep-unit --private-network --link-journal=no \
--machine="${group##*/}" \\
    --directory="$folder/tree" "$@" --boot -- --unit=sysinit.target
' sh "$@"
"""
OPEN_ACCOUNT = """\
import json, time, urllib.request
ask = urllib.request.Request("http://127.0.0.1:%d/v1/sandbox/accounts", b'{"name": "me"}', {"Content-Type": \
"application/json"})
for _ in range(600):
    try:
        print(json.load(urllib.request.urlopen(ask))["apiKey"])
        break
    except OSError:
        time.sleep(0.1)
"""
# The interpreter, its packages and this project at places that a unit may read; whose they are they stay.
PLACES = {"/opt/python": sys.base_prefix, "/opt/packages": sysconfig.get_path("platlib")}
HERE = "/opt/bracketbot"
ENV = "/opt/env"
INSTALL = """\
echo /opt/python/lib > /etc/ld.so.conf.d/python.conf
ldconfig
mkdir -p %(env)s/bin %(packages)s
printf 'home = /opt/python/bin\\n' > %(env)s/pyvenv.cfg
printf '%%s\\n' /opt/packages %(here)s > %(packages)s/here.pth
ln -s /opt/python/bin/%(python)s %(env)s/bin/python
cat > %(env)s/bin/bot
chmod 755 %(env)s/bin/bot
"""
HOLDS = """\
import pathlib, sys
secret = sys.stdin.buffer.read().strip()
for place in sys.argv[1:]:
    for file in pathlib.Path("/").glob(place.lstrip("/")):
        try:
            found = file.is_file() and secret in file.read_bytes()
        except OSError:
            continue
        if found:
            print(file)
"""


def eventually(question: Callable[[], bool], what: str) -> None:
    """Until it is so. Another machine's systemd tells this process nothing by itself."""
    end = time.monotonic() + WAIT_S
    while not question():
        assert time.monotonic() < end, what
        time.sleep(0.1)


class Machine:
    """The container: commands in it, as root; `bot` is installed there."""

    bot = f"{ENV}/bin/bot"
    python = f"{ENV}/bin/python"

    def __init__(self, nspawn: subprocess.Popen[bytes]) -> None:
        self.nspawn = nspawn

    def run(self, *command: str, given: str = "") -> subprocess.CompletedProcess[str]:
        children = Path(f"/proc/{self.nspawn.pid}/task/{self.nspawn.pid}/children").read_text().split()
        enter = ["nsenter", "--target", children[0] if children else "0", "-m", "-u", "-i", "-n", "-p", "-C"]
        clean = ["env", "-i", f"PATH={os.defpath}:/usr/sbin:/sbin", "LANG=C.UTF-8", "PYTHONSAFEPATH=1"]
        return subprocess.run([*enter, *clean, *command], input=given, capture_output=True, text=True, check=False)

    def do(self, *command: str, given: str = "") -> str:
        done = self.run(*command, given=given)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout.strip()

    def show(self, name: str) -> str:
        return self.do("systemctl", "show", UNIT, "--value", "--property", name)

    def journal(self) -> list[str]:
        return self.do("journalctl", "--unit", UNIT, "--output", "cat", "--no-pager").splitlines()

    def install(self) -> None:
        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = f"{ENV}/lib/{python}/site-packages"
        script = (Path(sys.executable).parent / "bot").read_text().partition("\n")[2]
        made = INSTALL % {"env": ENV, "here": HERE, "packages": packages, "python": python}
        self.do("sh", "-ec", made, given=f"#!{self.python}\n{script}")

    def serve(self) -> None:
        self.do(
            "systemd-run",
            "--quiet",
            "--unit=service",
            "--working-directory=/tmp",
            self.bot,
            "sandbox",
            "--port",
            str(PORT),
            "--db",
            "/var/lib/service.db",
            "--markets",
            "BTC",
        )


@pytest.fixture
def machine(request: pytest.FixtureRequest, repository: Path, place: Path) -> Iterator[Machine]:
    if not is_soaked(request.config):
        pytest.skip("boots a systemd of its own: make soak")
    missing = [one for one in ("systemd-nspawn", "nsenter", "unshare", "systemctl") if shutil.which(one) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"needs root and {', '.join(missing) or 'nothing else'} (Debian: apt install systemd-container)")
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    hierarchy = next((Path(one[1]) for one in mounts if one[2] == "cgroup2"), None)
    if hierarchy is None:
        pytest.skip("no cgroup2 hierarchy is mounted here")
    group, folder = hierarchy / f"bot-{os.getpid()}", place / "machine"
    folder.mkdir()
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"{group} cannot be made: {error.strerror}")
    binds = [f"--bind-ro={one}:{there}" for there, one in {**PLACES, HERE: str(repository)}.items()]
    console = place / "console"
    with console.open("w") as said_there:
        nspawn = subprocess.Popen(
            ["sh", "-ec", BOOT, "sh", str(group), str(folder), *binds],
            stdin=subprocess.DEVNULL,
            stdout=said_there,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    made = Machine(nspawn)
    try:
        end = time.monotonic() + WAIT_S
        while made.run("systemctl", "is-active", "sysinit.target").stdout.strip() != "active":
            if nspawn.poll() is not None:
                said = console.read_text(errors="replace").strip().splitlines()
                pytest.skip(f"no systemd boots here: {said[-1] if said else 'it says nothing'}")
            assert time.monotonic() < end, "systemd booted and did not come up"
            time.sleep(0.1)
        made.install()
        yield made
    finally:
        nspawn.kill()
        with contextlib.suppress(OSError):
            (group / "cgroup.kill").write_text("1")
        nspawn.wait()
        eventually(lambda: "populated 0" in (group / "cgroup.events").read_text(), "nothing of it is left")
        for one in sorted(group.rglob("*/"), key=lambda path: -len(path.parts)):
            if one.is_dir():
                one.rmdir()
        group.rmdir()


@pytest.mark.soak
def test_a_unit_is_ready_after_its_account_keeps_its_secret_and_comes_back_from_a_kill_and_a_hang(
    machine: Machine,
) -> None:
    machine.serve()
    secret = machine.do(machine.python, "-c", OPEN_ACCOUNT % PORT)
    machine.do("systemctl", "stop", "service")
    machine.do("install", "-D", "-m", "600", "/dev/stdin", "/etc/bot/api-key", given=secret)
    config = CONFIG % (PORT, f"{HERE}/strategies")
    machine.do("install", "-D", "-m", "644", "/dev/stdin", "/etc/bot/live.yaml", given=config)
    told = machine.do(machine.bot, "systemd", "/etc/bot/live.yaml", "--install")
    assert "chmod" not in told, "nothing that it needs is closed to the unit's user"
    machine.do("systemctl", "daemon-reload")

    machine.do("systemctl", "start", "--no-block", UNIT)
    eventually(lambda: machine.show("StatusText").startswith("STARTING"), "a start says what it waits for")
    assert machine.show("ActiveState") == "activating"
    machine.serve()
    eventually(lambda: machine.show("ActiveState") == "active", "it is ready once the service has answered")
    lines = machine.journal()
    recovered = next(n for n, line in enumerate(lines) if '"kernel.recovered"' in line)
    assert next(n for n, line in enumerate(lines) if line.startswith(f"Started {UNIT}")) > recovered
    eventually(lambda: machine.show("StatusText").startswith("RUNNING"), "its line of status")

    assert machine.do("stat", "--format", "%U %a", str(STATE)) == "bot-live 700"
    assert machine.do("ps", "-o", "user:20=", "-p", machine.show("MainPID")) == "bot-live"
    credential = f"/run/credentials/{UNIT}/api-key"
    places = (
        "/proc/[0-9]*/environ",
        "/proc/[0-9]*/cmdline",
        "/run/log/journal/*/*",
        "/var/log/journal/*/*",
        f"{STATE}/*",
        credential,
    )
    assert machine.do(machine.python, "-c", HOLDS, *places, given=secret) == credential
    # tenths, of the unit as it runs
    machine.do("systemd-analyze", "security", "--threshold=12", UNIT)

    machine.do("systemctl", "reload", UNIT)
    machine.do("systemctl", "kill", "--kill-who=main", "--signal=SIGKILL", UNIT)
    eventually(lambda: (machine.show("NRestarts"), machine.show("ActiveState")) == ("1", "active"), "back from a kill")
    machine.do("systemctl", "kill", "--kill-who=main", "--signal=SIGSTOP", UNIT)
    eventually(lambda: (machine.show("NRestarts"), machine.show("ActiveState")) == ("2", "active"), "back from a hang")
    lines = machine.journal()
    assert f"{UNIT}: Failed with result 'watchdog'." in lines
    assert "Fatal Python error: Aborted" in lines, "and the log says where it hung"
    assert sum('"kernel.recovered"' in line for line in lines) == 3

    began = time.monotonic()
    machine.do("systemctl", "stop", UNIT)
    assert time.monotonic() - began < STOP_S
    assert (machine.show("Result"), machine.show("ExecMainStatus")) == ("success", "0")
