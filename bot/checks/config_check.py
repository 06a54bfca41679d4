"""Checks a whole config before anything starts: the file, its strategies and their params, its markets, its candle
files.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from bot.config import ConfigSource, Settings, read, read_text
from bot.config.references import Noted, Outside
from bot.errors import BotError, ConfigError, Problem, Refusal, StrategyError
from bot.extras import install
from bot.runtime.strategy_host import loader
from bot.service.market_data.instruments import CATALOGUE, Listing, use_listings
from bot.words import meant_market

if TYPE_CHECKING:
    from bot.checks.strategy_check import Checked


def checked_config(path: Path, outside: Outside | None = None) -> ConfigSource:
    """Read and check a config that is to run. ConfigError lists every problem that can be found without starting
    anything.

    `outside` resolves references; give it if the credentials of a systemd unit cannot be read here.
    """
    source = _checked(path, read(path, lookup=outside))
    missing = missing_packages(source.settings)
    problems = [source.problem((place,), needs_package(place, name)) for place, name in missing]
    if source.settings.notify is not None and "notify" not in dict(missing):
        problems += _of_addresses(source, {} if outside is None else outside.handed_over)
    if problems:
        raise ConfigError("\n".join(map(str, problems)), tuple(problems))
    return source


def checked_without_secrets(path: Path) -> tuple[Settings, Sequence[tuple[str, str]]]:
    """Check a config without reading its secrets.

    Also returns the references to them: (credential, file or env; name).
    """
    settings, noted = checked_and_noted(path)
    return settings, noted.secrets


def checked_and_noted(path: Path) -> tuple[Settings, Noted]:
    """As `checked_without_secrets`, with all references that were found."""
    noted = Noted(path.absolute().parent, os.environ)
    return _checked(path, read(path, lookup=noted)).settings, noted


def checked_text(text: str, path: Path, listings: Mapping[str, Listing] | None = None) -> Settings:
    """Check a config given as text, as if it were in the file `path`, without reading its secrets.

    `listings`: the added markets of an earlier run; None: those of the config's listing file.
    """
    noted = Noted(path.absolute().parent, os.environ)
    return _checked(path, read_text(text, path, lookup=noted), listings).settings


def _checked(path: Path, source: ConfigSource, listings: Mapping[str, Listing] | None = None) -> ConfigSource:
    """The config, after all checks. From then on this process knows the added markets."""
    if listings is None and source.settings.listings is not None:
        from bot.checks.listing_file import listings_of

        listings = listings_of(source.settings.listings)
    use_listings(listings or {})
    problems: list[Problem] = []
    for index, strategy in enumerate(source.settings.strategies):
        at = ("strategies", index)
        try:
            loaded = loader.load(strategy.use, source.settings.strategies_dir)
            bad = loader.check_params(loaded.strategy, strategy.params)
        except (ConfigError, StrategyError) as error:
            problems.append(
                source.problem((*at, "use"), str(error).removeprefix(f"use: {strategy.use!r}").lstrip(": "))
            )
            continue
        problems += [source.problem((*at, "params", *param.loc), param.message) for param in bad]
        if isinstance(strategy.approve, str) and ":" in strategy.approve:
            try:
                loader.load_policy(strategy.approve, source.settings.strategies_dir)
            except (ConfigError, StrategyError) as error:
                problems.append(source.problem((*at, "approve"), str(error).removeprefix("approve: ")))
        if not bad:
            try:
                loader.build(
                    loaded,
                    name=strategy.name,
                    markets=strategy.markets,
                    params=strategy.params,
                    interval=strategy.interval,
                    informative=strategy.informative,
                )
            except BotError as error:
                problems.append(source.problem((*at, "use"), str(error)))
    if source.settings.account.embedded:
        problems += _of_markets(source)
        problems += _of_guardians(source)
    if source.settings.notify is not None:
        from bot.runtime.alerts import messages

        notify = source.settings.notify
        problems += [
            source.problem(("notify", *at), text)
            for at, text in messages.problems(notify.texts, notify.mute, notify.level)
        ]
    if problems:
        head = f"{path}: {len(problems)} problems\n" if len(problems) > 1 else ""
        raise ConfigError(head + "\n".join(map(str, problems)), tuple(problems))
    return source


def check_strategies(settings: Settings) -> None:
    """Check the strategies of settings that were made by code, not read from a file."""
    for strategy in settings.strategies:
        loader.build(
            loader.load(strategy.use, settings.strategies_dir),
            name=strategy.name,
            markets=strategy.markets,
            params=strategy.params,
            interval=strategy.interval,
            informative=strategy.informative,
        )


def called(source: ConfigSource) -> dict[str, Checked]:
    """Call each strategy of the config on generated bars: by the strategy's name, what its author should read, and its
    timers.

    ConfigError lists each strategy that fails.
    """
    from bot.checks.strategy_check import checked

    results = checked(source.settings)
    problems = [
        source.problem(("strategies", index, "use"), result.problem)
        for index, result in enumerate(results)
        if result.problem is not None
    ]
    if problems:
        raise ConfigError("\n".join(map(str, problems)), tuple(problems))
    return {strategy.name: result for strategy, result in zip(source.settings.strategies, results, strict=True)}


def missing_packages(settings: Settings) -> list[tuple[str, str]]:
    """Missing packages that a run needs and a backtest does not, (section, package).

    Found here, before the service starts.
    """
    return [
        (section, name)
        for section, name in (("notify", "apprise"), ("metrics", "prometheus-client"), ("dashboard", "jinja2"))
        if getattr(settings, section) is not None and find_spec(name.replace("-", "_")) is None
    ]


def needs_package(section: str, name: str) -> str:
    return f"needs the package {name}: {install(extra_of(section))}, or remove the section"


def extra_of(section: str) -> str:
    """The extra that a section of a config needs."""
    return "ui" if section == "dashboard" else section


def _of_addresses(source: ConfigSource, unseen: Collection[str]) -> list[Problem]:
    """Addresses for notices that apprise does not know.

    `unseen`: addresses that cannot be read here and are not checked.
    """
    from bot.runtime.alerts.notifier import AppriseTarget

    assert source.settings.notify is not None
    problems = []
    for index, url in enumerate(source.settings.notify.urls):
        if url.get_secret_value() in unseen:
            continue
        try:
            AppriseTarget(url, index)
        except ConfigError as error:
            problems.append(
                source.problem(("notify", "urls", index), str(error).removeprefix(f"notify.urls[{index}]: "))
            )
    return problems


def _of_markets(source: ConfigSource) -> list[Problem]:
    """Problems of markets. Checks only configs with the embedded service, whose markets are known without a request."""
    from bot.wire import INTERVAL_MS

    settings = source.settings
    no_such = f"no such market; known are {', '.join(CATALOGUE)}"
    given: list[tuple[tuple[str | int, ...], str]] = [
        (("embedded", "markets", index), coin) for index, coin in enumerate(settings.embedded.markets)
    ]
    for loc, prices in settings.account.price_sources().items():
        given += [(("account", *loc, "markets", coin), coin) for coin in prices.markets]
    problems = [source.problem(loc, no_such) for loc, coin in given if coin not in CATALOGUE]
    steps, of_data = _of_candle_files(source) if settings.embedded.data else ({}, [])
    problems += of_data
    listed = _listed(settings)
    for index, strategy in enumerate(settings.strategies):
        read = [("markets", place, coin) for place, coin in enumerate(strategy.markets)]
        read += [("informative", place, coin) for place, coin in enumerate(strategy.informative)]
        for key, place, coin in read:
            if coin not in listed:
                problems.append(source.problem(("strategies", index, key, place), _not_listed(coin, listed)))
            elif INTERVAL_MS[strategy.interval] < steps.get(coin, 0):
                finest = next(name for name, step in INTERVAL_MS.items() if step == steps[coin])
                text = (
                    f"there are no {strategy.interval} bars of {coin}: its candles are of {finest};"
                    f" use finer data, or interval: {finest}"
                )
                problems.append(source.problem(("strategies", index, "interval"), text))
    return problems


def _of_candle_files(source: ConfigSource) -> tuple[dict[str, int], list[Problem]]:
    """The interval in ms of each market's candle file, and the problems of the files."""
    from bot.service.market_data.file_names import check_converted
    from bot.service.market_data.price_feed import RecordedSource
    from bot.service.market_data.recorded import interval_of, read_candles
    from bot.service.state_machine.bootstrap import recorded_start

    problems: list[Problem] = []
    played: dict[str, RecordedSource] = {}
    for index, data_file in enumerate(source.settings.embedded.data):
        at = ("embedded", "data", index)
        if data_file.market not in CATALOGUE:
            text = f"no such market; known are {', '.join(CATALOGUE)}"
            problems.append(source.problem((*at, "market"), text))
        elif data_file.market in played:
            problems.append(source.problem((*at, "market"), f"two candle files are given for {data_file.market}"))
        else:
            spec = CATALOGUE[data_file.market].spec
            try:
                check_converted(data_file.file, CATALOGUE[data_file.market])
                candles = read_candles(
                    data_file.file, sz_decimals=spec.sz_decimals, are_odds=spec.margin_mode == "full"
                )
                played[data_file.market] = RecordedSource(candles, interval_of(data_file.file, candles))
            except ConfigError as error:
                problems.append(source.problem((*at, "file"), str(error)))
    if played:
        try:
            recorded_start(played)
        except ConfigError as error:
            problems.append(source.problem(("embedded", "data"), str(error)))
    return {coin: recorded.base_ms for coin, recorded in played.items()}, problems


