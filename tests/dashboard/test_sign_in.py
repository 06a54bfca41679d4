"""Codes of links, cookies and change tokens: what is accepted, and for how long."""

from __future__ import annotations

from bot.dashboard.sign_in import COOKIE_S, LINK_S, DashboardSignIn

KEY = bytes(range(32))


class Made:
    def __init__(self, key: bytes = KEY, run_id: str = "run") -> None:
        self.now_s = 1_000
        self.sign_in = DashboardSignIn(key, run_id, now_s=lambda: self.now_s)


def test_a_code_works_once() -> None:
    sign_in = Made().sign_in
    code = sign_in.code()
    cookie = sign_in.redeem(code)
    assert cookie is not None
    assert sign_in.knows(cookie)
    assert sign_in.redeem(code) is None


def test_a_code_is_void_after_ten_minutes() -> None:
    made = Made()
    code = made.sign_in.code()
    made.now_s += LINK_S
    assert made.sign_in.redeem(code) is None


def test_a_code_of_an_earlier_start_is_void_and_its_cookie_is_not() -> None:
    before, after = Made(run_id="before").sign_in, Made(run_id="after").sign_in
    assert after.redeem(before.code()) is None
    assert after.knows(before.redeem(before.code()))


def test_a_cookie_ends() -> None:
    made = Made()
    cookie = made.sign_in.redeem(made.sign_in.code())
    made.now_s += COOKIE_S - 1
    assert made.sign_in.knows(cookie)
    made.now_s += 1
    assert not made.sign_in.knows(cookie)


def test_a_token_is_good_for_its_own_purpose_alone() -> None:
    sign_in = Made().sign_in
    code = sign_in.code()
    assert not sign_in.knows(code)
    cookie = sign_in.redeem(code)
    assert cookie is not None
    assert sign_in.redeem(cookie) is None
    assert not sign_in.is_change_token(cookie, cookie)


def test_a_forged_token_is_refused() -> None:
    sign_in, other = Made().sign_in, Made(key=bytes(32)).sign_in
    cookie = sign_in.redeem(sign_in.code())
    assert cookie is not None
    later = cookie.replace(cookie.partition(".")[0], "9999999999")
    for forged in (
        None,
        "",
        ".",
        "..",
        "x",
        "9.x.y",
        "é.é.é",
        later,
        cookie[:-1],
        cookie + "A",
        other.redeem(other.code()),
        "9" * 5_000,
    ):
        assert not sign_in.knows(forged), forged
        assert forged is None or sign_in.redeem(forged) is None


def test_a_change_token_belongs_to_one_cookie() -> None:
    sign_in = Made().sign_in
    mine, theirs = (sign_in.redeem(sign_in.code()) for _ in range(2))
    assert mine is not None
    assert theirs is not None
    assert sign_in.is_change_token(mine, sign_in.change_token(mine))
    assert not sign_in.is_change_token(mine, sign_in.change_token(theirs))
    assert not sign_in.is_change_token(mine, "")
    assert not sign_in.is_change_token(mine, "é")


def test_dashboards_of_one_machine_do_not_share_the_name_of_a_cookie() -> None:
    assert Made().sign_in.cookie_name != Made(key=bytes(32)).sign_in.cookie_name
