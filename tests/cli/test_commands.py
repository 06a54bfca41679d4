"""The commands that start nothing: help, version, check, config, strategies; and what is said when something is
wrong.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.shell_completion import get_completion_class

from bot import __version__
from bot.cli.app import COMMANDS, bot, call
from bot.cli.common.files import write_atomic
from bot.errors import BotError
from tests.documents import EVERYTHING, blocks

# processor time, so that a busy machine is not blamed on us
HELP_WITHIN_S = 0.15
# in starts of a bare interpreter, so that a slow one is not either
HELP_WITHIN_STARTS = 10

GOOD = """\
account: {base_url: embedded}
state_dir: state
strategies_dir: %s
strategies:
  - {name: trend, use: "trend:Trend", markets: [BTC], budget_usd: 500, params: {%s}}
"""


@pytest.fixture
def config(tmp_path: Path, repository: Path) -> Path:
    return write(tmp_path, repository, "fast_bars: 5")


def write(folder: Path, repository: Path, params: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(GOOD % (repository / "strategies", params))
    return path


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["--version"]) == 0
    assert capsys.readouterr().out == f"bot {__version__}\n"


@pytest.mark.parametrize(
    "command", [[], *([name] for name in COMMANDS), ["config", "show"], ["config", "diff"], ["config", "schema"]]
)
def test_every_command_has_a_help_text_with_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call([*command, "--help"]) == 0
    text = capsys.readouterr().out
    assert re.search(rf"^ +bot {' '.join(command)}".rstrip(), text, re.MULTILINE), text


def every_command(name: str = "bot", command: click.Command = bot) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for inner in command.list_commands(ctx):
            found = command.get_command(ctx, inner)
            assert found is not None
            yield from every_command(f"{name} {inner}", found)


@pytest.mark.parametrize("group", ["config", "data", "export"])
def test_a_group_lists_its_commands_with_their_full_summary(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = COMMANDS[group]
    assert call([group, "--help"]) == 0
    listed = " ".join(capsys.readouterr().out.split())
    found: click.Group = getattr(import_module(command.module), command.name)
    for one in found.commands.values():
        assert " ".join((one.help or "").split("\n\n")[0].split()) in listed


def test_a_user_without_a_home_is_told_what_to_set(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    # It says where its files are.
    assert call(["check", str(config)]) == 0
    config.write_text(config.read_text().replace("state_dir: state\n", ""))
    capsys.readouterr()
    assert call(["check", str(config)]) == 4
    assert (
        capsys.readouterr().err
        == "error: this user has no home folder: set HOME, or name the folder (state_dir, --state-dir)\n"
    )


def test_a_bug_is_reported_to_a_user_without_a_home(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bot.cli import app
    from bot.cli.common import crash_report

    def fail(**_: object) -> None:
        raise RuntimeError("oh")

    monkeypatch.setattr(crash_report, "_report_file", [])
    monkeypatch.setattr(app.bot, "main", fail)
    monkeypatch.setattr(Path, "home", fail)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("BOT_DEBUG", raising=False)
    assert call([]) == 1
    assert (
        capsys.readouterr().err
        == "error: a bug in Bracketbot: RuntimeError: oh. Run it with BOT_DEBUG=1 to see the traceback\n"
    )


def test_a_shell_completes_commands_and_options_as_the_docs_say(repository: Path) -> None:
    (variable,) = re.findall(r'eval "\$\((\w+)=bash_source bot\)"', EVERYTHING)

    typed = {variable: "bash_complete", "COMP_WORDS": "bot pause --s", "COMP_CWORD": "2"}
    command = [sys.executable, "-m", "bot"]
    done = subprocess.run(command, cwd=repository, env=os.environ | typed, capture_output=True, text=True, check=True)
    assert done.stdout == "plain,--state-dir\n"
    for shell in ("bash", "zsh", "fish"):
        kind = get_completion_class(shell)
        assert kind is not None
        found = kind(bot, {}, "bot", variable).get_completions([], "st")
        assert [one.value for one in found] == ["strategies", "stop", "status"], shell


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
def test_bash_completes_after_the_line_of_the_docs() -> None:
    (line,) = re.findall(r"^(eval .*bash_source.*?) +#", EVERYTHING, re.MULTILINE)
    typed = "COMP_WORDS=(bot init --template p); COMP_CWORD=3; _bot_completion bot; echo ${COMPREPLY[@]}"
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", f"{line}; {typed}"], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "pairs\n"


@pytest.mark.parametrize(
    ("shell", "said"), [("zsh", "compdef _bot_completion bot"), ("fish", "complete --no-files --command bot")]
)
def test_the_line_of_the_docs_prints_the_completion_of_a_shell(shell: str, said: str) -> None:
    (variable,) = re.findall(rf"(\w+)={shell}_source bot", EVERYTHING)
    kind = get_completion_class(shell)
    assert kind is not None
    assert said in kind(bot, {}, "bot", variable).source()


def test_every_command_that_prints_data_takes_json() -> None:
    silent = {
        name
        for name, one in every_command()
        if not isinstance(one, click.Group) and "as_json" not in {p.name for p in one.params}
    }
    assert silent == {"bot mcp", "bot config schema", "bot telegram", "bot docs"}, (
        "two speak only JSON, one prints only its log, and one serves pages"
    )


def test_every_example_in_help_texts_and_docs_is_a_valid_command_line() -> None:
    """Two spaces part an example from what is said of it."""
    commands = dict(every_command())
    texts = [command.epilog or "" for command in commands.values()] + blocks("text|console")
    examples = [
        re.sub(r"^(\$ |[A-Z_]+=\S+ )", "", part.split("#")[0].split("  ")[0].split(" > ")[0].strip())
        for text in texts
        for line in text.splitlines()
        for part in line.strip().split(" && ")
    ]
    examples = [one for one in examples if one.startswith("bot ")]
    assert len(examples) >= 2 * len(COMMANDS)
    for example in examples:
        name = max((one for one in commands if f"{example} ".startswith(f"{one} ")), key=len)
        arguments = shlex.split(example.removeprefix(name))
        # UsageError otherwise.
        commands[name].make_context(name, arguments)


@pytest.mark.usefixtures("cold_starts")
def test_help_starts_quickly_and_imports_no_heavy_module(repository: Path) -> None:
    def took(*arguments: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], cwd=repository, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    bare = min(took("-c", "pass") for _ in range(3))
    assert min(took("-m", "bot", "--help") for _ in range(3)) < max(HELP_WITHIN_S, HELP_WITHIN_STARTS * bare)
    code = (
        "import sys; from bot.cli.app import call; call(['--help']); print(sorted(m for m in sys.modules if '.' not"
        " in m))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=repository, check=True, capture_output=True, text=True)
    loaded = done.stdout.splitlines()[-1]
    for heavy in ("pydantic", "httpx", "starlette", "structlog", "rich", "apscheduler", "asyncio", "sqlite_utils"):
        assert f"'{heavy}'" not in loaded


def test_a_misspelt_command_is_wrong_usage_with_the_likely_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["stratgies"]) == 2
    assert "Did you mean 'strategies'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo", "--for", "soon"], "write 60s, 5m or 1.5h"),
        (["demo", "--clock", "fast"], "write real, manual, or 1x to 3600x"),
        (["demo", "--clock", "9999x"], "write real, manual, or 1x to 3600x"),
        (["demo", "--clock", "manual"], "bot sandbox --clock manual"),
        (["sandbox", "--port", "70000"], "0<=x<=65535"),
        (["run"], "Missing argument 'CONFIG'"),
    ],
)
def test_wrong_usage_says_what_to_write(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(arguments) == 2
    assert words in capsys.readouterr().err


def test_check_reports_a_valid_config_and_names_the_next_command(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["check", str(config)]) == 0
    text = capsys.readouterr().out
    assert f"{config} is valid." in text
    assert f"Next: bot run {config}" in text
    assert call(["check", "--json", str(config)]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


@pytest.mark.parametrize("name", ["demo.yaml", "paper.yaml"])
def test_the_shipped_configs_are_valid(name: str, repository: Path) -> None:
    assert call(["check", str(repository / "configs" / name)]) == 0


def test_the_live_example_asks_for_its_secret(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOT_API_KEY", raising=False)
    path = str(repository / "configs" / "live.example.yaml")
    assert call(["check", path]) == 4
    monkeypatch.setenv("BOT_API_KEY", "bbk_test_abcdefgh_" + "A" * 43 + "_x")
    assert call(["check", path]) == 0


def test_a_config_whose_key_only_the_unit_gets_can_be_checked_shown_and_compared(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def handed(name: str) -> None:
        account = f'base_url: "https://x.example", api_key: "${{credential:{name}}}"'
        config.write_text(re.sub("account: {.*}", f"account: {{{account}}}", config.read_text()))

    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    handed("api-key")
    assert call(["check", str(config)]) == 0
    said = capsys.readouterr().out
    assert "  secret      ${credential:api-key} is given to the systemd unit only" in said
    assert f"Next: bot systemd {config}\n" in said
    assert call(["check", "--json", str(config)]) == 0
    assert json.loads(capsys.readouterr().out)["handedOver"] == ["api-key"]
    assert call(["config", "show", str(config)]) == 0
    assert "api-key" not in capsys.readouterr().out
    other = config.with_name("other.yaml")
    other.write_text("name: mine\n" + config.read_text())
    assert call(["config", "diff", str(config), str(other)]) == 0
    assert capsys.readouterr().out == "The two configs are equal.\n"
    handed("another")
    assert call(["config", "diff", str(config), str(other)]) == 0
    assert capsys.readouterr().out.startswith("~ account.api_key: ")
    handed("a/b")
    assert call(["check", str(config)]) == 4
    assert "a credential's name is letters, digits and _ . @ -" in capsys.readouterr().err
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(config.parent / "none"))
    handed("api-key")
    assert call(["check", str(config)]) == 4, "a unit has been handed it, or has not"


def test_an_address_for_notices_that_only_the_unit_gets_is_left_to_doctor(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("apprise")
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    monkeypatch.setenv("BAD", "nosuch://hunter2")
    config.write_text(config.read_text() + 'notify: {urls: ["${credential:telegram}"]}\n')
    assert call(["check", str(config)]) == 0
    config.write_text(config.read_text().replace("credential:telegram", "env:BAD"))
    assert call(["check", str(config)]) == 4


@pytest.mark.parametrize(
    ("params", "words"),
    [("fast_bar: 5", "unknown param; did you mean 'fast_bars'?"), ("fast_bars: 1", "greater than or equal to 2")],
)
def test_a_bad_param_is_shown_in_its_line(
    params: str, words: str, tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, repository, params)
    assert call(["check", str(path)]) == 4
    said = capsys.readouterr().err
    assert f"{path}:5:" in said
    assert words in said
    assert call(["run", str(path)]) == 4
    assert not (tmp_path / "state").exists(), "nothing was begun"


@pytest.mark.parametrize(
    ("words", "way"),
    [
        (["status", "my.yaml"], True),
        (["reload", "/etc/my.yml", "--yes"], True),
        (["status", "strategy"], False),
        (["demo", "my.yaml"], False),
        (["status", "a.yaml", "b.yaml"], False),
    ],
)
def test_a_config_given_as_an_argument_gets_a_hint_to_use_its_option(
    words: list[str], way: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(words) == 2
    assert (f"give the config as --config {words[1]}" in capsys.readouterr().err) == way


def test_an_unknown_key_is_shown_with_the_likely_one(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(config.read_text().replace("state_dir", "statedir"))
    assert call(["check", "--json", str(config)]) == 4
    problem = json.loads(capsys.readouterr().out)["problems"][0]
    assert (problem["line"], "did you mean state_dir" in problem["message"]) == (2, True)


FAILING = """\
from bot import Params, Strategy
class Trend(Strategy):
 %s
 def on_bar(self, view, bar): return ()
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import nothing_of_that_name\n", "nothing_of_that_name"),
        ("raise RuntimeError('not today')\n", "not today"),
        ("def broken(:\n", "invalid syntax"),
        ("x = 1\n", "has no class Trend"),
        (FAILING % "def __init__(self, **given): {}['lookback']", "raises KeyError while it is built: 'lookback'"),
        (
            FAILING % "class Params(Params):\n  def model_post_init(self, _): 1 / 0",
            "raises ZeroDivisionError while it checks params",
        ),
    ],
)
def test_a_strategy_that_does_not_load_is_a_config_error_without_a_traceback(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "trend.py").write_text(text)
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD % ("strategies", ""))
    for command in ("check", "run"):
        assert call([command, str(path)]) == 4
        said = capsys.readouterr().err
        assert words in said
        assert "Traceback" not in said


