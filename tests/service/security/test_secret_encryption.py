"""Encrypted secrets: only the same key and owner decrypt them, also after a restart; the text reveals nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from bot.encryption import DecryptionFailed
from bot.errors import ConfigError
from bot.service.security.secret_encryption import SecretCipher


@given(some.binary(max_size=600), some.text(max_size=20))
def test_an_encrypted_secret_is_decrypted_for_its_owner(secret: bytes, owner: str) -> None:
    cipher = SecretCipher(None)
    encrypted = cipher.encrypt(secret, owner)
    assert cipher.decrypt(encrypted, owner) == secret
    assert cipher.encrypt(secret, owner) != encrypted
    with pytest.raises(DecryptionFailed):
        cipher.decrypt(encrypted, owner + "x")
    with pytest.raises(DecryptionFailed):
        SecretCipher(None).decrypt(encrypted, owner)


def test_a_changed_letter_of_the_encrypted_text_is_refused() -> None:
    cipher = SecretCipher(None)
    encrypted = cipher.encrypt(b"a secret of some length", "acc")
    for at in range(len(encrypted)):
        other = encrypted[:at] + ("A" if encrypted[at] != "A" else "B") + encrypted[at + 1 :]
        try:
            opened = cipher.decrypt(other, "acc")
        except DecryptionFailed:
            continue
        # only letters that carry no bit: the form's mark, base64's last
        assert opened == b"a secret of some length"
    for text in (
        "",
        "s2.",
        "s2.AAAA",
        "nonsense",
        "s2.é",
        encrypted.replace("s2.", "s1."),
        encrypted.removeprefix("s2."),
    ):
        with pytest.raises(DecryptionFailed):
            cipher.decrypt(text, "acc")


def test_only_the_user_can_read_the_key_file_and_a_restart_uses_it_again(tmp_path: Path) -> None:
    path = tmp_path / "s.db.webhook-key"
    encrypted = SecretCipher(path).encrypt(b"secret", "acc")
    assert path.stat().st_mode & 0o777 == 0o600
    assert SecretCipher(path).decrypt(encrypted, "acc") == b"secret"
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
        SecretCipher(path).decrypt(encrypted, "acc")
