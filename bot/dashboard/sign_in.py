"""Who may use the dashboard: a one-time link gives the browser a cookie; the cookie gives each page its token for
changes.

All three are signed with a key in the state directory, which only its owner can read. The link's code stands behind the
`#`, so no browser sends it in an address and no log contains it. Pure: the time and the random bytes are arguments.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Final

# a link that nobody has used is void after this time
LINK_S: Final = 600
COOKIE_S: Final = 30 * 86_400
KEY_BYTES: Final = 32
# codes in one run; each is remembered until the run ends
USED_MAX: Final = 10_000
TOKEN_CHARACTERS_MAX: Final = 200


class DashboardSignIn:
    """Gives out codes, cookies and change tokens of one dashboard, and checks them.

    `run_id` changes with each start: codes of an earlier start are void. Cookies last over a restart, because the key
    does.
    """

    def __init__(
        self,
        key: bytes,
        run_id: str,
        *,
        now_s: Callable[[], int],
        random: Callable[[], str] = lambda: secrets.token_urlsafe(18),
    ) -> None:
        assert len(key) == KEY_BYTES
        self._key = key
        self._run_id = run_id
        self._now_s = now_s
        self._random = random
        self._used: set[str] = set()
        self._ended: set[str] = set()
        # A browser sends a cookie to every port of a host, so each dashboard has a name of its own for it.
        self.cookie_name = f"bracketbot_{hashlib.sha256(b'name' + key).hexdigest()[:12]}"

    def code(self) -> str:
        """A code that opens the dashboard once within LINK_S."""
        return self._signed(f"code:{self._run_id}", LINK_S)

    def redeem(self, code: str) -> str | None:
        """The cookie for a valid code; None for a code that is forged, too old, of an earlier start, or used."""
        if code in self._used or len(self._used) >= USED_MAX or not self._is_valid(f"code:{self._run_id}", code):
            return None
        self._used.add(code)
        return self._signed("cookie", COOKIE_S)

    def knows(self, cookie: str | None) -> bool:
        """True if this dashboard gave out the cookie, it has not expired, and it was not signed out since the
        dashboard started.
        """
        return cookie is not None and cookie not in self._ended and self._is_valid("cookie", cookie)

    def end(self, cookie: str) -> None:
        """Void a cookie, in case of a copy of it. The browser forgets it too."""
        assert self.knows(cookie)
        # A cookie costs a link, of which one run takes USED_MAX; those of earlier runs are few.
        if len(self._ended) < USED_MAX:
            self._ended.add(cookie)

    def change_token(self, cookie: str) -> str:
        """The token that each request for a change must repeat (CSRF). It belongs to one cookie."""
        return self._mac("change", cookie)

    def is_change_token(self, cookie: str, token: str) -> bool:
        return hmac.compare_digest(self._mac("change", cookie).encode(), token.encode())

    def _signed(self, purpose: str, seconds: int) -> str:
        payload = f"{self._now_s() + seconds}.{self._random()}"
        return f"{payload}.{self._mac(purpose, payload)}"

    def _is_valid(self, purpose: str, token: str) -> bool:
        payload, _, mac = token.rpartition(".")
        if len(token) > TOKEN_CHARACTERS_MAX or not hmac.compare_digest(
            self._mac(purpose, payload).encode(), mac.encode()
        ):
            return False
        return self._now_s() < int(payload.partition(".")[0])

    def _mac(self, purpose: str, text: str) -> str:
        digest = hmac.digest(self._key, f"{purpose}\0{text}".encode(), "sha256")
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
