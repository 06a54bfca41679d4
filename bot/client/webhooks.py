"""For receivers of webhooks: checks the signature of a delivery, and whether it is new. Needs no particular server.

    if not verify(await request.body(), request.headers, secret):
        return Response(status_code=401)
    if seen.is_new(request.headers["webhook-id"]):
        ...          # do it, then
        seen.add(request.headers["webhook-id"])

Verify the raw body before you parse it: the same JSON with other white space has another signature.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

from bot.clock import SystemClock
from bot.wire import signing

# difference between the clocks of sender and receiver, either way
TOLERANCE_SECONDS: Final = 300
# a delivery with more signatures is refused unread; a rotation has two
SIGNATURES_MAX: Final = 16
SEEN_MAX: Final = 100_000


def verify(
    body: bytes, headers: Mapping[str, str], secret: str | bytes | Iterable[str | bytes], *, now_ms: int | None = None
) -> bool:
    """True if the delivery was signed with the secret (or one of several, during a rotation) within five minutes of
    now.

    `secret`: `whsec_...`, any other text as given at registration, or the key's bytes. Returns False for anything
    unreadable: answer 401. Raises ValueError only if your own secret is invalid.
    """
    secrets = (secret,) if isinstance(secret, str | bytes) else tuple(secret)
    keys = [signing.key_of(item) if isinstance(item, str) else item for item in secrets]
    if any(
        len(key) < signing.KEY_BYTES_MIN
        for key in keys
        # Anybody could sign with an empty secret, which an unset variable gives.
    ):
        raise ValueError(f"a secret has at least {signing.KEY_BYTES_MIN} bytes")
    given = {str(name).lower(): value for name, value in headers.items()}
    delivery_id = given.get(signing.ID_HEADER, "")
    timestamp = given.get(signing.TIMESTAMP_HEADER, "")
    signatures = given.get(signing.SIGNATURE_HEADER, "").split(" ")
    if not delivery_id or not _is_recent(timestamp, SystemClock().now_ms() if now_ms is None else now_ms):
        return False
    if len(signatures) > SIGNATURES_MAX:
        return False
    try:
        expected = [signing.signature(key, delivery_id, timestamp, body).encode() for key in keys]
    except UnicodeEncodeError:
        return False
    # Compare every pair, so that the time taken does not tell which one matched.
    equal = [
        hmac.compare_digest(digest, other.encode("utf-8", "replace")) for digest in expected for other in signatures
    ]
    return any(equal)


def _is_recent(timestamp: str, now_ms: int) -> bool:
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        return False
    return abs(int(timestamp) * 1000 - now_ms) <= TOLERANCE_SECONDS * 1000


class SeenIds:
    """Ids of the newest `size` handled deliveries.

    The service delivers at least once, so some deliveries come twice.
    """

    def __init__(self, size: int = SEEN_MAX) -> None:
        assert size >= 1
        self._size = size
        self._ids: OrderedDict[str, None] = OrderedDict()

    def is_new(self, delivery_id: str) -> bool:
        return delivery_id not in self._ids

    def add(self, delivery_id: str) -> None:
        """Add an id after handling its delivery. If handling fails, the repeated delivery must count as new."""
        self._ids[delivery_id] = None
        self._ids.move_to_end(delivery_id)
        while len(self._ids) > self._size:
            self._ids.popitem(last=False)
