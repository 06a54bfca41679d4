"""`bot systemd`: the unit's text as systemd itself judges it, its installation, and the configs that a unit could
not start.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bot.cli.app import call
from bot.cli.operate import systemd_unit as unit_module
from bot.cli.operate.systemd import next_commands
from bot.cli.operate.systemd_unit import Unit, credential_file, unit_of

# `systemd-analyze security --threshold`, in tenths
EXPOSURE_MAX = 12

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here (Debian: apt install systemd)"
)

CONFIG = """\
account: {base_url: "https://trading.example", api_key: "%s"}
strategies:
  - {name: mine, use: "trend:Trend", markets: [BTC], budget_usd: 100}
strategies_dir: %s
%s
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Units go into a home of the test's own, and into no system's folder."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setattr(unit_module, "SYSTEM_UNITS", tmp_path / "system")
    return folder


def write(tmp_path: Path, repository: Path, *, key: str = "${credential:api-key}", more: str = "") -> Path:
    file = tmp_path / "live.yaml"
    file.write_text(CONFIG % (key, repository / "strategies", more))
    return file


def judged(unit: Unit, folder: Path) -> tuple[str, float]:
    """What `systemd-analyze verify` complains of, and the exposure that it sees."""
    file = folder / unit.name
    file.write_text(unit.text)
    verify = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False)
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(file)]
    security = subprocess.run(command, capture_output=True, text=True, check=False)
    exposure = re.search(r"exposure level for \S+: ([0-9.]+)", security.stdout)
    assert exposure is not None, security.stderr
    assert (security.returncode == 0) is (float(exposure[1]) <= EXPOSURE_MAX / 10)
    return f"{verify.returncode}{verify.stdout}{verify.stderr}", float(exposure[1])


@needs_systemd
@pytest.mark.parametrize("hosted", [True, False])
def test_systemd_finds_no_fault_in_a_system_unit_and_little_exposure(
    tmp_path: Path, repository: Path, *, hosted: bool
) -> None:
    config = write(tmp_path, repository) if hosted else repository / "configs" / "paper.yaml"
    verdict, exposure = judged(unit_of(config, is_user=False), tmp_path)
    assert verdict == "0"
    assert exposure <= (1.1 if hosted else 0.9), "an embedded service needs no network beyond this machine"


def test_a_unit_with_a_local_service_has_no_other_network_unless_it_sends_notices(
    tmp_path: Path, repository: Path
) -> None:
    config = write(tmp_path, repository)
    config.write_text(config.read_text().replace("https://trading.example", "http://127.0.0.1:9"))
    assert "IPAddressDeny=any" in unit_of(config, is_user=False).text
    config.write_text(config.read_text() + 'notify: {urls: ["${credential:pager}"]}\n')
    assert "IPAddress" not in unit_of(config, is_user=False).text


