"""The references `${credential:NAME}`, `${file:PATH}` and `${env:NAME}`. Reads secrets and never shows one."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bot.config.document import Rejected
from bot.logs import hide, is_secret_name

# enough for a key or a certificate; refuses a device that was named by mistake
SECRET_BYTES_MAX: Final = 65_536

FORMS: Final = "${credential:NAME} (systemd), ${file:PATH} (readable by you alone) or ${env:NAME}"
NO_HOME: Final = "the folder that ~ means is not known here; write the whole path"

# The key in the config whose file is read by the exchange link alone.
KEY_FILE: Final = "agent_key"
KEY_FORM: Final = "${file:PATH} (readable by you alone)"

_REFERENCE: Final = re.compile(r"\$\{([^{}]*)\}")
# what fits into an HTTP header
_API_KEY: Final = re.compile(r"[!-~]+", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*", re.ASCII)

_NO_NAME: Final = "a credential's name is letters, digits and _ . @ -"


class Referred(str):
    """Text that came from a reference. A secret field takes no other text."""

    __slots__ = ()


class References:
    """Resolves references: files relative to the config's folder, names in the environment."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._environ = environ

    def __call__(self, text: str, key: str) -> str:
        """The text with each reference replaced.

        `key` is its key in the config: a secret must stand under a secret's name.
        """
        if key == KEY_FILE:
            return Referred(self._key_file(text))
        secret = is_secret_name(key)
        if secret and not _REFERENCE.fullmatch(text):
            raise Rejected(f"a secret must be one reference and nothing else: {FORMS}")
        replaced = _REFERENCE.sub(lambda match: self._resolved(match.group(1), secret=secret), text)
        if key == "api_key" and not _API_KEY.fullmatch(replaced):
            raise Rejected(
                f"{text} does not hold an API key: a key is one ASCII word without blanks, line breaks or a byte order"
                " mark"
            )
        return Referred(replaced)

    def _key_file(self, text: str) -> str:
        """The whole path of a file with a key. The file is not opened: another process reads it."""
        match = _REFERENCE.fullmatch(text)
        kind, _, name = ("", "", "") if match is None else match.group(1).partition(":")
        if kind != "file" or not name:
            raise Rejected(f"must be {KEY_FORM}: the key is read by another process, which gets the path alone")
        what, file = f"the file {name}", self._file(name)
        try:
            status = file.stat()
        except (OSError, ValueError) as error:
            raise Rejected(f"{what} cannot be read: {getattr(error, 'strerror', error)}") from None
        _check_private(status, what, private=True)
        return str(file.absolute())

    def _file(self, name: str) -> Path:
        try:
            return self._folder / Path(name).expanduser()
        except RuntimeError:
            raise Rejected(f"the file {name}: {NO_HOME}") from None

    def _resolved(self, reference: str, *, secret: bool) -> str:
        kind, colon, name = reference.partition(":")
        if kind not in ("credential", "file", "env") or not colon or not name:
            raise Rejected(f"${{{reference}}} is not a reference; write {FORMS}")
        if kind != "env" and not secret:
            raise Rejected(
                f"${{{kind}:...}} holds a secret, but the value of this key is shown; use ${{env:NAME}} or the value"
                " itself"
            )
        if kind == "env":
            value = self._environ.get(name, "")
            what = f"the environment variable {name}"
            if name not in self._environ:
                raise Rejected(f"{what} is not set")
        elif kind == "credential":
            what = f"the credential {name}"
            value = self._credential(name)
        else:
            what = f"the file {name}"
            value = _read(self._file(name), what, private=True)
        if secret:
            if not value:
                raise Rejected(f"{what} is empty")
            hide(value)
        return value

    def _credential(self, name: str) -> str:
        folder = self._environ.get("CREDENTIALS_DIRECTORY")
        if not _NAME.fullmatch(name):
            raise Rejected(_NO_NAME)
        if not folder:
            raise Rejected(
                f"the credential {name} comes from systemd (LoadCredential=), and systemd did not start this process"
                " with credentials"
            )
        return _read(Path(folder) / name, f"the credential {name}", private=False)


def _read(file: Path, what: str, *, private: bool) -> str:
    """The text of a small file without its last line break."""
    if "\0" in str(file):
        raise Rejected(f"{what!r} is not a file name")
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Rejected(f"{what} cannot be read: {error.strerror}") from None
    try:
        # The status of the opened file, also if the path was replaced since.
        _check_private(os.fstat(descriptor), what, private=private)
        raw = os.read(descriptor, SECRET_BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    if len(raw) > SECRET_BYTES_MAX:
        raise Rejected(f"{what} is larger than {SECRET_BYTES_MAX} bytes")
    try:
        return raw.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise Rejected(f"{what} is not UTF-8 text") from None


def _check_private(status: os.stat_result, what: str, *, private: bool) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise Rejected(f"{what} is not a file")
    if private and status.st_mode & 0o077:
        raise Rejected(f"{what} is readable by other users (mode {stat.S_IMODE(status.st_mode):04o}): chmod 600 it")


class Outside:
    """Resolves references as `References` does.

    A credential that only the systemd unit gets is recorded, with a stand-in for its value.
    """

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._look = References(folder, environ)
        self._is_unit = bool(environ.get("CREDENTIALS_DIRECTORY"))
        # stand-in -> the credential's name
        self.handed_over: dict[str, str] = {}

    def __call__(self, text: str, key: str) -> str:
        is_value = is_secret_name(key) and key != KEY_FILE
        match = _REFERENCE.fullmatch(text) if is_value and not self._is_unit else None
        kind, _, name = match.group(1).partition(":") if match is not None else ("", "", "")
        if kind != "credential" or not _NAME.fullmatch(name):
            return self._look(text, key)
        # Different credentials need different stand-ins.
        stand_in = Referred(f"(credential {name})")
        self.handed_over[stand_in] = name
        return stand_in


class Noted:
    """Records each reference and resolves none that is a secret: for checking a config where its secrets cannot be
    read.
    """

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._look = References(folder, environ)
        # (credential, file or env; name) of the secrets, each once
        self.secrets: list[tuple[str, str]] = []
        # what else came out of the environment, by name
        self.plain: list[str] = []

    def __call__(self, text: str, key: str) -> str:
        match = _REFERENCE.fullmatch(text) if is_secret_name(key) else None
        kind, colon, name = match.group(1).partition(":") if match is not None else ("", "", "")
        if kind not in ("credential", "file", "env") or not colon or not name:
            self.plain += [reference.removeprefix("env:") for reference in _REFERENCE.findall(text)]
            return self._look(text, key)
        if kind == "credential" and not _NAME.fullmatch(name):
            raise Rejected(_NO_NAME)
        if (kind, name) not in self.secrets:
            self.secrets.append((kind, name))
        return Referred("(not looked up)")
