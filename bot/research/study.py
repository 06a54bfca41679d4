"""The trials of a sweep in Optuna's storage: SQLite by default, any other by its URL. A study is resumed by its name.

Each trial has the user attribute `outcome`: {cell (its place in the order of the sweep), state, figures, returns,
digest, message, early}.
"""

from __future__ import annotations

import fcntl
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bot.errors import BotError, Exit
from bot.extras import install
from bot.files import open_private
from bot.research.space import Dimension, Params, Space
from bot.research.trials import TrialOutcome
from bot.words import did_you_mean

if TYPE_CHECKING:
    import optuna

IDENTITY: Final = "identity"
SQLITE: Final = "sqlite:///"
OUTCOME: Final = "outcome"
# fewer trials say nothing about importance
IMPORTANCE_TRIALS: Final = 6


class StudyNotFound(BotError):
    """The storage has no study of this name."""

    exit_code = Exit.USAGE


@dataclass(frozen=True, slots=True)
class Trial:
    """A finished trial of a study."""

    cell: int
    params: Params
    state: str
    figures: Mapping[str, Any]
    returns: Sequence[float]
    message: str
    early: float | None
    # SHA-256 of the events, the same as of the run of its backtest
    digest: str = ""


def optuna_module() -> Any:
    try:
        import optuna
    except ImportError:
        raise BotError(f"a sweep needs the package optuna: {install('research')}") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class Study:
    """One study. Only one process at a time may run its trials."""

    def __init__(self, study: optuna.Study) -> None:
        self._study = study

    @property
    def name(self) -> str:
        return str(self._study.study_name)

    @property
    def identity(self) -> dict[str, Any]:
        """What the study was made of: config, strategies, data, options, space, method and seed."""
        stored: dict[str, Any] = json.loads(self._study.user_attrs[IDENTITY])
        return stored

    def kept(self, name: str) -> Any:
        """A value that `keep` stored with the study; None if there is none."""
        text = self._study.user_attrs.get(name)
        return None if text is None else json.loads(text)

    def keep(self, name: str, value: Any) -> None:
        """Store a JSON value with the study."""
        self._study.set_user_attr(name, json.dumps(value))

    def trials(self) -> list[Trial]:
        """The finished trials in the order of their cells."""
        finished = [
            Trial(
                outcome["cell"],
                trial.params,
                outcome["state"],
                outcome["figures"],
                outcome["returns"],
                outcome["message"],
                outcome["early"],
                outcome["digest"],
            )
            for trial in self._study.get_trials(deepcopy=False)
            if (outcome := trial.user_attrs.get(OUTCOME)) is not None
        ]
        return sorted(finished, key=lambda trial: trial.cell)

    def add(self, outcome: TrialOutcome, params: Params, space: Space) -> None:
        """Store a trial that was not asked for by a sampler."""
        optuna = optuna_module()
        values = space.values(outcome.figures) if outcome.state == "complete" else None
        state = optuna.trial.TrialState.FAIL if values is None else optuna.trial.TrialState.COMPLETE
        self._study.add_trial(
            optuna.trial.create_trial(
                params=dict(params),
                distributions=distributions(space),
                values=values,
                state=state,
                user_attrs={OUTCOME: _plain(outcome)},
            )
        )

    def ask(self, space: Space) -> tuple[optuna.Trial, Params]:
        """The trial that the sampler wants to see next."""
        trial = self._study.ask(distributions(space))
        return trial, dict(trial.params)

    def propose(self, params: Params) -> None:
        """Have the sampler ask for these params next."""
        self._study.enqueue_trial(dict(params))

    def tell(self, trial: optuna.Trial, outcome: TrialOutcome, space: Space) -> None:
        """Tell the sampler how its trial ended."""
        trial.set_user_attr(OUTCOME, _plain(outcome))
        self.repeat(trial, outcome, space)

    def repeat(self, trial: optuna.Trial, known: TrialOutcome | Trial, space: Space) -> None:
        """Tell the sampler what is known of the cell that it asks for again. This trial is not counted."""
        optuna = optuna_module()
        values = space.values(known.figures) if known.state == "complete" else None
        for bound in space.constraints:
            trial.set_constraint(bound.figure, min(bound.excess(known.figures), 1e300))
        state = optuna.trial.TrialState.FAIL if values is None else None
        self._study.tell(trial, values, state=state)

    def reap(self) -> int:
        """Close the trials that a killed sweep left running; their params are asked for again. Returns their number."""
        optuna = optuna_module()
        left = [
            trial for trial in self._study.get_trials(deepcopy=False) if trial.state == optuna.trial.TrialState.RUNNING
        ]
        for trial in left:
            self._study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            self._study.enqueue_trial(trial.params)
        return len(left)

    def importance(self) -> dict[str, float]:
        """How much each param matters for the objectives, from 0 to 1:

        PED-ANOVA (Watanabe, Bansal, Hutter, 2023). Empty if trials are too few.
        """
        optuna = optuna_module()
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        with warnings.catch_warnings():
            # Optuna warns if there are few trials, which give no values here.
            warnings.simplefilter("ignore")
            try:
                weights: dict[str, float] = optuna.importance.get_param_importances(self._study, evaluator=evaluator)
            except (ValueError, RuntimeError):
                return {}
        return weights if len(self._study.get_trials(deepcopy=False)) >= IMPORTANCE_TRIALS else {}