def test_a_unit_with_live_prices_reaches_the_exchange_by_the_interpreter_that_has_ccxt(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write(tmp_path, repository)
    hidden = tmp_path_factory.mktemp("markets")
    python = hidden / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    monkeypatch.setattr(unit_module, "HIDDEN", (str(hidden),))
    monkeypatch.setenv("BOT_MARKETS_PYTHON", os.path.relpath(python))
    monkeypatch.setenv("HTTPS_PROXY", "http://me:password@proxy:3128")
    address = 'base_url: "https://trading.example", api_key: "${credential:api-key}"'
    embedded = config.read_text().replace(address, "base_url: embedded")
    config.write_text(embedded)
    assert "BOT_MARKETS_PYTHON" not in unit_of(config, is_user=False).text
    config.write_text(embedded.replace("base_url: embedded", "base_url: embedded, prices: {exchange: kraken}"))
    lines = unit_of(config, is_user=False).text.splitlines()
    assert f"Environment=BOT_MARKETS_PYTHON={python}" in lines
    assert f"BindReadOnlyPaths={hidden}" in lines
    assert not [line for line in lines if "IPAddress" in line or "password" in line]
    assert f"Environment=BOT_MARKETS_PYTHON={python}" in unit_of(config, is_user=True).text


@needs_systemd
def test_systemd_finds_no_fault_in_a_user_unit(tmp_path: Path, repository: Path) -> None:
    verdict, exposure = judged(unit_of(write(tmp_path, repository), is_user=True), tmp_path)
    assert verdict == "0"
    assert exposure < 7


def test_a_unit_runs_this_installation_and_loads_each_secret_as_a_credential(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_module, "HIDDEN", (str(tmp_path),))
    unit = unit_of(write(tmp_path, repository, more='notify: {urls: ["${credential:pager}"]}'), is_user=False)
    lines = unit.text.splitlines()
    (start,) = [line for line in lines if line.startswith("ExecStart=")]
    command = start.removeprefix("ExecStart=").split(" ")
    assert Path(command[0]).is_file()
    assert command[-3:] == ["run", str(tmp_path / "live.yaml"), "--yes"]
    assert [line for line in lines if line.startswith("LoadCredential=")] == [
        "LoadCredential=api-key:/etc/bot/api-key",
        "LoadCredential=pager:/etc/bot/pager",
    ]
    for line in (
        "Type=notify",
        "NotifyAccess=main",
        "DynamicUser=yes",
        "StateDirectory=bot-live",
        "StateDirectoryMode=0700",
        "WatchdogSec=20s",
        "WatchdogSignal=SIGABRT",
        "TimeoutStartFailureMode=abort",
        "Restart=always",
        "RestartPreventExitStatus=2 4 7",
        "KillMode=mixed",
        "LimitCORE=0",
        "UMask=0077",
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=",
        "ProtectSystem=strict",
        "ProcSubset=pid",
        "Environment=BOT_BOOT_ID=%b",
        "MemoryDenyWriteExecute=yes",
        "SystemCallFilter=~@privileged @resources",
        "StartLimitIntervalSec=0",
    ):
        assert line in lines
    bound = [line.removeprefix("BindReadOnlyPaths=") for line in lines if line.startswith("BindReadOnlyPaths=")]
    assert str(tmp_path) in bound, "the config is where the unit would not see it"
    assert "ProtectHome=tmpfs" in lines


@pytest.mark.parametrize("linked", ["strategies", "strategies/trend.py"])
def test_the_target_of_a_link_is_mounted_and_checked_too(
    tmp_path: Path, repository: Path, home: Path, linked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_module, "HIDDEN", (str(home),))
    shutil.copytree(repository / "strategies", home / "strategies")
    (home / linked).chmod(0o700)
    link = tmp_path / "etc" / linked
    link.parent.mkdir(parents=True)
    link.symlink_to(home / linked)
    config = tmp_path / "etc" / "live.yaml"
    config.write_text(CONFIG % ("${credential:api-key}", "strategies", ""))
    unit = unit_of(config, is_user=False)
    assert f"BindReadOnlyPaths={home / linked}\n" in unit.text
    assert home / linked in unit.closed
    assert link not in unit.closed


def test_a_dollar_begins_a_variable_in_a_command_and_nowhere_else(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_module, "HIDDEN", (str(tmp_path),))
    odd = tmp_path / "a$b: 50%"
    odd.mkdir()
    text = unit_of(write(odd, repository), is_user=False).text
    doubled = str(odd).replace("%", "%%")
    assert f'BindReadOnlyPaths="{doubled}"\n' in text
    assert f' run "{doubled.replace("$", "$$")}/live.yaml" --yes\n' in text
    verified, _ = judged(unit_of(write(odd, repository), is_user=False), tmp_path)
    assert verified == "0"


@pytest.mark.parametrize(
    ("key", "more", "words"),
    [
        ("${env:BOT_API_KEY}", "", "write ${credential:bot-api-key} instead"),
        ("${file:secrets/key}", "", "write ${credential:key} instead"),
        ("${credential:api-key}", "state_dir: here", "remove the key, or make a user unit with --user"),
        (
            "${credential:api-key}",
            'reconcile_seconds: "${env:A_NUMBER}"',
            "${env:A_NUMBER} is not set in a unit: write the value",
        ),
        ("${credential:my key}", "", "a credential's name is letters, digits and _ . @ -"),
        ("${credential:bot/key}", "", "account.api_key: a credential's name is letters, digits"),
        ("${credential:api-key}", "metrics: {port: 9000}", "metrics: needs the package prometheus-client: make -C"),
    ],
)
def test_a_config_that_a_unit_could_not_start_is_refused_with_what_to_change(
    tmp_path: Path,
    repository: Path,
    key: str,
    more: str,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bot.checks.config_check.find_spec", lambda _: None)
    monkeypatch.setenv("A_NUMBER", "100")
    assert call(["systemd", str(write(tmp_path, repository, key=key, more=more))]) == 4
    assert words in capsys.readouterr().err


def test_a_user_unit_may_use_the_variables_that_systemd_sets(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write(tmp_path, repository, more='state_dir: "${env:HOME}/state"')
    assert call(["systemd", str(config), "--user"]) == 0
    assert call(["systemd", str(config)]) == 4
    assert "${env:HOME} is not set in a unit" in capsys.readouterr().err


@needs_systemd
def test_a_user_unit_keeps_its_files_where_the_users_commands_find_them(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """His shell's XDG_STATE_HOME is not the service manager's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "my: state, 5%"))
    unit = unit_of(config := write(tmp_path, repository), is_user=True)
    folder = f"{tmp_path}/my: state, 5%%"
    assert f'Environment="XDG_STATE_HOME={folder}"\n' in unit.text
    assert f'--state-dir "{folder}/bot/live"\n' in unit.text
    assert judged(unit, tmp_path)[0] == "0"
    config.write_text(config.read_text() + "state_dir: here\n")
    assert "XDG_STATE_HOME" not in unit_of(config, is_user=True).text


def test_files_that_the_units_user_may_not_read_are_listed_with_the_chmod_command(
    tmp_path: Path, repository: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_module, "HIDDEN", (str(home),))
    shutil.copytree(repository / "strategies", home / "mine" / "strategies")
    config, code = home / "mine" / "live.yaml", home / "mine" / "strategies" / "trend.py"
    config.write_text(CONFIG % ("${credential:api-key}", "strategies", ""))
    mine = [config.parent, config, code.parent, code]
    for place in (home, *mine):
        place.chmod(0o700)

    unit = unit_of(config, is_user=False)
    assert f"BindReadOnlyPaths={config.parent}" in unit.text
    assert sorted(set(unit.closed) & set(mine)) == sorted(mine)
    assert home not in unit.closed, "on the way to what is bound in systemd makes folders of its own"
    (line,) = [one for one in next_commands(unit) if one.startswith("chmod ")]
    assert all(str(one) in line for one in mine)
    for place, mode in zip(mine, (0o755, 0o644, 0o755, 0o644), strict=True):
        place.chmod(mode)
    assert not set(unit_of(config, is_user=False).closed) & set(mine)
    code.parent.chmod(0o711)
    assert set(unit_of(config, is_user=False).closed) & set(mine) == {code.parent}
    assert unit_of(config, is_user=True).closed == ()


def test_a_unit_is_installed_once_and_a_different_one_is_overwritten_only_with_force(
    tmp_path: Path, repository: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write(tmp_path, repository)
    path = home / ".config" / "systemd" / "user" / "bot-live.service"
    words = ["systemd", str(config), "--user", "--install"]
    assert call(words) == 0
    said = capsys.readouterr().out
    assert path.read_text() == unit_of(config, is_user=True).text
    assert f"install -D -m 600 /dev/stdin {home / '.config' / 'bot' / 'api-key'}" in said
    assert "systemctl --user enable --now bot-live.service" in said
    assert call(words) == 0
    assert "is already up to date" in capsys.readouterr().out
    path.write_text("mine")
    assert call(words) == 2
    assert "--force" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert call([*words, "--force"]) == 0
    assert path.read_text() != "mine"
    assert not [one for one in path.parent.iterdir() if one != path], "nothing half written is left"
    assert credential_file(config, "api-key") == home / ".config" / "bot" / "api-key"


def test_the_path_of_a_credential_is_as_systemd_reads_it(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes all that follows the colon, quotes too, and reads %% as one."""
    home = tmp_path / "my $name, 5%"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    config = write(tmp_path, repository)
    assert call(["systemd", str(config), "--user", "--install"]) == 0
    (line,) = [one for one in unit_of(config, is_user=True).text.splitlines() if one.startswith("LoadCredential=")]
    assert line == f"LoadCredential=api-key:{tmp_path}/my $name, 5%%/.config/bot/api-key"
    assert credential_file(config, "api-key") == home / ".config" / "bot" / "api-key"


def test_a_system_unit_is_written_to_etc_systemd_system(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["systemd", str(write(tmp_path, repository)), "--install", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["path"] == str(tmp_path / "system" / "bot-live.service")
    assert Path(told["path"]).read_text() == told["text"]


def test_without_write_access_install_prints_the_command_for_root(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["systemd", str(write(tmp_path, repository)), "--install"]
    monkeypatch.setattr(sys, "argv", ["of/a/module/__main__.py", *words])
    monkeypatch.setattr(os, "access", lambda _path, mode: mode != os.W_OK)
    assert call(words) == 1
    said = capsys.readouterr().err
    assert (
        f"sudo {Path(sys.executable).parent / 'bot'} systemd {words[1]} --install, or make a user unit with --user"
        in said
    )


def test_doctor_reports_an_outdated_unit_and_a_secret_that_others_can_read(
    tmp_path: Path, repository: Path, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bot.cli.start.doctor_checks.service_checks.ASK_S", 0.5)
    config = write(tmp_path, repository)
    config.write_text(config.read_text().replace("https://trading.example", "http://127.0.0.1:9"))
    call(["systemd", str(config), "--user", "--install"])
    key = home / ".config" / "bot" / "api-key"
    key.parent.mkdir(parents=True)
    key.write_text("bbk_test_abcdefgh_" + "A" * 43)
    key.chmod(0o644)
    path = home / ".config" / "systemd" / "user" / "bot-live.service"
    path.write_text(path.read_text() + "# changed\n")
    capsys.readouterr()
    code = call(["doctor", str(config), "--json"])
    text = capsys.readouterr().out
    found = {one["check"]: one for one in json.loads(text)["findings"]}
    assert code != 0
    assert (found["secrets"]["level"], found["secrets"]["fix"]) == ("fail", f"chmod 600 {key}")
    assert found["service"]["level"] == "fail"
    assert (found["unit"]["level"], "--install --force" in found["unit"]["fix"]) == ("warn", True)
    assert "AAAA" not in text


def test_doctor_warns_of_a_strategy_that_others_can_change(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "own strategies"
    folder.mkdir(mode=0o755)
    file = folder / "trend.py"
    shutil.copy(repository / "strategies" / "trend.py", file)
    config = tmp_path / "paper.yaml"
    config.write_text(CONFIG.replace('"https://trading.example", api_key: "%s"', "embedded") % (folder, ""))

    def warned() -> list[str]:
        call(["doctor", str(config), "--json"])
        found = json.loads(capsys.readouterr().out)["findings"]
        return [one["message"] for one in found if (one["check"], one["level"]) == ("strategies", "warn")]

    file.chmod(0o644)
    assert warned() == []
    file.chmod(0o666)
    (said,) = warned()
    assert said.startswith(f"mine: {file} can be written by others")
    assert said.endswith(f"chmod go-w {shlex.quote(str(file))}")
