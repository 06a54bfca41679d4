"""What lets an action in: the signer, its nonce, the address budget, the expiry of the action.

Also agents and deposits.
"""

from __future__ import annotations

import hashlib
from bisect import insort
from typing import Final

from bot.clock import DAY_MS, MINUTE_MS, SECOND_MS
from bot.local_exchange.engine.records import Agent, ExchangeRefusal, Report
from bot.local_exchange.engine.state import Exchange, Nonces, User, account_id, account_of, user_of
from bot.local_exchange.engine.venue_rules import E8

NONCES_KEPT: Final = 100
NONCE_PAST_MS: Final = 2 * DAY_MS
NONCE_AHEAD_MS: Final = DAY_MS
AGENT_DAYS: Final = 180
NAMED_AGENTS: Final = 3
NAMED_AGENTS_OF_SUB: Final = 2
NAME_MOST: Final = 16
LATE_EXPIRY_MS: Final = 15 * MINUTE_MS
ZERO_ADDRESS: Final = "0x" + "0" * 40

BUDGET_FIRST: Final = 10_000
SPARE_MS: Final = 10 * SECOND_MS
CANCELS: Final = frozenset({"cancel", "cancelByCloid", "noop"})
EXPIRED_COST: Final = 5
EXPIRED = ExchangeRefusal("Action already expired")


def deposit(
    exchange: Exchange, address: str, amount: int, *, dex: str = "", spot: bool = False, cause: str = "deposit"
) -> None:
    """Credit an address; it exists from then on."""
    user = user_of(exchange, address)
    if spot:
        user.spot_usd += amount
    else:
        account = account_of(exchange, address, dex)
        account.balance += amount
        exchange.raw[account_id(address, dex)].add(cause, amount)
        exchange.raw[account_id(address, dex)].check(account)


def tell_ledger(exchange: Exchange, address: str, delta: dict[str, object]) -> None:
    """Report a transfer or a liquidation to an address."""
    rows = exchange.users[address].ledger_rows
    # No two rows of an address have the same hash, as no two transactions have.
    place = f"{exchange.seed}:{exchange.block}:{address}:{len(rows)}:{exchange.now_ms}"
    row = (exchange.now_ms, delta, "0x" + hashlib.blake2b(place.encode(), digest_size=32).hexdigest())
    rows.append(row)
    exchange.reports.append(Report("ledger", address, row))


# ── Signers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def unknown_signer(address: str) -> ExchangeRefusal:
    return ExchangeRefusal(f"User or API Wallet {address} does not exist.")


def not_deposited(address: str) -> ExchangeRefusal:
    return ExchangeRefusal(f"Must deposit before performing actions. User: {address}")


def master_of(exchange: Exchange, signer: str) -> str | None:
    """The address for which this signer acts: its own, or an agent's master. None if it is unknown or has expired."""
    agent = exchange.agents.get(signer)
    if agent is not None:
        grace = LATE_EXPIRY_MS if exchange.switch("agent_expiry") == "late" else 0
        return agent.master if exchange.now_ms < agent.valid_until + grace else None
    user = exchange.users.get(signer)
    return signer if user is not None and user.master is None else None


