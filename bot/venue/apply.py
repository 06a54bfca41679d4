"""The entry point of the venue: `apply(state, command, now_ms)`. The same commands at the same instants give the same
events, to the byte.

`apply` changes the given state and reads nothing else. A rule that says no returns a `Refusal`. A failing `assert` is a
bug of the venue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from bot import cron
from bot.errors import Refusal
from bot.model.events import AccountChanged, Event
from bot.venue.accounting import drawdown_floors, funding, nav
from bot.venue.exchange import action_reports, adoption, audit, fills, link_state, money, order_reports
from bot.venue.identity import sign_in, webhooks
from bot.venue.model import commands as c
from bot.venue.model import outcome, text_set
from bot.venue.model.record import emit, next_seq
from bot.venue.model.state import HOUR_MS, KEYS_MAX, State, VenueAccount, VenueKey, VenueMarket, guardian_id
from bot.venue.orders import exchange_entries, exits, open_orders, orders, plans
from bot.venue.orders.exchange_actions import ActionsSent
from bot.venue.prices import index, listings
from bot.venue.protection import guardian_lifecycle
from bot.venue.triggers import guardian_actions, guardian_commands, guardian_deadlines, matching, settlement

# reason in the events of orders and guardians that end because their key was revoked
REVOKED: Final = "key_revoked"


class Applied(NamedTuple):
    """The answer of a command (a `Refusal` if a rule refused it) and the events that it caused, in order."""

    answer: Any
    events: list[Event]


_applied: Final = partial(tuple.__new__, Applied)


class RevokedKey(NamedTuple):
    """A revoked key, with the orders canceled and the guardians disarmed because of it."""

    key: VenueKey
    canceled: tuple[str, ...] = ()
    disarmed: tuple[str, ...] = ()


def apply(state: State, command: c.Command, now_ms: int) -> Applied:
    """Apply one command at `now_ms`, which never goes back."""
    assert now_ms >= state.now_ms, (now_ms, state.now_ms)
    kind = type(command)
    fresh: list[Event] = []
    state.fresh = fresh
    if kind in _RUNS:
        run_due(state, now_ms, inclusive=kind is c.Pulse)
    # Commands of this kind set the time of each of their points themselves.
    if kind not in _WALKS:
        state.now_ms = now_ms
    state.commands += 1
    answer = HANDLERS[kind](state, command)
    if fresh:
        nav.note(state, fresh)
    return _applied((answer, fresh))


# ── The venue itself, time and prices ───────────────────────────────────────────────────────────────────────────────


def _set_rules(state: State, command: c.SetRules) -> None:
    state.rules = command.rules


def _list_market(state: State, command: c.ListMarket) -> None:
    spec = command.spec
    assert spec.coin not in state.markets
    assert command.px > 0
    listings.check_listing(spec)
    market = state.markets[spec.coin] = VenueMarket(
        spec, command.px, command.px, command.px, funding_rate=spec.funding_rate
    )
    index.schedule_expiry(state, market)


def _set_market(state: State, command: c.SetMarket) -> None:
    market = state.markets[command.coin]
    if command.status is not None:
        market.status = command.status
    if command.funding_rate is not None:
        assert command.funding_hours > 0
        assert command.funding_hours == 1 or command.funding_ms % HOUR_MS == 0
        market.funding_rate, market.is_rate_recorded = command.funding_rate, True
        market.funding_hours, market.funding_ms = command.funding_hours, command.funding_ms
    if command.outcome_px is not None:
        assert 0 <= command.outcome_px <= outcome.PAYOUT
        market.resolution = command.outcome_px
    if command.premium_px is not None:
        market.premium_px = command.premium_px or None
    if command.external is not None:
        _turn_outside(market, command, state.now_ms)


def _turn_outside(market: VenueMarket, command: c.SetMarket, now_ms: int) -> None:
    """Open or close the outside price.

    It stops at the price of this instant. Inside a bar that price is the bar's close: the bar has no later price of the
    session, and its newest point may be an extreme. Where the venue does not know the bars, the command has the close.
    """
    is_open, was_open = command.external == "open", market.external == "open"
    if is_open:
        if market.external == "closed":
            # The outside price moves again, and its next candle may be a day away.
            market.oracle = market.mark
        market.premium_px = None
    elif command.premium_px:
        market.oracle = command.premium_px
    elif market.spec.bar_length_ms and market.px_at(now_ms) is not None:
        market.premium_px = market.oracle = market.bar_close if was_open else market.mark
    market.external = command.external
    market.opens_ms, market.closes_ms = (None, command.turns_ms) if is_open else (command.turns_ms, None)
    market.deepen()


def run_due(state: State, until_ms: int, *, inclusive: bool) -> None:
    """Run every deadline before `until_ms`, each at its own instant. `inclusive`: also the deadlines at `until_ms`."""
    while (due := index.due(state, until_ms, inclusive=inclusive)) is not None:
        at_ms, kind, ref, number = due
        state.now_ms = max(state.now_ms, at_ms)
        if kind == "funding":
            market = state.markets[ref]
            funding.pay(state, market, market.oracle)
        elif kind == "expiry":
            settlement.settle(state, state.markets[ref])
        elif kind == "day":
            guardian_actions.begin_day(state)
        elif kind == "exit" and number:
            exits.ask_again(state, state.accounts[ref], number)
        elif kind == "exit":
            exchange_entries.settle(state, state.accounts[ref.partition(" ")[0]])
        else:
            account = state.accounts[ref]
            guardian_deadlines.fire_clock(state, account, account.guardians[number])


def _pulse(state: State, command: c.Pulse | c.RunOverdue) -> None:
    """Do nothing more: `apply` has already run everything that was due."""


def _pay_funding(state: State, command: c.PayFunding) -> None:
    funding.pay_due(state, dict(command.opens))


def _pass_bar(state: State, command: c.PassBar) -> None:
    market = state.markets[command.coin]
    end_ms = command.at_ms + command.interval_ms
    if (
        matching.is_calm(state, market, command.low, command.high)
        and (index.next_deadline_ms(state) or end_ms) >= end_ms
    ):
        market.point += 1
        market.bar_ms, market.volume_left = command.at_ms, 0
        market.begin_bar(command.at_ms, command.open, command.close)
        market.see(command.close)
        state.now_ms = max(state.now_ms, end_ms - 1)
        return
    _walk(state, (command,))


def _pass_bars(state: State, command: c.PassBars) -> None:
    _walk(state, command.bars)


def _walk(state: State, bars: tuple[c.PassBar, ...]) -> None:
    """Apply bars that begin at one instant, point by point over all their markets. Skips the remaining points once they
    contain no order, level or deadline of these markets.
    """
    at_ms, interval_ms = bars[0].at_ms, bars[0].interval_ms
    last_ms, third = at_ms + interval_ms - 1, interval_ms // 3
    waiting, default = state.deadlines, state.rules.paths
    walks = [(bar, state.markets[bar.coin]) for bar in bars]
    # made after the open, because most bars are over then
    paths: list[tuple[int, int, int, int]] = []
    for step in range(4):
        point_ms = at_ms + step * third if step < 3 else last_ms
        if step == 1:
            paths = [matching.path_of(bar, bar.path or default) for bar in bars]
        is_over = True
        for number, (bar, market) in enumerate(walks):
            if waiting and waiting[0][0] < point_ms:
                run_due(state, point_ms, inclusive=False)
            if point_ms > state.now_ms:
                state.now_ms = point_ms
            if not number and waiting and waiting[0][0] <= point_ms:
                funding.pay_due(state, {} if step else {other.coin: other.open for other in bars})
            px, ahead = bar.open if not step else paths[number][step], None
            if (bar.path or default) == "sl_first" and step < 3:
                rest = paths[number][step + 1 :] if step else (bar.low, bar.high)
                ahead = (min(rest), max(rest))
            matching.point(state, market, px, step=step, bar=(at_ms, bar.volume, bar.close), ahead=ahead)
        if not waiting or waiting[0][0] > last_ms:
            for bar, market in walks:
                is_over = is_over and matching.is_calm(state, market, bar.low, bar.high)
            if is_over:
                for bar, market in walks:
                    if market.status != "settled":
                        market.point += 3 - step
                        market.see(bar.close)
                break
    if waiting and waiting[0][0] <= last_ms:
        run_due(state, last_ms, inclusive=True)
    if last_ms > state.now_ms:
        state.now_ms = last_ms


def _pass_points(state: State, command: c.PassPoints) -> None:
    points, waiting, paid_ms = command.points, state.deadlines, -1
    for number, (at_ms, coin, px, step, bar_ms, volume, ahead, close) in enumerate(points):
        run_due(state, at_ms, inclusive=False)
        state.now_ms = max(state.now_ms, at_ms)
        if at_ms != paid_ms and waiting and waiting[0][0] <= at_ms:
            paid_ms = at_ms
            funding.pay_due(
                state, {point[1]: point[2] for point in points[number:] if (point[0], point[3]) == (at_ms, 0)}
            )
        matching.point(state, state.markets[coin], px, step=step, bar=(bar_ms, volume, close), ahead=ahead)
    run_due(state, command.until_ms, inclusive=True)
    state.now_ms = max(state.now_ms, command.until_ms)


def _shift_deadlines(state: State, command: c.ShiftDeadlines) -> None:
    """After a downtime: each dead-man switch gets the time that it had left before it, and at least `floor_ms`. A
    schedule skips the runs of the downtime. Deadlines of max_hold and the end of a drawdown's day do not move.
    """
    for account in state.accounts.values():
        for guardian in account.guardians.values():
            if guardian.spec.type == "dead_man_switch" and guardian.deadline_ms is not None:
                assert guardian.spec.heartbeat_seconds is not None
                floor = min(guardian.spec.heartbeat_seconds * 1000, command.floor_ms)
                guardian.deadline_ms = max(guardian.deadline_ms + command.ms, state.now_ms + command.ms + floor)
            elif (
                guardian.spec.type == "schedule" and guardian.deadline_ms is not None and guardian.spec.cron is not None
            ):
                back_ms = max(guardian.deadline_ms, state.now_ms + command.ms)
                guardian.deadline_ms = cron.next_run(cron.parse(guardian.spec.cron), back_ms)


def _set_marks(state: State, command: c.SetMarks) -> None:
    for coin, px in command.marks:
        market = state.markets[coin]
        market.see(px)
        if not command.running:
            market.volume_left = 0


def _set_quotes(state: State, command: c.SetQuotes) -> None:
    for coin, mark, bid, ask in command.quotes:
        state.markets[coin].see_quote(mark, bid, ask)


def _set_book(state: State, command: c.SetBook) -> None:
    market = state.markets[command.coin]
    assert command.level_size > 0, "an unlimited book is not set"
    market.spec = replace(
        market.spec, level_step=command.level_step, level_size=command.level_size, level_growth=command.level_growth
    )
    market.deepen()


# ── Accounts and keys ───────────────────────────────────────────────────────────────────────────────────────────────


def _open_account(state: State, command: c.OpenAccount) -> VenueAccount:
    assert command.account not in state.accounts
    state.account_seq += 1
    account = VenueAccount(
        id=command.account,
        number=state.account_seq,
        address=command.address,
        name=command.name,
        start_balance=command.balance,
        created_ms=state.now_ms,
        opened_with=command.balance,
        balance=command.balance,
        begun_ms=state.now_ms,
    )
    drawdown_floors.begin_day(account, state.now_ms, account.balance)
    state.accounts[account.id] = account
    emit(
        state, account, AccountChanged(account.id, next_seq(account), state.now_ms, "created", balance=account.balance)
    )
    if command.key is not None:
        _create_key(state, c.CreateKey(command.key))
    return account


def _create_key(state: State, command: c.CreateKey) -> VenueKey | Refusal:
    # A copy for the state, because the key's daily sums change and the command must not.
    key = replace(command.key)
    account = state.accounts[key.account]
    assert key.id not in state.keys
    if sum(1 for k in state.keys.values() if k.account == key.account and not k.revoked) >= KEYS_MAX:
        return Refusal(
            "limit_exceeded", f"{KEYS_MAX} keys exist, the most an account may have", fix={"action": "revoke_key"}
        )
    state.keys[key.id] = key
    emit(
        state,
        account,
        AccountChanged(account.id, next_seq(account), state.now_ms, "key_created", key=key.id, name=key.name),
    )
    return key


def _revoke_key(state: State, command: c.RevokeKey) -> RevokedKey | Refusal:
    """End a key: cancel its entries and disarm its schedules.

    Stops and guardians of positions stay, whichever key armed them.
    """
    key = state.keys.get(command.key)
    if key is None or key.account != command.account or key.revoked:
        return Refusal("not_found", f"no key {command.key}")
    key.revoked = True
    account = state.accounts[key.account]
    emit(
        state,
        account,
        AccountChanged(account.id, next_seq(account), state.now_ms, "key_revoked", key=key.id, name=key.name),
    )
    if not command.sweeps:
        return RevokedKey(key)
    entries = [order for order in open_orders.entries(account) if order.key == key.id]
    schedules = [g for g in account.guardians.values() if g.spec.type == "schedule" and g.key == key.id]
    for schedule in schedules:
        guardian_lifecycle.release(state, account, schedule, REVOKED, subtype="disarmed")
    canceled = open_orders.cancel_each(state, account, entries, REVOKED)
    return RevokedKey(key, canceled, tuple(guardian_id(account, schedule.number) for schedule in schedules))


def _adopt_exchange_account(state: State, command: c.AdoptExchangeAccount) -> VenueAccount:
    account = adoption.adopt(state, command)
    if command.key is not None:
        _create_key(state, c.CreateKey(command.key))
    return account


def _reset_account(state: State, command: c.ResetAccount) -> VenueAccount | Refusal:
    """Wipe positions, orders, plans, trades, events and guardians. Keys and settings stay, their daily sums restart,
    earlier idempotency keys are refused.

    A `balance` holds for this epoch; the next reset without one restores the balance that the account was opened with.
    """
    account = state.accounts[command.account]
    if account.exchange is not None:
        return Refusal("forbidden", "this account follows an exchange, which cannot be reset; open a sandbox account")
    index.forget(state, account)
    for market in state.markets.values():
        market.pending = [entry for entry in market.pending if entry[0] != account.id]
        market.working = [entry for entry in market.working if entry[0] != account.id]
        if market.holders.pop(account.id, 0) is None and not market.holders:
            market.next_funding_ms = 0
    for token in [t for t, plan in state.plans.items() if plan.account == account.id]:
        del state.plans[token]
    fresh = VenueAccount(
        id=account.id,
        number=account.number,
        address=account.address,
        name=account.name,
        start_balance=account.opened_with,
        opened_with=account.opened_with,
        created_ms=account.created_ms,
        epoch=account.epoch + 1,
        fenced_keys=account.fenced_keys,
        events_first=account.event_seq + 1,
        event_seq=account.event_seq,
        order_seq=account.order_seq,
        trade_seq=account.trade_seq,
        trade_first=account.trade_seq + 1,
        guardian_seq=account.guardian_seq,
        max_trade=account.max_trade,
        daily_cap=account.daily_cap,
        begun_ms=state.now_ms,
        old_fenced_keys=text_set.merged(account.old_fenced_keys + account.old_keys, account.trade_by_key),
    )
    if command.balance is not None:
        fresh.start_balance = command.balance
    fresh.balance = fresh.start_balance
    for credential in state.keys.values():
        if credential.account == account.id:
            # The trades that this sum counted are wiped.
            credential.day_notional = 0
    drawdown_floors.begin_day(fresh, state.now_ms, fresh.balance)
    state.accounts[account.id] = fresh
    emit(
        state,
        fresh,
        AccountChanged(fresh.id, next_seq(fresh), state.now_ms, "reset", balance=fresh.balance, epoch=fresh.epoch),
    )
    return fresh


def _change_settings(state: State, command: c.ChangeSettings) -> VenueAccount:
    account = state.accounts[command.account]
    account.max_trade, account.daily_cap = command.max_trade, command.daily_cap
    emit(
        state,
        account,
        AccountChanged(
            account.id,
            next_seq(account),
            state.now_ms,
            "settings",
            max_trade=command.max_trade,
            daily_cap=command.daily_cap,
        ),
    )
    return account


def _sign_in(state: State, command: c.SignIn) -> sign_in.SignedIn | Refusal:
    return sign_in.sign_in(state, command, _open_account)


def _redeem_grant(state: State, command: c.RedeemGrant) -> VenueKey | Refusal:
    return sign_in.redeem_grant(state, command, _create_key)


# ── Orders and guardians ────────────────────────────────────────────────────────────────────────────────────────────


def _key(state: State, key_id: str | None) -> VenueKey | None:
    return state.keys[key_id] if key_id is not None else None


def _settled(handle: Callable[[State, Any], Any]) -> Callable[[State, Any], Any]:
    """A report, and what the orders and the protection of its account need after it."""

    def settled(state: State, command: Any) -> Any:
        answer = handle(state, command)
        account = state.accounts[command.account]
        if account.exchange is not None:
            exchange_entries.settle(state, account)
        return answer

    return settled


def _sent(state: State, account: VenueAccount, act: Callable[..., Any], *given: Any) -> Any:
    """What a caller asks of an account at an exchange, and what its orders and its protection need after it."""
    if (refused := exchange_entries.refuse_sending(account)) is not None:
        return refused
    answer = act(state, account, *given)
    exchange_entries.settle(state, account)
    return answer


def _place_order(state: State, command: c.PlaceOrder) -> Any:
    account = state.accounts[command.account]
    if account.exchange is not None:
        return _sent(state, account, orders.place, _key(state, command.key), command)
    placed = orders.place(state, account, _key(state, command.key), command)
    if isinstance(placed, orders.OrderPlaced):
        matching.sweep(state, state.markets[command.order.coin])
    return placed


def _store_plan(state: State, command: c.StorePlan) -> Any:
    return plans.store_plan(state, state.accounts[command.account], _key(state, command.key), command)


def _confirm_plan(state: State, command: c.ConfirmPlan) -> Any:
    account = state.accounts[command.account]
    if account.exchange is not None:
        return _sent(state, account, plans.confirm, _key(state, command.key), command)
    placed = plans.confirm(state, account, _key(state, command.key), command)
    if isinstance(placed, orders.OrderPlaced):
        matching.sweep(state, state.markets[placed.trade.coin])
    return placed


def _close_position(state: State, command: c.ClosePosition) -> Any:
    account = state.accounts[command.account]
    if account.exchange is not None:
        return _sent(state, account, orders.close, _key(state, command.key), command)
    return orders.close(state, account, _key(state, command.key), command)


def _cancel_order(state: State, command: c.CancelOrder) -> Any:
    account = state.accounts[command.account]
    if account.exchange is not None:
        return _sent(state, account, open_orders.cancel, command.oid)
    return open_orders.cancel(state, account, command.oid)


def _cancel_coin(state: State, command: c.CancelCoin) -> Any:
    account = state.accounts[command.account]
    if account.exchange is not None:
        return _sent(state, account, open_orders.cancel_coin, command.coin)
    return open_orders.cancel_coin(state, account, command.coin)


def _arm_guardian(state: State, command: c.ArmGuardian) -> Any:
    account = state.accounts[command.account]
    if account.exchange is not None and (refused := exchange_entries.refuse_watched(account)) is not None:
        return refused
    plan = None if command.plan is None else plans.shown(state, account, command.plan, command.spec.order)
    if isinstance(plan, Refusal):
        return plan
    armed = guardian_commands.arm(state, account, command.spec, key=command.key)
    if plan is not None and not isinstance(armed, Refusal):
        plan.state = "armed"
    return armed


def _kill(state: State, command: c.Kill) -> Any:
    account = state.accounts[command.account]
    if account.exchange is None:
        return guardian_commands.kill(state, account, command)
    if (refused := exchange_entries.refuse_watched(account)) is not None:
        return refused
    first = account.exchange.action_nonce
    killed = guardian_commands.kill(state, account, command)
    nonces = tuple(nonce for nonce in account.exchange.actions if nonce > first)
    return killed if isinstance(killed, Refusal) else ActionsSent(nonces, answer=killed)


def _book_execution(state: State, command: c.BookExecution) -> int:
    """Book a fill. A level that it has armed beyond the present price acts at once."""
    booked = fills.book(state, command)
    matching.sweep(state, state.markets[command.fill.coin])
    return booked


def _disarm_guardian(state: State, command: c.DisarmGuardian) -> Any:
    return guardian_commands.disarm(state, state.accounts[command.account], command.guardian)


def _heartbeat(state: State, command: c.Heartbeat) -> Any:
    return guardian_commands.beat(state, state.accounts[command.account], command.ahead_ms)


_RUNS: Final = frozenset({c.Pulse, c.RunOverdue})
_WALKS: Final = frozenset({c.PassBar, c.PassBars, c.PassPoints})

HANDLERS: Final[dict[type, Callable[[State, Any], Any]]] = {
    c.SetRules: _set_rules,
    c.ListMarket: _list_market,
    c.ChangeListing: listings.change_listing,
    c.SetMarket: _set_market,
    c.Pulse: _pulse,
    c.RunOverdue: _pulse,
    c.PricePoint: matching.price_point,
    c.QuotePoint: matching.quote_point,
    c.SetBook: _set_book,
    c.PayFunding: _pay_funding,
    c.PassBar: _pass_bar,
    c.PassBars: _pass_bars,
    c.PassPoints: _pass_points,
    c.SetMarks: _set_marks,
    c.SetQuotes: _set_quotes,
    c.ShiftDeadlines: _shift_deadlines,
    c.OpenAccount: _open_account,
    c.CreateKey: _create_key,
    c.RevokeKey: _revoke_key,
    c.AddWebhook: webhooks.add,
    c.RemoveWebhook: webhooks.remove,
    c.DisableWebhook: webhooks.disable,
    c.ResetAccount: _reset_account,
    c.ChangeSettings: _change_settings,
    c.SendOtp: sign_in.send_otp,
    c.SignIn: _sign_in,
    c.RevokeSession: sign_in.revoke_session,
    c.StartGrant: sign_in.start_grant,
    c.DecideGrant: sign_in.decide_grant,
    c.RedeemGrant: _redeem_grant,
    c.PlaceOrder: _place_order,
    c.StorePlan: _store_plan,
    c.ConfirmPlan: _confirm_plan,
    c.ClosePosition: _close_position,
    c.CancelOrder: _cancel_order,
    c.CancelCoin: _cancel_coin,
    c.ArmGuardian: _settled(_arm_guardian),
    c.Kill: _settled(_kill),
    c.DisarmGuardian: _settled(_disarm_guardian),
    c.Heartbeat: _heartbeat,
    c.AdoptExchangeAccount: _adopt_exchange_account,
    c.BookExecution: _settled(_book_execution),
    c.BookFunding: money.fund,
    c.BookTransfer: money.transfer,
    c.BookTakeover: money.take_over,
    c.SeeReportedOrder: _settled(order_reports.see),
    c.EndReportedOrder: _settled(action_reports.end),
    c.SeeMargins: money.see_margins,
    c.SeeLink: link_state.see,
    c.SeeAudit: audit.see,
    c.CorrectBooks: audit.correct,
    c.SetExposureCap: adoption.set_cap,
    c.SeeAgent: action_reports.see_agent,
    c.SeeAction: _settled(action_reports.see),
    c.SettleActions: _settled(action_reports.settle),
}
