"""Sealed secrets: opened by the same key and owner after a restart, by nothing else; nothing of them in the sealed text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from bot.errors import ConfigError
from bot.service.security.secret_encryption import DecryptionFailed, SecretCipher


@given(some.binary(max_size=600), some.text(max_size=20))
def test_what_is_sealed_opens_again_for_its_owner(secret: bytes, owner: str) -> None:
    cipher = SecretCipher(None)
    sealed = cipher.encrypt(secret, owner)
    assert cipher.decrypt(sealed, owner) == secret
    assert cipher.encrypt(secret, owner) != sealed
    with pytest.raises(DecryptionFailed):
        cipher.decrypt(sealed, owner + "x")
    with pytest.raises(DecryptionFailed):
        SecretCipher(None).decrypt(sealed, owner)


def test_every_changed_letter_is_noticed() -> None:
    cipher = SecretCipher(None)
    sealed = cipher.encrypt(b"a secret of some length", "acc")
    for at in range(len(sealed)):
        other = sealed[:at] + ("A" if sealed[at] != "A" else "B") + sealed[at + 1 :]
        try:
            opened = cipher.decrypt(other, "acc")
        except DecryptionFailed:
            continue
        assert opened == b"a secret of some length"  # only letters that carry no bit: the form's mark, base64's last
    for text in ("", "s1.", "s1.AAAA", "nonsense", "s1.é"):
        with pytest.raises(DecryptionFailed):
            cipher.decrypt(text, "acc")


def test_the_key_file_is_its_users_alone_and_outlives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "s.db.webhook-key"
    sealed = SecretCipher(path).encrypt(b"secret", "acc")
    assert path.stat().st_mode & 0o777 == 0o600
    assert SecretCipher(path).decrypt(sealed, "acc") == b"secret"
    assert b"secret" not in path.read_bytes()
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        SecretCipher(path).prepare()
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(ConfigError, match="not a key file"):
        SecretCipher(path).prepare()
    path.unlink()
    with pytest.raises(DecryptionFailed):
        SecretCipher(path).decrypt(sealed, "acc")