def open_study(
    storage: str,
    name: str,
    identity: Mapping[str, Any] | None = None,
    *,
    method: str = "grid",
    seed: int = 1,
    objectives: Sequence[bool] = (True,),
) -> Study:
    """The study of this name.

    With an `identity` it is made if it does not exist; one of another identity is refused. `objectives`: highest is
    best.
    """
    optuna = optuna_module()
    try:
        if (file := _file_of(storage)) is not None:
            # SQLite gives its other files the mode of this one.
            open_private(file).close()
        store = _opened(storage, Path.cwd())
        names = optuna.get_all_study_names(store)
    except Exception as error:  # noqa: BLE001  each database has its own
        raise BotError(f"--storage {storage}: cannot be opened: {str(error).splitlines()[0]}") from None
    if identity is None and name not in names:
        there = f"; there are {', '.join(names)}" if names else "; it has none"
        raise StudyNotFound(f"{storage} has no study {name!r}{did_you_mean(name, names) or there}")
    samplers = {"tpe": optuna.samplers.TPESampler, "nsgaii": optuna.samplers.NSGAIISampler}
    sampler = samplers[method](seed=seed) if method in samplers else None
    if identity is None or name in names:
        study = Study(optuna.load_study(study_name=name, storage=store, sampler=sampler))
        if identity is not None:
            check_same(name, study.identity, identity)
        return study
    directions = ["maximize" if is_highest else "minimize" for is_highest in objectives]
    created = optuna.create_study(study_name=name, storage=store, sampler=sampler, directions=directions)
    created.set_user_attr(IDENTITY, json.dumps(identity, sort_keys=True))
    return Study(created)


def _file_of(storage: object) -> Path | None:
    """The file of a SQLite storage; None for another database, for one in memory and for a storage object of Optuna."""
    if not isinstance(storage, str):
        return None
    name = storage.removeprefix(SQLITE)
    return None if name == storage or name.startswith((":", "file:")) or "?" in name else Path(name)


@lru_cache(maxsize=1)
def _opened(storage: str, _folder: Path) -> Any:
    """The storage of this URL, which may be relative to the folder.

    It is opened once: each opening reads every migration of Optuna's schema.
    """
    return optuna_module().storages.get_storage(storage)


def every_study(storage: str) -> list[Study]:
    """Every study of a storage that a sweep made."""
    optuna = optuna_module()
    store = _opened(storage, Path.cwd())
    studies = (optuna.load_study(study_name=name, storage=store) for name in optuna.get_all_study_names(store))
    return [Study(study) for study in studies if IDENTITY in study.user_attrs]


@contextmanager
def one_sweep(storage: str, name: str) -> Iterator[None]:
    """While this lasts, no other process sweeps this study in the same SQLite file.

    It would run the same trials, and close those that run here.
    """
    file = _file_of(storage)
    if file is None:
        yield
        return
    path = Path(f"{file}.{name}.lock")
    try:
        # A link in a folder of others would have the file emptied that it leads to.
        lock = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "r+")
    except OSError as error:
        raise BotError(f"{path}: cannot be written: {error.strerror or error}; give another --storage") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BotError(
                f"another process runs the study {name!r} now; wait until it ends, or give another --study"
            ) from None
        yield


def check_same(name: str, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """BotError names what differs between the identity of a stored study and the given one."""
    given = json.loads(json.dumps(given, sort_keys=True))
    differs = [key for key in sorted({*stored, *given}) if stored.get(key) != given.get(key)]
    if differs:
        what = "; ".join(f"{key}: {_short(stored.get(key))} then, {_short(given.get(key))} now" for key in differs)
        raise BotError(f"the study {name!r} was made with something else ({what}); give another --study")


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _plain(outcome: TrialOutcome) -> dict[str, Any]:
    return {
        "cell": outcome.number,
        "state": outcome.state,
        "figures": dict(outcome.figures),
        "returns": list(outcome.returns),
        "digest": outcome.digest,
        "message": outcome.message,
        "early": outcome.early,
    }


def distributions(space: Space) -> dict[str, Any]:
    """The space in Optuna's words."""
    return {dimension.name: _distribution(dimension) for dimension in space.dimensions}


def _distribution(dimension: Dimension) -> Any:
    kinds = optuna_module().distributions
    if dimension.values:
        return kinds.CategoricalDistribution(dimension.values) if not _is_even(dimension) else _steps(dimension, kinds)
    kind = kinds.IntDistribution if dimension.is_whole else kinds.FloatDistribution
    low, high = (int(dimension.low), int(dimension.high)) if dimension.is_whole else (dimension.low, dimension.high)
    return kind(low, high, log=dimension.is_log)


def _is_even(dimension: Dimension) -> bool:
    """Whether the values are whole numbers with equal steps: then a sampler knows that neighbours are alike."""
    values = dimension.values
    if len(values) < 2 or not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return False
    steps = {int(b) - int(a) for a, b in pairwise(values)}
    return len(steps) == 1 and steps.pop() > 0


def _steps(dimension: Dimension, kinds: Any) -> Any:
    first, second, *_ = (int(value) for value in dimension.values)
    return kinds.IntDistribution(first, int(dimension.values[-1]), step=second - first)
