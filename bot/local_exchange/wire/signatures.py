"""Both signing schemes, from the verifier's side: which address has signed an action. No client shares this code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import coincurve
import msgpack
from Crypto.Hash import keccak

SECP256K1_N: Final = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141

# Signed fields of the user-signed actions, in order, after hyperliquidChain.
USER_SIGNED: Final[Mapping[str, tuple[str, tuple[tuple[str, str], ...]]]] = {
    "approveAgent": ("ApproveAgent", (("agentAddress", "address"), ("agentName", "string"), ("nonce", "uint64"))),
    "usdSend": ("UsdSend", (("destination", "string"), ("amount", "string"), ("time", "uint64"))),
    "spotSend": (
        "SpotSend",
        (("destination", "string"), ("token", "string"), ("amount", "string"), ("time", "uint64")),
    ),
    "withdraw3": ("Withdraw", (("destination", "string"), ("amount", "string"), ("time", "uint64"))),
    "usdClassTransfer": ("UsdClassTransfer", (("amount", "string"), ("toPerp", "bool"), ("nonce", "uint64"))),
    "sendAsset": (
        "SendAsset",
        (
            ("destination", "string"),
            ("sourceDex", "string"),
            ("destinationDex", "string"),
            ("token", "string"),
            ("amount", "string"),
            ("fromSubAccount", "string"),
            ("nonce", "uint64"),
        ),
    ),
    "approveBuilderFee": ("ApproveBuilderFee", (("maxFeeRate", "string"), ("builder", "address"), ("nonce", "uint64"))),
    "tokenDelegate": (
        "TokenDelegate",
        (("validator", "address"), ("wei", "uint64"), ("isUndelegate", "bool"), ("nonce", "uint64")),
    ),
    "userDexAbstraction": ("UserDexAbstraction", (("user", "address"), ("enabled", "bool"), ("nonce", "uint64"))),
    "userSetAbstraction": ("UserSetAbstraction", (("user", "address"), ("abstraction", "string"), ("nonce", "uint64"))),
}
CHAINS: Final = {"mainnet": "Mainnet", "testnet": "Testnet"}
SOURCES: Final = {"mainnet": "a", "testnet": "b"}
ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{40}")


class Unrecoverable(ValueError):
    """No address can be recovered from this signature, or the signed fields do not have their types."""


def _keccak(data: bytes) -> bytes:
    return keccak.new(digest_bits=256, data=data).digest()


def _word(value: int) -> bytes:
    return value.to_bytes(32, "big")


def _domain(name: str, chain_id: int) -> bytes:
    kind = b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"
    return _keccak(_keccak(kind) + _keccak(name.encode()) + _keccak(b"1") + _word(chain_id) + bytes(32))


_L1_DOMAIN: Final = _domain("Exchange", 1337)
_SOURCE_HASHES: Final = {network: _keccak(source.encode()) for network, source in SOURCES.items()}
_AGENT_TYPE: Final = _keccak(b"Agent(string source,bytes32 connectionId)")


def connection_id(action: Mapping[str, Any], nonce: int, vault: str | None, expires_ms: int | None) -> bytes:
    """The hash of an L1 action with everything that its signature covers."""
    try:
        data: bytes = msgpack.packb(action) + nonce.to_bytes(8, "big")
    except (OverflowError, RecursionError, TypeError, ValueError) as error:
        raise Unrecoverable(f"the action cannot be packed: {error}") from error
    data += b"\x00" if vault is None else b"\x01" + bytes.fromhex(vault[2:])
    if expires_ms is not None:
        data += b"\x00" + expires_ms.to_bytes(8, "big")
    return _keccak(data)


def signer_of_l1(
    action: Mapping[str, Any],
    nonce: int,
    vault: str | None,
    expires_ms: int | None,
    signature: Mapping[str, Any],
    network: str,
) -> str:
    """The address that signed this L1 action for this network. Unrecoverable if there is none."""
    digest = connection_id(action, nonce, vault, expires_ms)
    message = _keccak(_AGENT_TYPE + _SOURCE_HASHES[network] + digest)
    return _recover(_L1_DOMAIN, message, signature)


def signer_of_user_action(action: Mapping[str, Any], signature: Mapping[str, Any]) -> str:
    """The address that signed this user-signed action, for the chain that the action names."""
    name, fields = USER_SIGNED[str(action["type"])]
    fields = (("hyperliquidChain", "string"), *fields)
    kind = f"HyperliquidTransaction:{name}({','.join(f'{type_} {field}' for field, type_ in fields)})"
    # An unnamed agent is signed with an empty name, which the action on the wire leaves out.
    words = [
        _encoded(action.get(field, "") if field == "agentName" else action.get(field), type_) for field, type_ in fields
    ]
    try:
        chain_id = int(str(action["signatureChainId"]), 16)
        domain = _domain("HyperliquidSignTransaction", chain_id)
    except (KeyError, ValueError, OverflowError):
        raise Unrecoverable("signatureChainId is not a hexadecimal number") from None
    return _recover(domain, _keccak(_keccak(kind.encode()) + b"".join(words)), signature)


def _encoded(value: Any, kind: str) -> bytes:
    if kind == "string" and isinstance(value, str):
        return _keccak(value.encode(errors="surrogatepass"))
    if kind == "bool" and isinstance(value, bool):
        return _word(int(value))
    if kind == "uint64" and isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64:
        return _word(value)
    if kind == "address" and isinstance(value, str) and ADDRESS.fullmatch(value):
        return bytes.fromhex(value[2:]).rjust(32, b"\x00")
    raise Unrecoverable(f"{value!r} is not a {kind}")


def _recover(domain: bytes, message: bytes, signature: Mapping[str, Any]) -> str:
    """Recover the signer. Clients leave out leading zeros of r and s, so both are padded."""
    try:
        r, s = (int(str(signature[part]), 16) for part in ("r", "s"))
        v = int(signature["v"])
    except (KeyError, TypeError, ValueError):
        raise Unrecoverable("r and s are hexadecimal, v is a number") from None
    if v not in (0, 1, 27, 28) or not (0 < r < SECP256K1_N and 0 < s < SECP256K1_N):
        raise Unrecoverable("r, s or v is out of range")
    compact = _word(r) + _word(s) + bytes([v % 27])
    try:
        key = coincurve.PublicKey.from_signature_and_message(
            compact, _keccak(b"\x19\x01" + domain + message), hasher=None
        )
    # the library raises a bare Exception
    except Exception as error:
        raise Unrecoverable("no key has made this signature") from error
    return "0x" + _keccak(key.format(compressed=False)[1:])[12:].hex()
