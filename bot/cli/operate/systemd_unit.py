"""The text of a systemd unit for one config, for the system or for one user."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bot.clock import BOOT_ID
from bot.errors import ConfigError
from bot.market_data.feeder_client import PYTHON as MARKETS_PYTHON

if TYPE_CHECKING:
    from bot.config import Settings
    from bot.config.references import Noted

SYSTEM_UNITS: Final = Path("/etc/systemd/system")
# in a user's home
USER_UNITS: Final = Path(".config/systemd/user")
# a system unit reads its secrets from here; only root can read it
CREDENTIALS: Final = Path("/etc/bot")
HIDDEN: Final = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108 - by ProtectHome= and PrivateTmp=
WATCHDOG_S: Final = 20
# without the strategies' threads
TASKS: Final = 64
MEMORY_MB: Final = 512
# added for the service of `base_url: embedded`, which runs in the same unit
EMBEDDED_MB: Final = 512
# added for the process that asks an exchange for live prices
FEEDER_MB: Final = 256
# systemd sets these for user units as a login shell does
USERS_OWN: Final = ("HOME", "USER", "LOGNAME", "SHELL", "XDG_RUNTIME_DIR")

# usage, config, refused by the service: a restart would fail the same way
_NO_RESTART: Final = "2 4 7"

_BOTH: Final = (
    "WatchdogSignal=SIGABRT",
    "Restart=always",
    "RestartSec=5s",
    f"RestartPreventExitStatus={_NO_RESTART}",
    "TimeoutStartSec=60s",
    "TimeoutStartFailureMode=abort",
    "TimeoutStopSec=20s",
    "KillMode=mixed",
    "LimitNOFILE=4096",
    "LimitCORE=0",
    "UMask=0077",
    "NoNewPrivileges=yes",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "MemoryDenyWriteExecute=yes",
    "KeyringMode=private",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "SystemCallFilter=~@privileged @resources",
    "SystemCallErrorNumber=EPERM",
)


_SYSTEM: Final = (
    "OOMScoreAdjust=-500",
    "CPUWeight=500",
    "CapabilityBoundingSet=",
    "AmbientCapabilities=",
    "ProtectSystem=strict",
    "PrivateTmp=yes",
    "PrivateMounts=yes",
    "PrivateDevices=yes",
    "PrivateUsers=yes",
    "PrivateIPC=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "ProtectControlGroups=yes",
    "ProtectProc=invisible",
    "ProcSubset=pid",
    # ProcSubset= hides /proc/sys/kernel/random/boot_id
    f"Environment={BOOT_ID}=%b",
    "RemoveIPC=yes",
    "DevicePolicy=closed",
)


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit's name, text and path, and its credentials: name -> file."""

    name: str
    text: str
    path: Path
    is_user: bool
    credentials: Mapping[str, Path]
    # files and folders that it needs but its user may not read
    closed: Sequence[Path] = ()


def unit_name(name: str) -> str:
    return f"bot-{name}.service"


def unit_of(config: Path, *, is_user: bool) -> Unit:
    """The unit that runs this config with this installation. ConfigError if a unit could not start the config."""
    from bot.checks.config_check import checked_and_noted
    from bot.config.state_folder import home

    settings, noted = checked_and_noted(config)
    references = noted.secrets
    config = config.resolve()
    _check(config, settings, noted, is_user=is_user)
    store = home() / ".config" / "bot" if is_user else CREDENTIALS
    credentials = {name: store / name for kind, name in references if kind == "credential"}
    bound = _bound(config, settings)
    lines = _system_lines(settings, bound) if not is_user else ()
    text = "\n".join(_text(config, settings, credentials, lines, is_user=is_user)) + "\n"
    folder = home() / USER_UNITS if is_user else SYSTEM_UNITS
    closed = () if is_user else _closed(config, settings, bound)
    return Unit(unit_name(settings.name), text, folder / unit_name(settings.name), is_user, credentials, closed)


def opening(unit: Unit) -> str:
    """The command that makes the closed files readable for the unit's user.

    None of them holds a secret: a config only refers to secrets.
    """
    return f"chmod o+rX {shlex.join(map(str, unit.closed))}"


