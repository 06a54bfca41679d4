"""Signs actions with the agent's key, by the signing functions of the official SDK. Nothing else of the SDK is used."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from bot.errors import ConfigError
from bot.exchanges.hyperliquid.agent_key import address_of_key_file, key_in
from bot.extras import install

MODULES: Final = ("eth_account", "hyperliquid")


class Signer:
    """The key of one agent. It stays in this object; only the address is told."""

    def __init__(self, path: Path, *, is_mainnet: bool) -> None:
        missing = [name for name in MODULES if find_spec(name) is None]
        if missing:
            raise ConfigError(f"signing needs {' and '.join(missing)}: {install('exchange')}")
        from eth_account import Account

        self.address = address_of_key_file(path)
        self._wallet = Account.from_key(key_in(path).to_bytes(32, "big"))
        assert self._wallet.address.lower() == self.address
        self._is_mainnet = is_mainnet

    def __repr__(self) -> str:
        return f"Signer({self.address})"

    def body(self, action: dict[str, Any], nonce: int, expires_ms: int | None) -> dict[str, Any]:
        """The signed request for `/exchange`."""
        from hyperliquid.utils.signing import sign_l1_action

        signature = sign_l1_action(self._wallet, action, None, nonce, expires_ms, self._is_mainnet)
        signed = {"action": action, "nonce": nonce, "signature": signature, "vaultAddress": None}
        return signed if expires_ms is None else {**signed, "expiresAfter": expires_ms}
