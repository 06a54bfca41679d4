"""The new strategy and its config as text."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from bot.cli.freqtrade.frame_reader import SIGNALS, FrameCode, ParamOf, Remark
from bot.cli.freqtrade.library_calls import INDICATORS

WIDTH: Final = 112
USD: Final = 100
BUDGET_USD: Final = 1_000
STRATEGY: Final = '''\
"""{name} of {file}, by `bot convert freqtrade`. It needs pandas.{marked}"""

{imports}


class {name}(Strategy):
    """The rules of the freqtrade strategy {name}."""

    class Params(Params):
{params}

{settings}
    def signals(self, bars):
        dataframe = pd.DataFrame({{name: getattr(bars, name) for name in {columns}}})
        dataframe[{signals}] = 0
{lines}
        return Signals({arguments})
'''
ON_BAR: Final = '''
    def on_bar(self, view, bar):
        """Close at a lower target once a position is old enough; else follow the signals."""
        held = view.position(bar.market)
        if held is not None:
            minutes = bar.at_ms // 60_000 - held.opened_at_ms // 60_000
            gain_pct = (bar.close / held.entry_px - 1) * (100 if held.side == "long" else -100)
            due = [target_pct for after, target_pct in {steps} if minutes >= after]
            if due and gain_pct >= due[-1]:
                return [Close(bar.market)]
        return self.follow_signals(view, bar)
'''
CONFIG: Final = """\
# Made by `bot convert freqtrade`. Check it: bot check {name}.yaml
account: {{base_url: embedded}}
dead_man: {{heartbeat_seconds: 300, on_miss: flatten}}
strategies:
  - name: {name}
    use: "{module}:{kind}"
    markets: [BTC]            # freqtrade has them in its config: pair_whitelist
    interval: {interval}
    budget_usd: {budget}          # most notional in open positions
"""


@dataclass(slots=True)
class Converted:
    """What the file says, in the words of this project. `exits`: arguments of Signals; `steps`: lower targets in
    percent, by minutes.
    """

    file: str
    name: str
    interval: str
    params: Mapping[str, ParamOf]
    code: FrameCode
    # the columns of signals that count
    signals: tuple[str, ...]
    warmup: int = 0
    exits: dict[str, str] = field(default_factory=dict)
    steps: list[tuple[int, float]] = field(default_factory=list)
    protections: dict[str, Any] = field(default_factory=dict)
    findings: list[Remark] = field(default_factory=list)

    @property
    def module(self) -> str:
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", self.name).lower()

    def config(self) -> str:
        name = self.module.replace("_", "-")
        named = {"name": name, "module": self.module, "kind": self.name, "interval": self.interval}
        rows = [f"      {rule}: {json.dumps(given)}\n" for rule, given in self.protections.items()]
        return CONFIG.format(**named, budget=BUDGET_USD) + "".join(["    protections:\n", *rows] if rows else rows)

    def body(self) -> list[str]:
        return [line for step in self.code.steps(self.signals) for line in _laid_out(step.node)]

    def declared(self) -> dict[str, str]:
        """The declarations of the indicators that the signals need, by name."""
        body = "\n".join(self.body())
        return {name: call for name, call in self.code.indicators.items() if f"bars.{name})" in body}

    def has_param(self, name: str) -> bool:
        texts = (*self.body(), *self.declared().values())
        return any(re.search(rf'self\.params\.{name}\b|"{name}"', text) for text in texts)

    def strategy(self) -> str:
        steps = self.code.steps(self.signals)
        body = self.body()
        lookback = max((step.lookback for step in steps if step.writes & set(self.signals)), default=1)
        declared = self.declared()
        used = "\n".join((*body, *declared.values()))
        params = {name: _field_of(param) for name, param in self.params.items() if self.has_param(name)}
        params["usd"] = f"float = Field({USD}, gt=0)"
        settings = [f"warmup = {self.warmup}"] if self.warmup else []
        settings += [f"lookback = {lookback}"] if lookback > 2 else []
        settings += [f"{name} = {call}" for name, call in declared.items()]
        lost = [f"  line {finding.line}: {_quoted(finding.text)}" for finding in self.findings if finding.is_lost]
        text = STRATEGY.format(
            name=self.name,
            file=_quoted(self.file),
            marked="\n".join(["", "", "NOT THE WHOLE STRATEGY. Left out:", *lost, ""]) if lost else "",
            imports="\n".join(self._imports(used)),
            params="\n".join(f"        {name}: {kind}" for name, kind in params.items()),
            settings="".join(f"    {line}\n" for line in settings),
            columns='("open", "high", "low", "close", "volume")',
            signals=json.dumps(list(self.signals)),
            lines="\n".join([*body, *self._flags()]),
            arguments=", ".join(self._arguments()),
        )
        return text + (ON_BAR.format(steps=tuple(self.steps)) if self.steps else "")

    def _imports(self, used: str) -> Iterator[str]:
        if "reduce(" in used:
            yield "from functools import reduce\n"
        if "np." in used:
            yield "import numpy as np"
        yield "import pandas as pd\n"
        called = {name for name in INDICATORS if re.search(rf"\b{name}\(", used)} | ({"Close"} if self.steps else set())
        guardians = {name for name in ("MaxHold", "TrailingStop") if name in self.exits.get("guardians", "")}
        yield f"from bot import {', '.join(sorted({'Field', 'Params', 'Strategy', *called, *guardians}))}"
        yield "from bot.strategy.signals import Signals"

    def _flags(self) -> Iterator[str]:
        for column in self.signals:
            yield f'        {SIGNALS[column]} = (dataframe["{column}"] == 1).to_numpy()'

    def _arguments(self) -> Iterator[str]:
        """An entry and an exit at one bar cancel each other, as in freqtrade."""
        names = [SIGNALS[column] for column in self.signals]
        for name in names:
            side = name.removeprefix("close_")
            against = [side] if name != side else [f"close_{side}", "short" if side == "long" else "long"]
            yield f"{name}={' & ~'.join((name, *(other for other in against if other in names)))}"
        yield "usd=self.params.usd"
        yield from (f"{name}={text}" for name, text in self.exits.items())


def _quoted(text: str) -> str:
    """A text as it may stand in a docstring."""
    return text.encode("unicode_escape", "surrogateescape").decode("ascii").replace('"', "'")


def _field_of(param: ParamOf) -> str:
    kind = "int" if all(isinstance(bound, int) for bound in param[1:]) else "float"
    return f"{kind} = Field({param.default}, ge={param.low}, le={param.high})"


def _laid_out(node: ast.stmt) -> list[str]:
    """The lines of a statement; a long one has a line for each condition, where brackets allow it."""
    text = ast.unparse(node).replace("'", '"') if '"' not in ast.unparse(node) else ast.unparse(node)
    if len(text) > WIDTH and "\n" not in text:
        broken = text.replace(" & ", "\n    & ").replace(" | ", "\n    | ")
        with suppress(SyntaxError):
            text = broken if ast.dump(ast.parse(broken)) == ast.dump(ast.parse(text)) else text
    return [f"        {line}" for line in text.splitlines()]
