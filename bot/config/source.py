"""Reads a config file into `Settings` and reports each problem with its line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from bot.config.document import MISSING, Document, Loc, Lookup
from bot.config.references import References
from bot.config.settings import PRICE_TAGS, Settings
from bot.config.state_folder import FILE_BYTES_MAX, default_state_dir, name_of
from bot.errors import ConfigError, Problem
from bot.logs import redact
from bot.words import did_you_mean

# the listing file that is found beside a config
LISTINGS: Final = "markets.yaml"

SectionT = TypeVar("SectionT", bound=BaseModel)

_SAID: Final[Mapping[str, str]] = {
    "missing": "is required",
    "model_type": "must be a mapping of keys, like {key: value}",
    "model_attributes_type": "must be a mapping of keys, like {key: value}",
    "dict_type": "must be a mapping of keys, like {key: value}",
    "mapping_type": "must be a mapping of keys, like {key: value}",
    "tuple_type": "must be a list, like [one, two]",
    "string_type": "must be text",
    "bool_type": "must be true or false",
}


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """A config that was read: its settings, and its text for problems that are found later (a strategy's params)."""

    settings: Settings
    document: Document

    def problem(self, loc: Loc, message: str, *, at_key: bool = False) -> Problem:
        """A problem at a path of the file, such as `("strategies", 0, "params", "lookback")`."""
        return self.document.shown(self.document.problem(loc, message, at_key=at_key))


def load(path: str | Path, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of a file. ConfigError holds every problem found; no message shows a secret."""
    return read(path, environ).settings


def read(path: str | Path, environ: Mapping[str, str] | None = None, lookup: Lookup | None = None) -> ConfigSource:
    """As `load`, with the places of all keys. `lookup` replaces the references where secrets cannot be read."""
    return read_text(text_of(Path(path)), Path(path), environ, lookup)


def read_text(
    text: str, path: Path, environ: Mapping[str, str] | None = None, lookup: Lookup | None = None
) -> ConfigSource:
    """As `read`, from a text, as if it stood in the file `path`."""
    environ = os.environ if environ is None else environ
    folder = path.absolute().parent
    document = Document(str(path), text)
    document.read(References(folder, environ) if lookup is None else lookup)
    if document.data is None:
        raise error_of(document)
    data = dict(document.data)
    if "name" not in data:
        data["name"] = name_of(path)
    # All keys of the section may be commented out, which does not mean "off".
    if document.is_empty(("dead_man",)):
        document.problems.append(document.problem(("dead_man",), "is empty; give its keys, or off"))
    if "state_dir" not in data:
        name = data["name"]
        data["state_dir"] = default_state_dir(name if isinstance(name, str) else "bot", environ)
    if "strategies_dir" not in data:
        beside = folder / "strategies"
        data["strategies_dir"] = beside if _is_folder(beside) else folder.parent / "strategies"
    if "listings" not in data and (beside := folder / LISTINGS).is_file():
        data["listings"] = beside
    return ConfigSource(_validated(document, data, Settings, folder), document)


def read_section(text: str, path: Path, model: type[SectionT], hint: str) -> tuple[SectionT, Document]:
    """The text of another YAML file of this form as one section. `hint`: where to get such a file, for an empty one.
    ConfigError holds every problem with its line.
    """
    document = Document(str(path), text, hint=hint)
    document.read(References(path.absolute().parent, os.environ))
    if document.data is None:
        raise error_of(document)
    return _validated(document, document.data, model, path.absolute().parent), document


def _validated(document: Document, data: Any, model: type[SectionT], folder: Path) -> SectionT:
    section = None
    try:
        section = model.model_validate(data, context={"folder": folder})
    except ValidationError as error:
        document.problems.extend(
            _said(document, detail, model) for detail in error.errors(include_url=False) if not _follows(detail)
        )
    if document.problems or section is None:
        # Outside of the except block: the traceback of the cause would show hidden values.
        raise error_of(document)
    return section


def json_schema() -> dict[str, Any]:
    """JSON Schema of a config, for editors."""
    schema = Settings.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Bracketbot config"}


def redacted(settings: Settings) -> dict[str, Any]:
    """The settings as plain data that may be shown: defaults filled in, amounts as text, secrets hidden."""
    shown = redact(settings.model_dump(mode="json"))
    assert isinstance(shown, dict)
    return shown


def _is_folder(path: Path) -> bool:
    """True also for a folder that cannot be inspected: reading a file of it reports why."""
    try:
        return path.is_dir()
    except OSError:
        return True


def text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        near = sorted(str(other) for other in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        raise ConfigError(f"{path}: no such file" + (f"; there is {', '.join(near)}" if near else "")) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if len(raw) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: larger than {FILE_BYTES_MAX} bytes; this is not a config")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode(errors="replace")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        problem = Problem(str(path), line, column, "", "not UTF-8 text")
        raise ConfigError(str(problem), (problem,)) from None


def error_of(document: Document) -> ConfigError:
    """All problems, in the order of the file, each once."""
    ordered = sorted(document.problems, key=lambda problem: (problem.line, problem.column, problem.key))
    problems = tuple(document.shown(problem) for problem in dict.fromkeys(ordered))
    assert problems
    head = f"{document.file}: {len(problems)} problems\n" if len(problems) > 1 else ""
    return ConfigError(head + "\n".join(map(str, problems)), problems)


def _follows(error: ErrorDetails) -> bool:
    """True if this problem only repeats another: a value that was rejected, or a list that is too short without its
    bad items.
    """
    return error["input"] is MISSING or (
        error["type"] == "too_short" and len(error["input"]) >= error["ctx"]["min_length"]
    )


def _said(document: Document, error: ErrorDetails, model: type[BaseModel]) -> Problem:
    """A problem of the schema in words for the config's author.

    It never shows the input; the masked line of the file does.
    """
    kind, loc = error["type"], tuple(step for step in error["loc"] if step not in PRICE_TAGS)
    if kind == "extra_forbidden":
        # The value may be a secret under a misspelt key.
        document.hide(loc)
        return document.problem(loc, _unknown(loc, model), at_key=True)
    if loc[-1:] in (("base_url",), ("api_url",)) and set("@?#") & set(str(error["input"])):
        # The address may contain a password or a key.
        document.hide(loc)
    message = _SAID.get(kind) or error["msg"].removeprefix("Value error, ").replace(
        "Input should be", "must be"
    ).replace("a valid string", "text")
    if kind == "bool_type" and isinstance(error["input"], str):
        message += " (in YAML 1.2 yes, no, on and off are words)"
    elif loc == ("dead_man",):
        message += ", or off"
    elif kind == "string_pattern_mismatch":
        message = "must be 1 to 40 of a-z, 0-9 and -"
    elif kind == "too_short":
        message = "must have at least one"
    elif kind == "too_long":
        message = f"has more than {error['ctx']['max_length']}"
    elif kind in ("string_too_short", "string_too_long"):
        message = message.replace("String should have", "must have")
    elif kind == "literal_error" and isinstance(error["input"], str):
        message += did_you_mean(error["input"], re.findall(r"'([^']*)'", error["ctx"]["expected"]))
    return document.problem(loc, message)


def _unknown(loc: Loc, model: type[BaseModel]) -> str:
    known = sorted(each.alias or name for name, each in _section(loc[:-1], model).model_fields.items())
    return f"unknown key{did_you_mean(str(loc[-1]), known) or '; known here: ' + ', '.join(known)}"


def _section(loc: Loc, model: type[BaseModel]) -> type[BaseModel]:
    """The model that stands at a path of the schema. The keys of a mapping of sections are names of the author."""
    for step in loc:
        if isinstance(step, str) and step in model.model_fields:
            model = next(_models(model.model_fields[step].annotation))
    return model


def _models(annotation: Any) -> Any:
    """The models inside an annotation, such as the one of `tuple[Recording, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)
