"""Every kind of bad config is named with its line, its column and the way out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ruamel.yaml.scanner import Scanner

from bot.config import ConfigError, Problem, load
from bot.config.document import DEPTH_MAX
from bot.errors import Exit

GOOD = """\
account: {base_url: embedded}
strategies:
  - {name: one, use: "trend:Trend", markets: [BTC], budget_usd: 100}
"""


def problems(tmp_path: Path, text: str | bytes, environ: dict[str, str] | None = None) -> tuple[Problem, ...]:
    file = tmp_path / "bad.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError) as caught:
        load(file, environ or {})
    assert caught.value.exit_code is Exit.CONFIG
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or isinstance(caught.value.__context__, UnicodeDecodeError)
    assert all(str(problem) in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems


def with_(section: str) -> str:
    return GOOD + section + "\n"


def strategy(body: str) -> str:
    return f"account: {{base_url: embedded}}\nstrategies:\n  - {{{body}}}\n"


def of_address(base_url: str, said: str) -> tuple[str, int, int, str, str]:
    return GOOD.replace("embedded", base_url), 1, 21, "account.base_url", said


CASES: dict[str, tuple[str, int, int, str, str]] = {
    "an unknown section": (with_("acount: {}"), 4, 1, "acount", "unknown key; did you mean account?"),
    "an unknown key far from any": (
        with_("zzz: 1"),
        4,
        1,
        "zzz",
        "unknown key; known here: account, dashboard, dead_man",
    ),
    "an unknown key in a section": (
        with_("safety: {on_exits: leave}"),
        4,
        10,
        "safety.on_exits",
        "unknown key; did you mean on_exit?",
    ),
    "an unknown key of a strategy": (
        strategy("name: a, use: b, markets: [BTC], budget_usd: 1, budget: 1"),
        3,
        54,
        "strategies[0].budget",
        "unknown key; did you mean budget_usd?",
    ),
    "a distance of adopted stops where nothing is adopted": (
        with_("safety: {foreign_positions: ignore, adopted_stop_pct: 5}"),
        4,
        55,
        "safety.adopted_stop_pct",
        "is only for `foreign_positions: adopt`",
    ),
    "a distance of adopted stops that are not needed": (
        with_("safety: {foreign_positions: adopt, adopted_stop_pct: 5, require_protection: false}"),
        4,
        54,
        "safety.adopted_stop_pct",
        "needs `require_protection: true`",
    ),
    "a group of which nobody is named": (
        with_('telegram: {token: "${env:K}", chats: [7, -100]}'),
        4,
        42,
        "telegram.chats[1]",
        "is a group: name the persons whose commands count in `users`",
    ),
    "persons of no group": (
        with_('telegram: {token: "${env:K}", chats: [7], users: [7]}'),
        4,
        50,
        "telegram.users",
        "is only for groups",
    ),
    "a key twice": (
        with_("safety:\n  on_exit: leave\n  on_exit: cancel"),
        6,
        3,
        "safety.on_exit",
        "duplicate key; it stands on line 5 already",
    ),
    "a missing section": ("account: {base_url: embedded}\n", 1, 1, "strategies", "is required"),
    "a missing key": (strategy("name: a, use: b, markets: [BTC]"), 3, 5, "strategies[0].budget_usd", "is required"),
    "no strategies": ("account: {base_url: embedded}\nstrategies: []\n", 2, 13, "strategies", "must have at least one"),
    "a list for a mapping": (with_("safety: [a]"), 4, 9, "safety", "must be a mapping of keys"),
    "text for a mapping": (with_("safety: on"), 4, 9, "safety", "must be a mapping of keys"),
    "a mapping for a list": (with_("guardians: {type: schedule}"), 4, 12, "guardians", "must be a list"),
    "text for a list": (
        strategy("name: a, use: b, markets: BTC, budget_usd: 1"),
        3,
        32,
        "strategies[0].markets",
        "must be a list",
    ),
    "text for a number": (
        strategy("name: a, use: b, markets: [BTC], budget_usd: much"),
        3,
        51,
        "strategies[0].budget_usd",
        "must be a number",
    ),
    "a number above its bound": (
        strategy("name: a, use: b, markets: [BTC], budget_usd: 1, max_leverage: 51"),
        3,
        68,
        "strategies[0].max_leverage",
        "must be 1..50",
    ),
    "a number at its open bound": (
        strategy("name: a, use: b, markets: [BTC], budget_usd: 0"),
        3,
        51,
        "strategies[0].budget_usd",
        "must be > 0",
    ),
    "a fraction for a whole number": (
        with_("dead_man: {heartbeat_seconds: 90.5}"),
        4,
        31,
        "dead_man.heartbeat_seconds",
        "must be an integer",
    ),
    "a heartbeat that the interface does not take": (
        with_("dead_man: {heartbeat_seconds: 59}"),
        4,
        31,
        "dead_man.heartbeat_seconds",
        "must be 60..86400",
    ),
    "not a number": (
        strategy("name: a, use: b, markets: [BTC], budget_usd: .nan"),
        3,
        51,
        "strategies[0].budget_usd",
        "finite number",
    ),
    "yes for true": (
        with_("safety: {require_protection: yes}"),
        4,
        30,
        "safety.require_protection",
        "must be true or false (in YAML 1.2 yes",
    ),
    "a word that is none of the list": (
        with_("safety: {on_exit: leaves}"),
        4,
        19,
        "safety.on_exit",
        "must be 'leave', 'cancel' or 'flatten'; did you mean leave?",
    ),
    "an interval that the service has not": (
        strategy("name: a, use: b, markets: [BTC], budget_usd: 1, interval: 2m"),
        3,
        64,
        "strategies[0].interval",
        "must be '1m', '5m'",
    ),
    "a name with a capital": (
        strategy("name: A, use: b, markets: [BTC], budget_usd: 1"),
        3,
        12,
        "strategies[0].name",
        "must be 1 to 40 of a-z",
    ),
    "a market that is none": (
        strategy("name: a, use: b, markets: ['B T'], budget_usd: 1"),
        3,
        33,
        "strategies[0].markets[0]",
        "must be a market",
    ),
    "a market twice in a strategy": (
        strategy("name: a, use: b, markets: [BTC, perp:btc], budget_usd: 1"),
        3,
        38,
        "strategies[0].markets[1]",
        "BTC is in this list already",
    ),
    "a market of two strategies": (
        with_("  - {name: two, use: b, markets: [ETH, btc], budget_usd: 1}"),
        4,
        40,
        "strategies[1].markets[1]",
        "one already trades BTC",
    ),
    "a name of two strategies": (
        with_("  - {name: one, use: b, markets: [ETH], budget_usd: 1}"),
        4,
        12,
        "strategies[1].name",
        "strategies[0] has this name already",
    ),
    "http to another machine": of_address("http://10.0.0.1", "would send the key readable over the network"),
    "an address that is none": of_address("trading", "must be `embedded` or an address"),
    "an address with a password": of_address('"https://a:b@c.example"', "no user, password"),
    "an address with an empty user": of_address('"https://@c.example"', "no user, password"),
    "an address that only a resolver knows as this machine": of_address(
        '"http://api.localhost:8700"', "would send the key readable over the network"
    ),
    "an address with a line's end": of_address(
        '"https://c.example\\r"', "has a blank, a line break or another character"
    ),
    "an address with a blank": of_address('"https://c.example "', "has a blank, a line break or another character"),
    "an address with an empty query": of_address('"https://c.example?"', "no user, password, query or fragment"),
    "an address of tomorrow": of_address('"https://[v1.a]"', "must be `embedded` or an address"),
    "a path with a zero in it": (with_('state_dir: "a\\0b"'), 4, 12, "state_dir", "must be a path"),
    "a market twice in two spellings": (
        GOOD.replace("[BTC]", '["event:a", "event:A"]'),
        3,
        58,
        "strategies[0].markets[1]",
        "event:A is in this list already",
    ),
    "a port out of range": of_address('"https://c.example:99999"', "must be `embedded` or an address"),
    "no key for a service elsewhere": (
        GOOD.replace("embedded", "https://c.example"),
        1,
        10,
        "account.api_key",
        "is required, except with",
    ),
    "embedded settings for a service elsewhere": (
        GOOD.replace("embedded", 'https://c.example, api_key: "${env:K}"') + "embedded: {seed: 2}\n",
        4,
        11,
        "embedded",
        "needs `base_url: embedded`",
    ),
    "a clock of no speed": (
        with_("embedded: {clock: fast}"),
        4,
        19,
        "embedded.clock",
        "must be real, manual, or 1x to 3600x",
    ),
    "a clock that is too fast": (with_("embedded: {clock: 3601x}"), 4, 19, "embedded.clock", "must be real, manual"),
    "a beat too short for the clock": (
        with_("embedded: {clock: 60x}\ndead_man: {heartbeat_seconds: 1199}"),
        5,
        31,
        "dead_man.heartbeat_seconds",
        "a heartbeat needs 20 s, so at least 1200",
    ),
    "a default beat too short for the clock": (
        with_("embedded: {clock: 60x}"),
        1,
        1,
        "dead_man.heartbeat_seconds",
        "300 s are 5 s of real time at clock 60x",
    ),
    "a candle file that is not there": (
        with_("embedded: {data: [{file: none.csv, market: BTC}]}"),
        4,
        26,
        "embedded.data[0].file",
        "there is no file",
    ),
    "a candle file that nobody can look at": (
        with_(f"embedded: {{data: [{{file: {'x' * 300}, market: BTC}}]}}"),
        4,
        26,
        "embedded.data[0].file",
        "cannot be read: File name too long",
    ),
    "a guardian of a position": (
        with_("guardians:\n  - {type: trailing_stop}"),
        5,
        12,
        "guardians[0].type",
        "trailing_stop belongs to one position",
    ),
    "a dead man among the guardians": (
        with_("guardians: [{type: dead_man_switch}]"),
        4,
        20,
        "guardians[0].type",
        "its own section: dead_man",
    ),
    "a guardian without what it needs": (
        with_("guardians: [{type: account_drawdown}]"),
        4,
        13,
        "guardians[0].max_loss_pct_from_day_start",
        "is required",
    ),
    "a guardian with what it does not take": (
        with_('guardians: [{type: schedule, cron: "0 9 * * 1", action: flatten, max_loss_pct_from_day_start: 5}]'),
        4,
        95,
        "guardians[0].max_loss_pct_from_day_start",
        "does not belong to schedule",
    ),
    "a drawdown of more than all": (
        with_("guardians: [{type: account_drawdown, max_loss_pct_from_day_start: 100.5}]"),
        4,
        67,
        "guardians[0].max_loss_pct_from_day_start",
        "must be > 0, <= 100",
    ),
    "live prices of a service elsewhere": (
        GOOD.replace(
            "{base_url: embedded}", "{base_url: 'https://c.example', api_key: '${env:K}', prices: {exchange: binance}}"
        ),
        1,
        71,
        "account.prices",
        "needs `base_url: embedded`",
    ),
    "live prices under another clock": (
        with_("embedded: {clock: 1x}").replace("embedded}", "embedded, prices: {exchange: binance}}", 1),
        1,
        39,
        "account.prices",
        "needs embedded.clock real",
    ),
    "a list of sources whose second names no market": (
        GOOD.replace("embedded}", "embedded, prices: [{exchange: a, markets: {BTC: B}}, {exchange: b}]}", 1),
        1,
        74,
        "account.prices[1]",
        "needs `markets`: in a list each source names its own",
    ),
    "a market of two sources": (
        GOOD.replace(
            "embedded}", "embedded, prices: [{exchange: a, markets: {BTC: B}}, {exchange: b, markets: {BTC: C}}]}", 1
        ),
        1,
        103,
        "account.prices[1].markets.BTC",
        "BTC has the prices of a already",
    ),
    "an exchange that is named twice": (
        GOOD.replace(
            "embedded}", "embedded, prices: [{exchange: a, markets: {BTC: B}}, {exchange: a, markets: {ETH: C}}]}", 1
        ),
        1,
        85,
        "account.prices[1].exchange",
        "put its markets together",
    ),
    "a misspelt key in a list of sources": (
        GOOD.replace("embedded}", "embedded, prices: [{exchange: a, marktes: {BTC: B}}]}", 1),
        1,
        54,
        "account.prices[0].marktes",
        "did you mean markets?",
    ),
    "an empty list of sources": (
        GOOD.replace("embedded}", "embedded, prices: []}", 1),
        1,
        39,
        "account.prices",
        "must have at least one",
    ),
    "a symbol with a comma": (
        GOOD.replace("embedded}", "embedded, prices: {exchange: binance, markets: {BTC: 'BTC,ETH'}}}", 1),
        1,
        74,
        "account.prices.markets.BTC",
        "",
    ),
    "a cron line that is none": (
        with_('guardians: [{type: schedule, cron: "61 9 * * 1", action: flatten}]'),
        4,
        36,
        "guardians[0].cron",
        "is not a cron line",
    ),
    "a cron line with seconds": (
        with_('guardians: [{type: schedule, cron: "0 0 9 * * 1", action: flatten}]'),
        4,
        36,
        "guardians[0].cron",
        "has 6 fields, not the five of minute, hour",
    ),
    "nothing where something must be": (
        GOOD.replace(" {base_url: embedded}", ""),
        1,
        1,
        "account",
        "must be a mapping of keys",
    ),
    "a tag": (with_("log: !!python/object:os.system {}"), 4, 6, "log", "tags"),
    "a tagged word": (with_("log: {level: !secret info}"), 4, 14, "log.level", "tags"),
    "a merge key": ("a: &a {x: 1}\n" + with_("log: {<<: *a}"), 5, 7, "log.<<", "merge keys are not supported"),
    "a key that is a list": (with_("log: {? [a] : b}"), 4, 9, "log.?", "a key is a single word"),
    "not closed": (with_("log: {level: info"), 5, 1, "", "not YAML: "),
    "a tab for indentation": (with_("log:\n\tlevel: info"), 5, 1, "", "not YAML: "),
    "a control character": (with_("log: {level: \x07}"), 4, 14, "", "a character that YAML does not allow: U+0007"),
    "two documents": (with_("---\na: 1"), 4, 1, "", "not YAML: "),
    "an unset variable": (
        with_('log: {level: "${env:LEVEL}"}'),
        4,
        14,
        "log.level",
        "the environment variable LEVEL is not set",
    ),
    "an unknown reference": (
        with_('log: {level: "${LEVEL}"}'),
        4,
        14,
        "log.level",
        "${LEVEL} is not a reference; write ${credential:NAME}",
    ),
    "a secret file under a key that is shown": (
        with_('log: {level: "${file:a}"}'),
        4,
        14,
        "log.level",
        "holds a secret, but the value of this key is shown",
    ),
    "a key that has swallowed its value": (
        strategy("name: a, use: b, markets: [BTC], budget_usd:500"),
        3,
        39,
        "strategies[0].budget_usd",
        "a key ends with a colon and a blank: write `budget_usd: ` before its value",
    ),
    "a dead-man whose keys are all comments": (
        with_("dead_man:\n#  heartbeat_seconds: 300"),
        4,
        1,
        "dead_man",
        "is empty; give its keys, or off",
    ),
    "a dead-man that is neither": (with_("dead_man: no"), 4, 11, "dead_man", "like {key: value}, or off"),
    "a home that is not known": (
        with_("state_dir: ~nobody-of-this-name/x"),
        4,
        12,
        "state_dir",
        "the folder that ~ means is not known here",
    ),
    "a shell's variable in a path": (
        with_("state_dir: $HOME/bot"),
        4,
        12,
        "state_dir",
        "a path cannot contain shell variables: write the whole path, ~/... or ${env:NAME}/...",
    ),
    "YAML of another version": ("%YAML 1.1\n---\n" + with_("safety: {require_protection: yes}"), 1, 1, "", "YAML 1.2"),
    "a cron line without quotes": (
        with_("guardians:\n  - {type: schedule, cron: * * * * *, action: flatten}"),
        5,
        29,
        "",
        'a text that begins with * needs quotes: cron: "* * * * *"',
    ),
    "a cron line of steps without quotes": (
        with_("guardians:\n  - type: schedule\n    cron: */5 * * * *"),
        6,
        11,
        "",
        "needs quotes",
    ),
    "a tab": ("account:\n\tbase_url: embedded\n", 2, 1, "", "indent with blanks, not with tabs"),
    "a nest without an end": ("a: " + "[" * 1_000, 1, 1, "", "nested too deeply"),
    "a word that outruns the bound": (
        strategy(f"name: a, use: {'b' * 201}, markets: [BTC], budget_usd: 1"),
        3,
        20,
        "strategies[0].use",
        "must have at most 200 characters",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_named_with_line_and_column(case: str, tmp_path: Path) -> None:
    text, line, column, key, message = CASES[case]
    found = problems(tmp_path, text, {"K": "secret"})
    assert [(problem.line, problem.column, problem.key) for problem in found if problem.key == key][:1] == [
        (line, column, key)
    ], found
    (problem,) = (problem for problem in found[:] if problem.key == key)
    assert message in problem.message
    assert "Traceback" not in str(problem)
    assert problem.file == str(tmp_path / "bad.yaml")


@pytest.mark.parametrize("case", sorted(set(CASES) - {"a merge key"}))
def test_one_mistake_makes_one_problem(case: str, tmp_path: Path) -> None:
    assert len(problems(tmp_path, CASES[case][0], {"K": "secret"})) == 1


def test_all_problems_come_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    found = problems(
        tmp_path, "account: {base_url: ftp://x}\nsafety: {on_exit: no}\nstrategies: []\nlog: {level: loud}\nnope: 1\n"
    )
    assert [problem.line for problem in found] == [1, 2, 3, 4, 5]


def test_the_line_is_shown_with_a_caret_under_the_place(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, with_("safety: {on_exit: leaves}"))
    assert found.shown == "    safety: {on_exit: leaves}\n" + "    " + " " * 18 + "^"


def test_wide_letters_and_tabs_keep_the_caret_in_its_place(tmp_path: Path) -> None:
    text = strategy('name: "\u7b56\u7565", use: "\u00e9t\u00e9:\u0416", markets: [BTC], budget_usd: 0')
    found = problems(tmp_path, text)
    caret = next(problem for problem in found if problem.key == "strategies[0].budget_usd")
    line, pointer = caret.shown.splitlines()
    assert caret.column == line.index("0}") - 4 + 1
    # each of the two wide letters takes one column more
    assert len(pointer) == line.index("0}") + 1 + 2


@pytest.mark.parametrize("text", ["", "\n\n", "   ", "# nothing but words\n", "---\n"])
def test_an_empty_file_says_where_to_start(tmp_path: Path, text: str) -> None:
    (found,) = problems(tmp_path, text)
    assert (found.line, found.column) == (1, 1) or text == "---\n"
    assert "empty" in found.message or "comments" in found.message or "mapping" in found.message


@pytest.mark.parametrize("count", [1, 2, 20])
def test_an_error_of_a_long_line_shows_the_part_around_its_place(tmp_path: Path, count: int) -> None:
    """A JSON config on one line: each error has its own key under its caret, and all errors together stay short."""
    one = {"use": "x:Y", "markets": ["BTC"], "interval": "1m", "budget_usd": "-7", "max_leverage": 3}
    strategies = [one | {"name": f"s{n}"} for n in range(count)]
    text = json.dumps({"account": {"base_url": "embedded"}, "dead_man": "off", "strategies": strategies})
    found = [problem for problem in problems(tmp_path, text) if problem.key.endswith("budget_usd")]
    assert len(found) == count
    for problem in found:
        line, pointer = problem.shown.splitlines()
        assert line[pointer.index("^") :].startswith('"-7"')
        assert len(line) <= 4 + 160 + 2 * len("...")
        assert line.startswith("    ...") == (problem.column > 61)


def test_a_line_that_is_blank_is_not_shown(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "")
    assert str(found) == f"{tmp_path / 'bad.yaml'}:1:1: the file is empty; bot init makes a project with a config"


@pytest.mark.parametrize("text", ["[a, b]", "just words", "42"])
def test_what_is_no_mapping_is_told_so(tmp_path: Path, text: str) -> None:
    (found,) = problems(tmp_path, text)
    assert (found.line, found.column, found.key) == (1, 1, "")
    assert "must be a mapping of sections" in found.message


def test_what_is_not_utf8_is_found_by_its_place(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, b"a: 1\nb: \xff\n")
    assert (found.line, found.column, found.message) == (2, 4, "not UTF-8 text")


def test_aliases_that_multiply_are_stopped(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
    )
    found = problems(tmp_path, bomb)
    assert any("nested too deeply, or too large" in problem.message for problem in found)


@pytest.mark.parametrize("text", ["a: " + "[" * 500_000, "? " + "{" * 500_000, "a: " + "[{a: " * 100_000])
def test_brackets_without_an_end_are_not_read_to_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    opened = []
    push = Scanner.fetch_flow_collection_start
    monkeypatch.setattr(
        Scanner, "fetch_flow_collection_start", lambda *args, **named: (opened.append(1), push(*args, **named))[1]
    )
    assert problems(tmp_path, text)
    assert len(opened) <= DEPTH_MAX + 1


def test_an_alias_that_holds_itself_is_stopped(tmp_path: Path) -> None:
    found = problems(tmp_path, with_("log: &a {level: *a}"))
    assert any("nested too deeply" in problem.message for problem in found)


def test_braces_without_quotes_are_explained(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, GOOD.replace("embedded", "https://c.example, api_key: ${env:K}"))
    assert found.line == 1
    assert "needs quotes" in found.message


def test_a_file_that_is_not_there_names_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "paper.yaml").write_text(GOOD)
    with pytest.raises(ConfigError, match=r"papers.yaml: no such file; there is .*paper.yaml"):
        load(tmp_path / "papers.yaml")
    with pytest.raises(ConfigError, match=r"no such file$"):
        load(tmp_path / "none" / "papers.yaml")


def test_a_folder_is_no_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_a_huge_file_is_no_config(tmp_path: Path) -> None:
    (tmp_path / "big.yaml").write_bytes(b"#" * 1_000_001)
    with pytest.raises(ConfigError, match="this is not a config"):
        load(tmp_path / "big.yaml")