def test_a_market_that_the_embedded_service_lacks_is_named(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(config.read_text() + "embedded: {markets: [ETH]}\n")
    assert call(["check", str(config)]) == 4
    assert "BTC is not among the embedded service's markets: ETH" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("interval", "files", "words"),
    [
        ("1h", {"BTC": "a"}, None),
        ("4h", {"BTC": "a", "ETH": "a"}, None),
        ("1m", {"BTC": "a"}, "strategies[0].interval: there are no 1m bars of BTC: its candles are of 1h"),
        ("1h", {"BTC": "a", "perp:btc": "b"}, "embedded.data[1].market: two candle files are given for BTC"),
        (
            "1h",
            {"BTC": "a", "ETH": "b"},
            "embedded.data: the candle files do not overlap in time: the candles of BTC end before the others begin",
        ),
    ],
)
def test_recorded_prices_that_a_run_could_not_use_are_named(
    interval: str, files: dict[str, str], words: str | None, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for day, name in enumerate("ab"):
        rows = (f"{1_750_032_000_000 + day * 86_400_000 + hour * 3_600_000},5,6,4,5,1" for hour in range(24))
        config.with_name(f"{name}.csv").write_text("ts,open,high,low,close,volume\n" + "\n".join(rows) + "\n")
    data = ", ".join(f"{{file: {name}.csv, market: '{market}'}}" for market, name in files.items())
    text = config.read_text().replace("markets: [BTC],", f"markets: [BTC], interval: {interval},")
    config.write_text(f"{text}embedded: {{data: [{data}]}}\n")
    assert call(["check", str(config)]) == (0 if words is None else 4)
    assert words is None or words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("guardian", "said"),
    [
        (
            '{type: schedule, cron: "0 0 L * *", action: flatten}',
            "guardians[0].cron: is not a cron line: day-of-month: ",
        ),
        (
            '{type: schedule, cron: "0 9 * * MON#1", action: flatten}',
            "guardians[0].cron: is not a cron line: day-of-week: ",
        ),
        ("{market: BTC, side: long, usdAmout: 50}", "guardians[0].order_template.usdAmout: "),
        ("{market: BTC, side: long, usd_amount: 50}", "usdAmount"),
        ("{market: BTC, side: long, size: 0.01}", "guardians[0].order_template.size: "),
        ("{market: BTC, side: long, usdAmount: 50, dryRun: true}", "must be false: a schedule executes its order"),
        ("{market: BTC, side: long}", "guardians[0].order_template"),
        (
            "{market: BTX, side: long, usdAmount: 50}",
            "BTX is not among the embedded service's markets (did you mean BTC?)",
        ),
        ("{market: 'perp:btc', side: long, usdAmount: 50}", None),
        ('{type: schedule, cron: "*/5 * * * MON-FRI", action: flatten}', None),
        ("{type: account_drawdown, max_loss_pct_from_day_start: 2.5}", None),
    ],
)
def test_a_guardian_that_the_embedded_service_would_refuse_is_named(
    config: Path, capsys: pytest.CaptureFixture[str], guardian: str, said: str | None
) -> None:
    if "type" not in guardian:
        guardian = f'{{type: schedule, cron: "0 0 * * *", order_template: {guardian}}}'
    config.write_text(config.read_text() + f"guardians:\n  - {guardian}\n")
    code = call(["check", str(config)])
    err = capsys.readouterr().err
    assert (code, (said or "") in err) == (0 if said is None else 4, True), err