def approve_agent(exchange: Exchange, user: User, address: str, name: str) -> ExchangeRefusal | None:
    """Let a key sign for the address. The same name replaces the earlier key; the zero address removes it."""
    bare, _, until = name.partition(" valid_until ")
    if (name and not bare) or len(bare) > NAME_MOST or (until and not until.isdecimal()):
        return ExchangeRefusal(f"Extra agent name must be between 1 and {NAME_MOST} characters long")
    latest = exchange.now_ms + AGENT_DAYS * DAY_MS
    valid_until = min(int(until), latest) if until else latest
    if address == ZERO_ADDRESS:
        remove_agent(exchange, user, bare)
        return None
    known = exchange.agents.get(address)
    is_new = known is None or known.master != user.address or known.name != bare
    was_used = address in exchange.used_agents and exchange.switch("agent_replaced") == "refused"
    if is_new and (known is not None or was_used or address in exchange.users):
        return ExchangeRefusal("Extra agent already used.")
    named = [agent for agent in user.agents.values() if agent.name]
    most = NAMED_AGENTS + NAMED_AGENTS_OF_SUB * sum(sub.master == user.address for sub in exchange.users.values())
    if bare and bare not in user.agents and len(named) >= most:
        return ExchangeRefusal(f"Too many extra agents for cumulative volume traded. Current limit is {most}")
    remove_agent(exchange, user, bare)
    agent = Agent(address, user.address, bare, valid_until)
    user.agents[bare] = exchange.agents[address] = agent
    exchange.used_agents.add(address)
    return None


def remove_agent(exchange: Exchange, user: User, name: str) -> None:
    agent = user.agents.pop(name, None)
    if agent is not None:
        del exchange.agents[agent.address]
        if exchange.switch("agent_replaced") == "pruned":
            exchange.nonces.pop(agent.address, None)


# ── Nonces ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def nonce_outside(exchange: Exchange, nonce: int) -> ExchangeRefusal | None:
    """The window of time, which is checked before the signer is known."""
    if nonce >= exchange.now_ms + NONCE_AHEAD_MS:
        return ExchangeRefusal(f"Invalid nonce: nonce too high {nonce} > {exchange.now_ms + NONCE_AHEAD_MS}")
    if nonce <= exchange.now_ms - NONCE_PAST_MS:
        return ExchangeRefusal(f"Invalid nonce: nonce too low {nonce} < {exchange.now_ms - NONCE_PAST_MS}")
    return None


def take_nonce(exchange: Exchange, signer: str, nonce: int) -> ExchangeRefusal | None:
    """Mark a nonce as used, or say why it cannot be."""
    nonces = exchange.nonces.setdefault(signer, Nonces())
    if nonce in nonces.seen:
        return ExchangeRefusal(f"Invalid nonce: duplicate nonce {nonce}")
    if len(nonces.highest) >= NONCES_KEPT and nonce < nonces.highest[0]:
        return ExchangeRefusal(f"Invalid nonce: nonce too low {nonce} < {nonces.highest[0]}")
    nonces.seen.add(nonce)
    insort(nonces.highest, nonce)
    if len(nonces.highest) > NONCES_KEPT:
        del nonces.highest[0]
    if len(nonces.seen) > 2 * NONCES_KEPT and len(nonces.seen) % NONCES_KEPT == 0:
        oldest = exchange.now_ms - NONCE_PAST_MS
        nonces.seen = {seen for seen in nonces.seen if seen > oldest}
    return None


# ── Address budget ──────────────────────────────────────────────────────────────────────────────────────────────────


def budget_of(user: User) -> int:
    """How many actions an address may send in its life: 10,000, one for each USD of volume, and what it has bought."""
    return BUDGET_FIRST + user.budget_volume // E8 + user.reserved_requests


def spend_budget(exchange: Exchange, user: User, kind: str, count: int) -> ExchangeRefusal | None:
    """Count an action. An address without budget may send one action in 10 s; cancels have a larger budget."""
    if exchange.switch("budget_counts") == "orders" and kind in ("noop", "updateLeverage", "updateIsolatedMargin"):
        return None
    most = budget_of(user)
    limit = min(most + 100_000, 2 * most) if kind in CANCELS else most
    if user.requests + count > limit:
        if exchange.now_ms < user.next_spare_ms:
            volume = user.volume // (E8 // 100)
            return ExchangeRefusal(
                f"Too many cumulative requests sent ({user.requests + count} > {limit}) for cumulative volume traded "
                f"${volume // 100}.{volume % 100:02d}. Place taker orders to free up 1 request per USDC traded."
            )
        user.next_spare_ms = exchange.now_ms + SPARE_MS
    user.requests += count
    return None