def credential_file(config: Path, name: str) -> Path | None:
    """The file from which the installed unit of this config loads a credential; None if no unit is installed."""
    from bot.cli.common.daemon_client import outline

    file_name = unit_name(outline(config)[0])
    for folder in _unit_folders():
        try:
            text = (folder / file_name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        match = re.search(rf"^LoadCredential={re.escape(name)}:(.+)$", text, re.MULTILINE)
        if match is not None:
            return Path(match[1].replace("%%", "%"))
    return None


def stopping(name: str) -> str:
    """The command that stops the unit of a daemon."""
    file = installed(name)
    return f"{_control(is_user=file is not None and file.parent != SYSTEM_UNITS)} stop {unit_name(name)}"


def _control(*, is_user: bool) -> str:
    return "systemctl --user" if is_user else "systemctl"


def installed(name: str) -> Path | None:
    """The installed unit file of a daemon; None if there is none."""
    return next((folder / unit_name(name) for folder in _unit_folders() if (folder / unit_name(name)).is_file()), None)


def _unit_folders() -> Iterator[Path]:
    from bot.config.state_folder import home

    # A user without a home has no user units.
    with contextlib.suppress(ConfigError):
        yield home() / USER_UNITS
    yield SYSTEM_UNITS


def _text(
    config: Path, settings: Settings, credentials: Mapping[str, Path], system: Sequence[str], *, is_user: bool
) -> Iterator[str]:
    from bot.cli.common.daemon_client import outline, unit_state

    yield "# Made by `bot systemd`. `bot doctor` reports when it is out of date."
    yield "[Unit]"
    yield f"Description=Bracketbot {settings.name}"
    if not is_user:
        yield "After=network-online.target time-sync.target"
        yield "Wants=network-online.target"
    yield "StartLimitIntervalSec=0"
    yield ""
    yield "[Service]"
    yield "Type=notify"
    yield "NotifyAccess=main"
    yield f"ExecStart={_command('run', str(config), *run_flags(settings))}"
    folder = str(settings.state_dir) if is_user else f"%S/{unit_state(settings.name)}"
    yield f"ExecReload={_command('reload', '--yes', '--state-dir')} {_argument(folder) if is_user else folder}"
    yield "Environment=PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1"
    shells = os.environ.get("XDG_STATE_HOME", "")
    # The user manager may not have the shell's XDG_STATE_HOME.
    if is_user and shells and outline(config)[1] is None:
        yield f"Environment={_escaped(f'XDG_STATE_HOME={shells}')}"
    if (python := _markets_python(settings)) is not None:
        yield f"Environment={_escaped(f'{MARKETS_PYTHON}={python}')}"
    for name, file in credentials.items():
        # systemd takes everything after the colon as the path, so it is not quoted.
        yield f"LoadCredential={name}:{str(file).replace('%', '%%')}"
    yield f"WatchdogSec={WATCHDOG_S}s"
    yield from _BOTH
    yield f"TasksMax={TASKS + len(settings.strategies)}"
    memory = MEMORY_MB + (EMBEDDED_MB if settings.account.embedded else 0)
    memory += FEEDER_MB * len(settings.account.price_sources())
    yield f"MemoryHigh={memory * 3 // 4}M"
    yield f"MemoryMax={memory}M"
    yield from system
    yield ""
    yield "[Install]"
    yield f"WantedBy={'default' if is_user else 'multi-user'}.target"


def run_flags(settings: Settings) -> Sequence[str]:
    """What a unit adds to `bot run`: there is nobody to ask, and a restart must not depend on the readiness grade."""
    return ("--yes",) if not settings.account.embedded or settings.account.agent_key is not None else ()


def _bound(config: Path, settings: Settings) -> Sequence[Path]:
    """The paths that the daemon needs and a system unit hides."""
    return sorted({path for path in _needed(config, settings) if _is_hidden(path)})


def _system_lines(settings: Settings, bound: Sequence[Path]) -> Sequence[str]:
    from bot.cli.common.daemon_client import unit_state

    lines = ["DynamicUser=yes", f"StateDirectory={unit_state(settings.name)}", "StateDirectoryMode=0700", *_SYSTEM]
    lines.append(f"ProtectHome={'tmpfs' if bound else 'yes'}")
    lines += [f"BindReadOnlyPaths={_escaped(str(path))}" for path in bound]
    is_here = settings.account.embedded or re.match(r"http://", settings.account.base_url)
    # These ask other machines.
    if is_here and settings.notify is None and settings.account.prices is None:
        lines += ["IPAddressDeny=any", "IPAddressAllow=localhost"]
    return lines


def _needed(config: Path, settings: Settings) -> list[Path]:
    """The paths that the daemon reads: this installation, its interpreter, the config, strategies, candle files; and
    the targets of links.
    """
    code = Path(__file__).resolve().parents[3]
    interpreter = Path(sys.executable)
    paths = [
        Path(sys.prefix),
        Path(sys.base_prefix),
        interpreter.resolve().parent.parent,
        config.parent,
        settings.strategies_dir,
    ]
    paths += [recording.file for recording in settings.embedded.data]
    paths += [] if settings.listings is None else [settings.listings]
    if (python := _markets_python(settings)) is not None:
        paths += [python.parent.parent, python.resolve().parent.parent]
    paths += [] if code.is_relative_to(sys.prefix) else [code]
    paths += [path.resolve() for path in (*paths, *_strategy_files(settings))]
    return [
        path
        for path in dict.fromkeys(paths)
        if path.exists() and not any(path != other and path.is_relative_to(other) for other in paths)
    ]


def _markets_python(settings: Settings) -> Path | None:
    """The interpreter that has ccxt, if the config has live prices and BOT_MARKETS_PYTHON names one."""
    given = os.environ.get(MARKETS_PYTHON)
    if settings.account.prices is None or not given:
        return None
    return Path(os.path.abspath(shutil.which(given) or given))  # noqa: PTH100  keeps links of venvs


def _strategy_files(settings: Settings) -> list[Path]:
    return [settings.strategies_dir / f"{strategy.use.partition(':')[0]}.py" for strategy in settings.strategies]


def _closed(config: Path, settings: Settings, bound: Sequence[Path]) -> Sequence[Path]:
    """The files and folders that an ordinary user cannot read or enter. systemd makes the folders above a bound path
    itself.
    """
    files = [config, Path(sys.executable), Path(__file__), *_strategy_files(settings)]
    files += [data_file.file for data_file in settings.embedded.data]
    files += [] if settings.listings is None else [settings.listings]
    files += [path.resolve() for path in files]
    closed: dict[Path, None] = {}
    for file in filter(Path.is_file, files):
        top = next((folder for folder in bound if file.is_relative_to(folder)), Path(file.anchor))
        for place in (*reversed(file.parents), file):
            wanted = stat.S_IROTH if place == file else stat.S_IXOTH | (stat.S_IROTH if place == file.parent else 0)
            # The target of a link is in the list, too.
            if place.is_symlink():
                continue
            if place.is_relative_to(top) and place.stat().st_mode & wanted != wanted:
                closed[place] = None
    return tuple(closed)


def _is_hidden(path: Path) -> bool:
    return any(path.is_relative_to(hidden) for hidden in HIDDEN)


def _check(config: Path, settings: Settings, noted: Noted, *, is_user: bool) -> None:
    """Raise ConfigError with everything that would keep the unit from starting."""
    from bot.checks.config_check import missing_packages, needs_package
    from bot.cli.common.daemon_client import outline, unit_state

    problems = []
    for kind, name in noted.secrets:
        if kind == "env":
            problems.append(
                f"${{env:{name}}} is not set in a unit: write ${{credential:{_credential_name(name)}}} instead"
            )
        elif kind == "file" and not is_user:
            problems.append(
                f"${{file:{name}}} is your file, and the unit runs as another user: write"
                f" ${{credential:{_credential_name(Path(name).name)}}} instead, or make a user unit with --user"
            )
    problems += [
        f"${{env:{name}}} is not set in a unit: write the value itself"
        for name in dict.fromkeys(noted.plain)
        if not (is_user and name in USERS_OWN)
    ]
    if outline(config)[1] is not None and not is_user:
        problems.append(
            f"state_dir: a system unit keeps its files in /var/lib/{unit_state(settings.name)}: remove the key, or make"
            " a user unit with --user"
        )
    problems += [f"{place}: {needs_package(place, name)}" for place, name in missing_packages(settings)]
    if problems:
        raise ConfigError(
            f"{config}: a unit could not start this config\n" + "\n".join(f"  {problem}" for problem in problems)
        )


def _credential_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.@-]+", "-", text).strip("-.").lower().replace("_", "-") or "api-key"


def _command(*words: str) -> str:
    """A command of this installation: the `bot` beside the interpreter, else `python -m bot`."""
    return " ".join(_argument(word) for word in (*_start(), *words))


def _start() -> Sequence[str]:
    script = Path(sys.executable).parent / "bot"
    return [str(script)] if os.access(script, os.X_OK) else [sys.executable, "-m", "bot"]


def _argument(text: str) -> str:
    """One argument of a command: escaped, and with $ doubled, because systemd expands variables in commands."""
    return _escaped(text).replace("$", "$$")


def _escaped(text: str) -> str:
    """Text for a unit file: % doubled, and quoted if it has a space, quote, semicolon or colon."""
    text = text.replace("\\", "\\\\").replace("%", "%%")
    return '"' + text.replace('"', '\\"') + '"' if re.search(r"[\s\"';:]", text) else text