@pytest.mark.parametrize(
    ("name", "meant"),
    [("ETH-USD", "ETH"), ("BTCUSDT", "BTC"), ("SOL-PERP", "SOL"), ("XRP-USDC", "XRP"), ("AVAXX", "AVAX")],
)
def test_a_market_name_of_another_venue_gets_the_name_used_here(
    config: Path, capsys: pytest.CaptureFixture[str], name: str, meant: str
) -> None:
    config.write_text(config.read_text().replace("[BTC]", f'["{name}"]'))
    assert call(["check", str(config)]) == 4
    assert (
        f"{name} is not among the embedded service's markets (did you mean {meant}?): AAPL, " in capsys.readouterr().err
    )


def test_a_config_is_shown_with_its_defaults_and_without_its_secrets(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["config", "show", str(config)]) == 0
    assert "heartbeat_seconds: 300" in capsys.readouterr().out
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_text("hunter2hunter2")
    config.write_text(
        config.read_text().replace("base_url: embedded", 'base_url: "https://x.example", api_key: "${file:key}"')
    )
    assert call(["config", "show", "--json", str(config)]) == 0
    text = capsys.readouterr().out
    assert json.loads(text)["account"]["base_url"] == "https://x.example"
    assert "hunter2" not in text


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Bracketbot config"