def _of_guardians(source: ConfigSource) -> list[Problem]:
    """The guardians that the embedded service would refuse.

    Checked early, because the daemon sends no entry without its guardians.
    """
    if not source.settings.guardians:
        return []
    from bot.service.bodies.responses import OperationRefused
    from bot.service.operations.orders import ORDER_FIELDS, guardian_spec
    from bot.venue.protection.guardians import normalise
    from bot.wire.errors import unknown

    problems: list[Problem] = []
    listed = _listed(source.settings)
    for index, guardian in enumerate(source.settings.guardians):
        try:
            # The service would ignore an unknown field; in a config it is a mistake.
            for name in guardian.order_template or ():
                if name not in ORDER_FIELDS:
                    problems.append(
                        source.problem(("guardians", index, "order_template", name), unknown(name, ORDER_FIELDS)[0])
                    )
            spec = normalise(guardian_spec(guardian.request()))
        except OperationRefused as error:
            spec = error.refusal
        if isinstance(spec, Refusal):
            at = str(((spec.details or {}).get("fields") or [{}])[0].get("field", ""))
            keys = at.replace("orderTemplate", "order_template").split(".")
            problems.append(source.problem(("guardians", index, *keys), spec.message.removeprefix(f"{at}: ")))
        elif spec.order is not None and spec.order.coin not in listed:
            problems.append(
                source.problem(("guardians", index, "order_template", "market"), _not_listed(spec.order.coin, listed))
            )
    return problems


def _listed(settings: Settings) -> Collection[str]:
    """The embedded service's markets."""
    section = settings.embedded
    given = {*section.markets, *(data.market for data in section.data)}
    for prices in settings.account.price_sources().values():
        given |= set(prices.markets)
    return given or set(CATALOGUE)


def _not_listed(coin: str, listed: Collection[str]) -> str:
    return f"{coin} is not among the embedded service's markets{_meant(coin, listed)}: {', '.join(sorted(listed))}"


def _meant(coin: str, listed: Collection[str]) -> str:
    near = meant_market(coin, listed)
    return f" (did you mean {near}?)" if near is not None else ""
