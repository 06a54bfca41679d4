"""The space of a sweep: what a file names is checked against the strategies, with the line of each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from bot.checks.config_check import checked_without_secrets
from bot.errors import ConfigError
from bot.research.space import Bound, Dimension, Objective, Space, read_space
from tests.backtest.builders import config


def space(tmp_path: Path, text: str, use: str = "bench:Cross") -> Space:
    path = tmp_path / "space.yaml"
    path.write_text(text)
    return read_space(path, checked_without_secrets(config(tmp_path, use=use))[0])


def test_a_file_gives_ranges_values_objectives_and_constraints(tmp_path: Path) -> None:
    found = space(
        tmp_path,
        """\
params:
  one.fast_bars: {from: 2, to: 8, step: 3}
  one.slow_bars: [40, 20]
  one.stop_pct: {from: 0.5, to: 1.1, step: 0.2}
  one.usd: {from: 10, to: 1000, log: true}
objectives: [Sharpe Ratio, {figure: "Volatility (Ann.) [%]", best: lowest}]
constraints: {"# Trades": {min: 30}, "Max. Drawdown [%]": {min: -20.5, max: -1}}
""",
    )
    fast, slow, stop, usd = found.dimensions
    assert (fast.values, slow.values) == ((2, 5, 8), (40, 20))
    assert stop.values == (0.5, 0.7, 0.9, 1.1), "exact decimals, the end included"
    assert (usd.values, usd.low, usd.high, usd.is_log) == ((), 10, 1000, True)
    assert found.objectives == (Objective("Sharpe Ratio"), Objective("Volatility (Ann.) [%]", is_highest=False))
    assert found.constraints == (Bound("# Trades", 30), Bound("Max. Drawdown [%]", -20.5, -1))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "params: {one.fast_barz: [1, 2]}",
            "space.yaml:1:25: params.one.fast_barz: no strategy has this param; did you mean one.fast_bars?",
        ),
        ("params:\n  one.fast_bars: [0, 2]", "space.yaml:2:18: params.one.fast_bars: the param does not accept 0: "),
        ("params:\n  one.fast_bars: {from: 1.5, to: 2}", "from, to and step must be whole numbers"),
        ("params:\n  one.fast_bars: {from: 5, to: 2}", "from must be below to"),
        ("params:\n  one.fast_bars: {from: 1, to: 2, by: 1}", "give a list of values, or a range"),
        ("params:\n  one.fast_bars: [2, 2]", "give a list of different values"),
        ("params:\n  one.usd: {from: 0, to: 10, log: true}", "begins above 0"),
        ("params:\n  one.usd: {from: 0.001, to: 1000000, step: 0.001}", "take a larger step"),
        (
            "params: {one.fast_bars: [2, 3]}\nobjectives: [Sharp Ratio]",
            "'Sharp Ratio' is no figure of the report; did you mean Sharpe Ratio?",
        ),
        ("params: {one.fast_bars: [2, 3]}\nobjectives: [{figure: SQN, best: most}]", "best: highest or lowest"),
        (
            "params: {one.fast_bars: [2, 3]}\nconstraints: {SQN: 3}",
            "a constraint is {min: NUMBER}, {max: NUMBER} or both",
        ),
        ("param: {one.fast_bars: [2, 3]}", "a space has the keys params, objectives, constraints"),
        ("params: [one.fast_bars]", "params: must be a mapping"),
        ("objectives: [SQN]", "names no param"),
        ("params: {one.fast_bars: [2, 3]", "space.yaml:1"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        space(tmp_path, text)
    assert said in str(refused.value)


def test_a_param_carries_its_own_range_and_a_file_overrides_it(tmp_path: Path) -> None:
    assert read_space(None, checked_without_secrets(config(tmp_path, use="ranged:Ranged"))[0]).dimensions == (
        Dimension("one.every", (2, 4, 6)),
    )
    found = space(tmp_path, "params: {one.every: [3], one.usd: [100, 200]}", use="ranged:Ranged")
    assert [one.values for one in found.dimensions] == [(3,), (100, 200)]


def test_a_grid_has_every_cell_once_and_a_sample_depends_on_its_seed(tmp_path: Path) -> None:
    found = space(tmp_path, "params: {one.fast_bars: [2, 3], one.slow_bars: {from: 10, to: 30, step: 10}}")
    cells = [tuple(cell.values()) for cell in found.grid()]
    assert cells == [(2, 10), (2, 20), (2, 30), (3, 10), (3, 20), (3, 30)]
    open_ended = space(tmp_path, "params: {one.usd: {from: 10, to: 1000, log: true}, one.fast_bars: {from: 2, to: 9}}")
    few, many, other = (list(open_ended.sample(count, seed)) for count, seed in ((5, 1), (200, 1), (200, 2)))
    assert many[:5] == few
    assert many != other
    assert {cell["one.fast_bars"] for cell in many} == set(range(2, 10))
    assert 60 < sum(float(cell["one.usd"]) < 100 for cell in many) < 140, "a decade each, as the logarithm says"
    assert len({tuple(cell.values()) for cell in found.sample(4, 1)}) == 4
    assert sorted(tuple(cell.values()) for cell in found.sample(40, 1)) == cells
    whole = space(tmp_path, "params: {one.fast_bars: {from: 2, to: 9}, one.slow_bars: {from: 10, to: 200, log: true}}")
    assert (found.size, whole.size, open_ended.size) == (6, 8 * 191, None)
    assert len({tuple(cell.values()) for cell in whole.sample(5_000, 1)}) == 8 * 191
    with pytest.raises(ConfigError, match="one.usd: a grid needs a step or a list of values"):
        open_ended.grid()


@pytest.mark.parametrize("name", ["/etc/passwd", "../secret.txt", "link.txt", "linked/a.txt", "~/secret.txt"])
def test_a_space_names_instructions_of_its_own_folder_only(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "here"
    (folder / "prompts").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("SECRET")
    (folder / "prompts" / "a.txt").write_text("Trade well.")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "linked").symlink_to(folder / "prompts")
    agent = {"model": "test:m", "usd_per_million_in": 1, "usd_per_million_out": 1, "instructions_file": "prompts/a.txt"}
    (folder / "agent.py").write_text("from bot.agents import AgentStrategy\n\n\nclass Own(AgentStrategy):\n    pass\n")
    made = config(folder, use="agent:Own", **agent)
    made.write_text(
        made.read_text().replace(
            next(line for line in made.read_text().splitlines() if "strategies_dir" in line), "strategies_dir: ."
        )
    )
    settings = checked_without_secrets(made)[0]
    (folder / "space.yaml").write_text(f"params: {{one.instructions_file: [prompts/a.txt, {name}]}}")
    with pytest.raises(ConfigError, match="files in the folder of the space") as refused:
        read_space(folder / "space.yaml", settings)
    assert "SECRET" not in str(refused.value)
    (folder / "space.yaml").write_text("params: {one.instructions_file: [prompts/a.txt]}")
    assert read_space(folder / "space.yaml", settings).dimensions[0].values == (str(folder / "prompts" / "a.txt"),)


def test_keys_of_protections_are_swept_like_params(tmp_path: Path) -> None:
    text = "params:\n  one.protections.cooldown: [2 bars, 4 bars]\n  one.protections.max_entries: {from: 1, to: 3}\n"
    cooldown, entries = space(tmp_path, text).dimensions
    assert cooldown == Dimension("one.protections.cooldown", ("2 bars", "4 bars"))
    assert (entries.low, entries.high, entries.is_whole) == (1, 3, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("one.protections.cooldown: [soon]", "one.protections.cooldown.length: must be a length of time; write bars"),
        ("one.protections.cooldown: [30s]", "unknown unit s; there are bars, m, h, d, w"),
        (
            "one.protections.max_entries: [0, 2]",
            "does not accept 0: one.protections.max_entries.entries: must be 1..1000",
        ),
        ("one.protections.stop_guard.stops: [2]", "stop_guard.within: is required: write the window"),
        ("one.protections.cooldwn: [2h]", "and keys of protections such as STRATEGY.protections.cooldown"),
        ("one.protections.cooldown: {from: 1, to: 2, step: 1}", "must be a length of time; write bars"),
    ],
)
def test_a_value_that_no_protection_takes_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        space(tmp_path, f"params:\n  {text}\n")
    assert said in str(refused.value)