def test_strategies_are_listed_with_their_params_and_broken_ones_with_their_error(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["strategies", "--dir", str(repository / "strategies"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["strategies"]
    assert {row["use"] for row in rows} >= {"trend", "reversion"}
    assert "fast_bars" in next(row for row in rows if row["use"] == "trend")["params"]
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    assert call(["strategies", "--dir", str(tmp_path)]) == 1
    assert "nothing_of_that_name" in capsys.readouterr().out
    assert call(["strategies", "--dir", str(tmp_path), "--json"]) == 1
    assert "nothing_of_that_name" in json.loads(capsys.readouterr().out)["strategies"][0]["error"]
    assert call(["strategies", "--dir", str(tmp_path / "none")]) == 2


def test_a_bug_is_one_line_and_a_traceback_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bot.cli import app
    from bot.cli.common import crash_report

    def fail(**_: object) -> None:
        raise RuntimeError("bbk_test_abcdefgh_secret")

    monkeypatch.setattr(app.bot, "main", fail)
    monkeypatch.delenv("BOT_DEBUG", raising=False)
    crash_report.write_to(tmp_path / "crash.log")
    assert call([]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str(tmp_path / "crash.log") in said
    assert "Traceback" in (tmp_path / "crash.log").read_text()
    assert "secret" not in said + (tmp_path / "crash.log").read_text()
    monkeypatch.setenv("BOT_DEBUG", "1")
    assert call([]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("streams", "words", "code", "said"),
    [
        (">/dev/full", "config schema", 1, "error: standard output cannot be written: No space left on device\n"),
        ("2>/dev/full", "check nosuch.yaml", 4, ""),
        (">&- 2>&- <&-", "check nosuch.yaml", 4, ""),
        ("2>&-", "stratgies", 2, ""),
    ],
)
def test_a_full_or_closed_stream_changes_no_exit_code(
    streams: str, words: str, code: int, said: str, repository: Path
) -> None:
    line = f'exec "$0" -m bot {words} {streams}'
    done = subprocess.run(
        ["sh", "-c", line, sys.executable],
        cwd=repository,
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (done.returncode, done.stderr) == (code, said)


@pytest.mark.parametrize(("is_error", "stream", "other"), [(False, "output", 2), (True, "error", 1)])
def test_the_error_names_the_stream_that_cannot_be_written_and_the_other_is_kept(
    is_error: bool, stream: str, other: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from bot.cli import app
    from bot.cli.common import crash_report

    told: list[str] = []

    def prints(**_: object) -> None:
        click.echo("figures", err=is_error)

    monkeypatch.setattr(app.bot, "main", prints)
    monkeypatch.setattr(crash_report, "_say", told.append)
    with Path("/dev/full").open("w") as full, Path(os.devnull).open() as nowhere, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr" if is_error else "stdout", full)
        assert call([]) == 1
        assert os.path.sameopenfile(full.fileno(), nowhere.fileno()), "Python complains of it at exit"
    assert told == [f"error: standard {stream} cannot be written: No space left on device\n"]
    os.write(other, b"still read")
    assert capfd.readouterr()[other - 1] == "still read"


def test_a_path_that_is_not_utf_8_works_or_is_refused_with_an_error(tmp_path: Path, repository: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    config = write(folder, repository, "fast_bars: 5")
    environ = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}

    def bot(*words: str | Path) -> subprocess.CompletedProcess[bytes]:
        line = [sys.executable, "-m", "bot", *words]
        return subprocess.run(line, cwd=repository, check=False, capture_output=True, env=environ)

    checked = bot("check", config)
    assert (checked.returncode, checked.stderr) == (0, b"")
    assert checked.stdout.startswith(os.fsencode(config) + b" is valid.\n"), "the path is printed byte for byte"
    made = bot("new-strategy", "mine", "--dir", folder)
    assert (made.returncode, made.stdout) == (1, b"")
    assert b"its text contains a path that is not UTF-8" in made.stderr
    assert list(folder.iterdir()) == [config], "all or none"


def test_write_atomic_replaces_neither_a_pipe_nor_a_link(tmp_path: Path) -> None:
    """`--out /dev/stdout` is that stream, and `--out /dev/null` leaves it there, for root too."""
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to("file")
    (tmp_path / "file").write_text("old")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        for path in (link, pipe):
            write_atomic(path, "new")
        assert os.read(reader, 10) == b"new"
    finally:
        os.close(reader)
    assert link.is_symlink()
    assert (tmp_path / "file").read_text() == "new"
    assert pipe.is_fifo()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "link", "pipe"]
    with pytest.raises(BotError, match="cannot be written: Is a directory"):
        write_atomic(tmp_path, "new")


def test_a_check_names_each_strategys_limits_and_timers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "clocked.py").write_text(
        "from bot import Strategy\n\n\nclass Clocked(Strategy):\n    timers = {'hourly': '0 * * * *', 'look': 30}\n\n  "
        "  def on_bar(self, view, bar):\n        return ()\n\n    def on_timer(self, view, timer):\n        return ()\n"
    )
    config = tmp_path / "mine.yaml"
    config.write_text(
        "account: {base_url: embedded}\nstate_dir: state\nstrategies_dir: .\nstrategies:\n  - {name: a, use: clocked,"
        " markets: [BTC], budget_usd: 500, max_leverage: 3, daily_loss_usd: 20, netting: allow}\n  - {name: b, use:"
        " clocked, markets: [BTC], budget_usd: 5, netting: allow}\n"
    )
    assert call(["check", str(config)]) == 0
    text = capsys.readouterr().out
    assert (
        "a: clocked on BTC, 1m bars, at most 500 USD, 3x, no entries after a loss of 20 USD in a day, shares its"
        " markets" in text
    )
    assert "timer     hourly: 0 * * * *" in text
    assert "timer     look: every 30 s" in text
    assert call(["check", "--json", str(config)]) == 0
    limits = json.loads(capsys.readouterr().out)["limits"]
    assert limits["a"]["dailyLossUsd"] == "20"
    assert limits["b"]["timers"] == {"hourly": "0 * * * *", "look": 30}
    config.write_text(config.read_text().replace("budget_usd: 5, netting: allow", "budget_usd: 5"))
    assert call(["check", str(config)]) == 4
    assert "to share it, set netting: allow on b" in capsys.readouterr().err


def test_two_configs_are_compared(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = config.with_name("other.yaml")
    other.write_text("name: mine\n" + config.read_text().replace("fast_bars: 5", "fast_bars: 6"))
    assert call(["config", "diff", str(config), str(config)]) == 0
    assert capsys.readouterr().out == "The two configs are equal.\n"
    assert call(["config", "diff", str(config), str(other)]) == 0
    assert capsys.readouterr().out == "~ strategies.trend.params.fast_bars: 5 -> 6\n"
    assert call(["config", "diff", "--json", str(config), str(other)]) == 0
    assert json.loads(capsys.readouterr().out)["changes"] == [
        {"path": "strategies.trend.params.fast_bars", "old": "5", "new": "6"}
    ]
