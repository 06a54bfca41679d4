"""The loader: what `use` may name, and for every mistake a message that says what to do."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Iterator
from decimal import ROUND_HALF_EVEN, Decimal, getcontext, localcontext
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from bot import plugins
from bot.config.references import Referred
from bot.errors import ConfigError, StrategyError
from bot.runtime.strategy_host import loader
from bot.runtime.strategy_host.loader import build, check_params, discover, load

GOOD = '''
from bot.strategy import *

class One(Strategy):
    """Does nothing, well."""
    class Params(Params):
        lookback: int = Field(20, ge=2, le=500)
        usd: float = Field(gt=0)
    def on_bar(self, view, bar):
        return ()
'''
TWO = GOOD + "class Two(One):\n    pass\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    one = tmp_path / "strategies"
    one.mkdir(mode=0o755)
    return one


def put(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.py"
    path.write_text(text)
    path.chmod(0o644)
    return path


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    site = tmp_path / "site"
    (site / "acme").mkdir(parents=True)
    (site / "acme" / "__init__.py").write_text("")
    (site / "acme" / "good.py").write_text(GOOD)
    (site / "acme" / "raises.py").write_text("1 / 0\n")
    (site / "acme" / "lacks.py").write_text("import surely_not_installed\n")
    monkeypatch.syspath_prepend(str(site))
    yield site
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme"]:
        del sys.modules[name]


def test_a_file_and_a_class_of_it_load_with_their_hash(folder: Path) -> None:
    path = put(folder, "one", GOOD)
    for use in ("one", "one:One"):
        loaded = load(use, folder)
        assert loaded.strategy.__name__ == "One"
        assert (loaded.origin, loaded.path, loaded.warnings) == ("file", path, ())
        assert loaded.sha256 == hashlib.sha256(GOOD.encode()).hexdigest()
    one = build(loaded, name="mine", markets=["BTC"], params={"usd": 5})
    assert (one.name, one.markets, one.params.lookback) == ("mine", ("BTC",), 20)


def test_a_changed_file_runs_as_it_is_now_although_it_was_compiled_before(folder: Path) -> None:
    path = put(folder, "one", GOOD)
    stamp = path.stat()
    first = load("one", folder)
    path.write_text(GOOD.replace("lookback: int = Field(20", "lookback: int = Field(30"))
    # As a quick editor or a copy does: same size, same time.
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    second = load("one", folder)
    assert second.strategy.Params.model_fields["lookback"].default == 30
    assert first.sha256 != second.sha256
    assert not (folder / "__pycache__").exists()


def test_a_file_that_is_moved_after_it_was_read_loads_as_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(folder, "one", GOOD + "from pathlib import Path\nPath(__file__).unlink()\n")
    loaded = load("one", folder)
    assert not path.exists()
    assert (loaded.strategy.__name__, loaded.warnings) == ("One", ())


def test_an_import_cannot_change_the_decimal_context(folder: Path, package: Path) -> None:
    text = "from decimal import *\ngetcontext().prec = 6\nsetcontext(Context(prec=5, rounding=ROUND_UP))\n" + GOOD
    put(folder, "one", text)
    (package / "acme" / "coarse.py").write_text(text)
    with localcontext() as ours:
        for use in ("one", "acme.coarse:One"):
            load(use, folder)
            assert (ours.prec, getcontext().prec, getcontext().rounding) == (28, 28, ROUND_HALF_EVEN)
    assert Decimal(100_000).quantize(Decimal("0.00000001")) == 100_000


def test_a_dotted_path_loads_with_and_without_its_class(folder: Path, package: Path) -> None:
    for use in ("acme.good:One", "acme.good"):
        loaded = load(use, folder)
        assert (loaded.strategy.__name__, loaded.origin) == ("One", "module")
        assert loaded.sha256 == hashlib.sha256(GOOD.encode()).hexdigest()


def test_the_digest_of_installed_code_is_of_the_text_that_ran(folder: Path, package: Path) -> None:
    path = package / "acme" / "good.py"
    first = load("acme.good:One", folder)
    assert not first.is_outdated
    path.write_text(GOOD.replace("Field(20", "Field(30"))
    second = load("acme.good:One", folder)
    assert second.strategy is first.strategy
    assert (second.sha256, second.is_outdated) == (first.sha256, True)
    path.unlink()
    assert load("acme.good:One", folder).is_outdated
    path.write_text(GOOD)
    assert not load("acme.good:One", folder).is_outdated


def test_an_entry_point_loads_by_its_name(folder: Path, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("acme-one", "acme.good:One", loader.GROUP),
        EntryPoint("acme-bad", "acme.raises:One", loader.GROUP),
    ]
    monkeypatch.setattr(plugins, "entry_points", lambda group: points if group == "bot.strategies" else [])
    assert load("acme-one", folder).strategy.__name__ == "One"
    assert load("acme-one", folder).origin == "entry point"
    with pytest.raises(StrategyError, match="ZeroDivisionError"):
        load("acme-bad", folder)
    with pytest.raises(ConfigError, match="did you mean 'acme-one'"):
        load("acme_one", folder)
    found = {one.use: one for one in discover(folder)}
    assert found["acme-one"].error is None
    assert "ZeroDivisionError" in (found["acme-bad"].error or "")


def test_nothing_is_imported_from_the_current_directory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    put(tmp_path / "here", "accident", GOOD)
    put(tmp_path / "here", "mod", GOOD)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "here"), *sys.path])
    with pytest.raises(ConfigError, match="no file accident.py"):
        load("accident", folder)
    with pytest.raises(ConfigError, match="no module 'mod'"):
        load("mod.x:One", folder)
    assert sys.path[0] == str(tmp_path / "here")


CONFIG_ERRORS = [
    ("tren", "no file tren.py in .*did you mean 'trend'"),
    ("zzz", "no file zzz.py in .*there are .*trend"),
    ("trend:Trnd", "has no class Trnd; did you mean 'Trend'"),
    ("two", "has 2 strategies; write one of two:One, two:Two"),
    ("../trend", "is none of"),
    ("/etc/passwd", "is none of"),
    ("trend.py:", "is none of"),
    ("", "is none of"),
    ("trend.py", "for a class of trend.py in the strategies folder write trend:Class"),
    ("trend.py:Trend", "write trend:Trend"),
    ("trend.Trend", "write trend:Trend"),
    ("acme.gone:One", "no module 'acme.gone' is installed"),
    ("nowhere.at.all:One", "no module 'nowhere' is installed"),
]


@pytest.mark.parametrize(("use", "message"), CONFIG_ERRORS)
def test_a_use_that_names_nothing_lists_what_exists(folder: Path, package: Path, use: str, message: str) -> None:
    put(folder, "trend", GOOD.replace("One", "Trend"))
    put(folder, "two", TWO)
    with pytest.raises(ConfigError, match=message):
        load(use, folder)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="strategies folder .*gone does not exist"):
        load("trend", tmp_path / "gone")
    assert [one for one in discover(tmp_path / "gone") if one.origin == "file"] == []


BROKEN = [
    ("def on_bar(:\n", r"broken.py:1:12: invalid syntax"),
    ("x = 1\n  y = 2\n", r"broken.py:2:\d: unexpected indent"),
    ("a\0b", "null bytes"),
    (b"# -*- coding: utf-8 -*-\nx = '\xff'\n", "codec|utf-8"),
    ("def f():\n    return 1 / 0\n\nf()\n", r"broken.py:2: raises ZeroDivisionError while it is imported"),
    ("import sys\nsys.exit(3)\n", r"broken.py:2: calls sys.exit"),
    ("import surely_not_installed\n", "install it into the environment"),
    ("import sibling\n", "a strategy file cannot import its neighbours"),
    ("x = 1\n", "contains no strategy"),
    ("from bot.strategy import Strategy\n", "contains no strategy"),
    ("from bot.strategy import Strategy\nclass A(Strategy):\n    pass\n", "A is abstract: define on_bar"),
    (
        GOOD + "    warmup = 'lookbak'\n",
        "One.warmup names the param 'lookbak', which Params does not have; did you mean 'lookback'",
    ),
    (GOOD + "    fast = sma('fst')\n", "One.fast names the param 'fst'"),
    (GOOD + "    timers = {'a': 60}\n", "One.timers is read by nobody: define on_timer"),
    (GOOD + "    def signals(self, bars): pass\n", "One has both signals and on_bar, so signals is never called"),
    (GOOD + "    lookback = 5\n", "One.lookback is read by nobody without signals"),
    (GOOD + "    markets = ['BTC']\n", "One.markets is read by nobody, because the daemon sets it from the config"),
    (GOOD + "    warmup_bars = 50\n", "One.warmup_bars is read by nobody, because the daemon sets it"),
    (GOOD + "    warm_up = 50\n", "One.warm_up is read by nobody; did you mean 'warmup'"),
    (GOOD + "    timer = {'a': 60}\n", "One.timer is read by nobody; did you mean 'timers'"),
    (GOOD + "    def comfirm(self, plan): return False\n", "One.comfirm is read by nobody; did you mean 'confirm'"),
    (GOOD + "    def onfill(self, view, fill): pass\n", "One.onfill is read by nobody; did you mean 'on_fill'"),
    (GOOD + "    timers = {'a': 'every hour'}\n", r"One.timers\['a'\]: 'every hour' is not a cron line"),
    (GOOD + "    timers = {'a': '61 * * * *'}\n", "is not a cron line"),
    (GOOD + "    timers = {'a': '0 0 30 2 *'}\n", "is not a cron line|never comes"),
    (GOOD + "    timers = {'a': 0}\n", "seconds must be 1 to 2678400, not 0"),
    (GOOD + "    timers = {'a': True}\n", "or a whole number of seconds"),
    (GOOD + "    timers = {'': 5}\n", "a timer's name must be a string of 1 to 40 characters"),
    (GOOD + "    timers = '0 * * * *'\n", "must be a mapping such as"),
    (GOOD + "    fast = sma(0)\n", "a period is a whole number from 1"),
    (GOOD + "    async def on_fill(self, view, fill): pass\n", "One.on_fill is async; write a plain def"),
    (GOOD + "    async def on_timer(self, view, timer): yield\n", "One.on_timer is async"),
    (GOOD + "    def on_start(self, view): yield 1\n", "One.on_start yields, and its signals would be lost"),
    (GOOD + "    def confirm(self, plan): yield True\n", "One.confirm yields"),
    (GOOD + "    def on_fills(self, view, fill): pass\n", "One.on_fills is no hook, .*; did you mean 'on_fill'"),
    (
        GOOD + "    def on_order_accepted(self, order): pass\n",
        "is no hook, so it would never be called; the hooks are on_bar, on_start,",
    ),
    (
        GOOD + "    def on_fill(self, fill): pass\n",
        r"One.on_fill is called with \(self, view, fill\), but does not take these arguments",
    ),
    (GOOD + "    def on_stop(self): pass\n", r"One.on_stop is called with \(self, view\)"),
    (GOOD + "    on_fill = None\n", r"One.on_fill is None, which cannot be called with \(self, view, fill\)"),
    (GOOD + "    on_timer = sma(3)\n", r"One.on_timer is <.*Indicator.*>, which cannot be called"),
    (
        GOOD + "    @staticmethod\n    def on_fill(self, view, fill): pass\n",
        r"One.on_fill is called with \(view, fill\)",
    ),
    (GOOD + "    @classmethod\n    async def confirm(cls, plan): pass\n", "One.confirm is async"),
    (
        GOOD.replace("class Params(Params)", "class Params"),
        r"One.Params does not derive from bot's Params: write class Params",
    ),
    (GOOD + "    Params = {'usd': 5}\n", "One.Params does not derive from bot's Params"),
    (GOOD.replace("lookback: int = Field(20, ge=2, le=500)", "lookback = 20"), "type annotation[^\\n]*\\Z"),
    ("raise BaseException('x')\n", "raises BaseException"),
    (
        "class Mute(Exception):\n    def __str__(self):\n        raise ValueError\nraise Mute\n",
        r"broken\.py:4: raises Mute while it is imported: ",
    ),
    (f"x = {'+'.join(['1'] * 100_000)}\n", r"broken\.py: an expression in it is too long"),
    (f"x = {'-' * 100_000}1\n", r"broken\.py: an expression in it is too long"),
    ("# -*- coding: of-nobody -*-\n", r"broken\.py:1:1: unknown encoding"),
]


@pytest.mark.parametrize(("text", "message"), BROKEN)
def test_a_file_that_cannot_be_used_says_where_and_why(folder: Path, text: str | bytes, message: str) -> None:
    put(folder, "sibling", "")
    path = folder / "broken.py"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(StrategyError, match=message) as error:
        load("broken", folder)
    assert "Traceback" not in str(error.value)
    (row,) = [one for one in discover(folder) if one.path == path]
    assert row.error is not None


def test_a_hook_with_names_of_its_own_and_one_that_takes_anything_are_hooks(folder: Path) -> None:
    more = "    def on_fill(self, account, execution, more=1): return []\n    def on_timer(self, *args): return []\n"
    more += (
        "    @staticmethod\n    def on_trigger(view, trigger): return []\n    @classmethod\n    def on_stop(cls, view):"
        " pass\n"
    )
    put(folder, "mine", GOOD + more + "    _on_signal = print\n    on_count = 3\n")
    assert load("mine", folder).strategy.__name__ == "One"


def test_a_file_that_cannot_be_read_is_not_reported_as_missing(folder: Path) -> None:
    # What a folder that is closed to this user is to everybody but root.
    (folder / "one.py").symlink_to("one.py")
    with pytest.raises(ConfigError, match=r"strategies/one\.py: cannot be read: "):
        load("one", folder)


def test_a_class_that_is_no_strategy_is_refused(folder: Path) -> None:
    put(folder, "one", GOOD + "limit = 5\n")
    for name in ("limit", "Bar", "Strategy"):
        with pytest.raises(StrategyError, match="is not a subclass of bot's Strategy"):
            load(f"one:{name}", folder)


def test_an_error_of_a_module_names_the_module_and_not_the_config(folder: Path, package: Path) -> None:
    with pytest.raises(StrategyError, match="raises ZeroDivisionError"):
        load("acme.raises:One", folder)
    with pytest.raises(StrategyError, match="surely_not_installed"):
        load("acme.lacks:One", folder)


def test_an_endless_import_is_ended_and_its_line_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "IMPORT_S", 0.5)
    before = signal.getsignal(signal.SIGALRM)
    for text in (
        "while True:\n    pass\n",
        "while True:\n    try:\n        import threading; threading.Event().wait()\n    finally:\n        pass\n",
    ):
        put(folder, "one", text)
        with pytest.raises(StrategyError, match=r"one\.py:[1-3]: its import did not end within 0.5 s"):
            load("one", folder)
    assert (signal.getitimer(signal.ITIMER_REAL)[0], signal.getsignal(signal.SIGALRM)) == (0.0, before)


def test_a_keyboard_interrupt_while_loading_is_raised_as_it_is(folder: Path) -> None:
    put(folder, "one", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load("one", folder)


def test_bad_params_are_named_with_their_bound(folder: Path) -> None:
    put(folder, "one", GOOD)
    loaded = load("one", folder)
    with pytest.raises(ConfigError) as error:
        build(loaded, name="mine", markets=["BTC"], params={"lookback": 501, "lokback": 3})
    text = str(error.value)
    assert "strategy 'mine' (one): 3 bad params" in text
    assert "params.lookback: Input should be less than or equal to 500 (got 501)" in text
    assert "params.lokback: unknown param; did you mean 'lookback'?" in text
    assert "params.usd: is required and not given" in text
    assert check_params(loaded.strategy, {"usd": 1}) == []
    assert check_params(loaded.strategy, {"usd": "x"})[0].loc == ("usd",)


def test_true_and_false_are_not_accepted_as_numbers(folder: Path) -> None:
    more = "    class Params(Params):\n        shorts: bool = True\n        stop: float | bool = 1.5\n"
    put(folder, "one", GOOD + f"class Two(One):\n{more}")
    strategy = load("one:Two", folder).strategy
    assert check_params(strategy, {"shorts": False, "stop": False}) == []
    strategy = load("one:One", folder).strategy
    found = check_params(strategy, {"lookback": True, "usd": True})
    assert [(one.loc, one.message) for one in found] == [
        (("lookback",), "must be a number (got True)"),
        (("usd",), "must be a number (got True)"),
    ]


def test_a_strategy_with_its_own_constructor_is_refused_with_advice(folder: Path) -> None:
    put(folder, "one", GOOD + "    def __init__(self, x):\n        pass\n")
    with pytest.raises(StrategyError, match="remove __init__ and prepare in on_start"):
        build(load("one", folder), name="mine", markets=["BTC"], params={"usd": 1})


BUILDS = "    def __init__(self, **given):\n        super().__init__(**given)\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            GOOD + BUILDS + "        1 / 0\n",
            r"one\.py:\d+: raises ZeroDivisionError while it is built: division by zero",
        ),
        (GOOD + BUILDS + "        int(None)\n", "remove __init__ and prepare in on_start"),
        (GOOD + BUILDS + "        raise SystemExit\n", r"one\.py:\d+: calls sys.exit while it is built"),
        (
            GOOD + "    def __init__(self, **given):\n        pass\n",
            r"its __init__ does not call super\(\).__init__; remove it",
        ),
        (
            GOOD.replace(
                "    def on_bar", "        def model_post_init(self, _):\n            {}[self.usd]\n    def on_bar"
            ),
            "One.Params: raises KeyError while it checks params; report a bad param with ValueError",
        ),
    ],
)
def test_an_error_while_a_strategy_is_built_names_the_strategy(folder: Path, text: str, message: str) -> None:
    put(folder, "one", text)
    with pytest.raises(StrategyError, match=message):
        build(load("one", folder), name="mine", markets=["BTC"], params={"usd": 1})


def test_a_file_that_others_can_change_gives_a_warning(folder: Path) -> None:
    path = put(folder, "one", GOOD)
    path.chmod(0o666)
    folder.chmod(0o775)
    warnings = load("one", folder).warnings
    assert [f"{folder} can be written by others" in warnings[0], f"chmod go-w {path}" in warnings[1]] == [True, True]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_gives_a_warning(folder: Path) -> None:
    path = put(folder, "one", GOOD)
    os.chown(path, 12_345, -1)
    assert load("one", folder).warnings == (
        f"{path} belongs to another user (uid 12345), who can change what trades; chown it",
    )


def test_discover_lists_each_strategy_and_leaves_out_private_files(folder: Path) -> None:
    put(folder, "one", GOOD)
    put(folder, "two", TWO)
    put(folder, "_notes", "1 / 0")
    found = {one.use: one for one in discover(folder) if one.origin == "file"}
    assert list(found) == ["one", "two:One", "two:Two"]
    assert found["one"].summary == "Does nothing, well."
    assert found["one"].params["lookback"]["maximum"] == 500
    assert found["two:Two"].error is None


def test_optional_params_and_params_without_a_json_type_are_listed(folder: Path) -> None:
    more = (
        "    class Params(Params):\n        stop: float | None = None\n        days: list[int] ="
        " Field(default_factory=list)\n        usd: float\n"
    )
    put(folder, "plain", GOOD + f"class Two(One):\n{more}")
    put(folder, "typed", GOOD + f"class Two(One):\n{more}        of: type = int\n")
    found = {one.use: one for one in discover(folder)}
    for use in ("plain:Two", "typed:Two"):
        params = found[use].params
        assert found[use].error is None
        assert [("default" in params[name], params[name].get("default")) for name in ("stop", "days", "usd")] == [
            (True, None),
            (True, None),
            (False, None),
        ]
    assert "of" in found["typed:Two"].params


def test_a_bad_param_that_may_be_a_secret_is_not_shown(folder: Path) -> None:
    put(folder, "one", GOOD + "\n")
    loaded = load("one", folder)
    given = {"usd": Referred("hunter2"), "lookback": "bbk_test_abc_def_ghi"}
    shown = " ".join(problem.message for problem in check_params(loaded.strategy, given))
    assert "hunter2" not in shown
    assert "test_abc" not in shown
    assert shown.count("[hidden]") == 2
