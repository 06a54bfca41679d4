"""What is assumed about the exchange, and what each possible answer means. Pure.

The first value is the one that is assumed. An assumption whose answer nobody knows has the name and the values of a
switch of the local exchange; the others are documented or were observed, and the exchange differs if `otherwise` is
reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

AS_ASSUMED: Final = "as_assumed"
OTHERWISE: Final = "otherwise"


@dataclass(frozen=True, slots=True)
class Assumption:
    """`values`: value -> what the exchange does then. `step` numbers the open question of the wire reference."""

    name: str
    step: int
    question: str
    values: Mapping[str, str]

    @property
    def is_switch(self) -> bool:
        return OTHERWISE not in self.values


def _known(name: str, step: int, question: str, right: str) -> Assumption:
    """An assumption that is documented or was observed by others."""
    return Assumption(name, step, question, {AS_ASSUMED: right, OTHERWISE: "The exchange does something else"})


ASSUMPTIONS: Final = (
    # ── Actions ─────────────────────────────────────────────────────────────────────────────────────────────────────
    _known("fence", 1, "Does noop use up a nonce, so that an order with it is void?", "The order is a duplicate"),
    _known("nonce_once", 1, "Is an action performed once under its nonce?", "The second one is a duplicate"),
    _known(
        "nonce_floor", 1, "Is a nonce below the 100 highest refused?", "It is too low, or a duplicate if it was used"
    ),
    _known("refusal_takes_nonce", 1, "Does a refused order use up its nonce?", "The nonce is a duplicate afterwards"),
    _known("expiry", 20, "Is an action refused after `expiresAfter`?", "`Action already expired`; before it, it acts"),
    Assumption(
        "signed_form",
        21,
        "Is the signature checked over the canonical action, or over the action as it was sent?",
        {
            "canonical": "An action with its keys in another order is performed",
            "as_sent": "The signature of an action with its keys in another order is read as another address",
        },
    ),
    Assumption(
        "budget_counts",
        16,
        "Which actions use the address budget: all, or those with orders or cancels?",
        {"all": "Two noops and an order use three", "orders": "Two noops and an order use one"},
    ),
    Assumption(
        "info_lag",
        0,
        "May info answers be up to 1.2 s older than an acknowledged action?",
        {
            "none": "`orderStatus` knows each of five orders right after its acknowledgment",
            "drawn": "`orderStatus` does not know an acknowledged order yet",
        },
    ),
    # ── Orders ──────────────────────────────────────────────────────────────────────────────────────────────────────
    _known("tick", 0, "Is a price with six significant digits refused?", "`Price must be divisible by tick size.`"),
    _known("minimum", 11, "Is an order below 10 USD refused?", "`Order must have minimum value of $10.`"),
    _known("price_band", 5, "Is a price below 0.2 of the reference refused?", "0.19 is refused, 0.22 rests"),
    _known("post_only", 0, "Is a post-only order that would fill refused?", "`... would have immediately matched`"),
    _known("no_match", 0, "Is an Ioc order that meets nothing refused?", "`... could not immediately match ...`"),
    _known("reduce_alone", 0, "Is a reduce-only order without a position refused?", "`... would increase position.`"),
    _known("cancel_once", 0, "Is a second cancel refused?", "`... already canceled, or filled.`"),
    _known("batch_status", 22, "Does one refused order of a batch leave the others?", "Each has a status of its own"),
    _known(
        "cloid_again", 7, "May a cloid be used again after its order has ended?", "Yes, and it names the newest order"
    ),
    Assumption(
        "cloid_open",
        7,
        "Is a second open order with the same cloid refused?",
        {"refused": "It is refused, and the same order with another cloid rests", "accepted": "Both rest"},
    ),
    Assumption(
        "partial_gtc",
        4,
        "The status in the answer of a Gtc order that fills in part and rests",
        {"resting": "The answer is `resting`", "filled": "The answer is `filled` with the size that filled"},
    ),
    Assumption(
        "partial_ioc",
        4,
        "The final status of an Ioc order that filled in part",
        {"filled": "`orderStatus` says `filled`", "canceled": "`orderStatus` says `canceled`"},
    ),
    Assumption(
        "open_margin",
        23,
        "Do resting orders reserve margin?",
        {
            "larger_side": "A second order for 60 % of what is available is refused",
            "none": "Two orders, each for 60 % of what is available, rest",
        },
    ),
    Assumption(
        "hip3_cloid",
        19,
        "Is an order on a HIP-3 market known by its cloid?",
        {"works": "`orderStatus` knows it by both ids", "unknown": "`orderStatus` knows it by its oid alone"},
    ),
    # ── Stops and targets ───────────────────────────────────────────────────────────────────────────────────────────
    _known("bracket_answer", 9, "What are children of a resting parent answered?", "`waitingForFill`"),
    _known("children_end", 9, "What becomes of children when their parent is canceled?", "They are canceled"),
    _known(
        "bracket_filled", 9, "Are children live when their parent fills at once?", "`waitingForTrigger`, then `open`"
    ),
    _known("stop_size", 8, "Does a stop of size 0 belong to the whole position and end with it?", "It does"),
    Assumption(
        "children_rows",
        9,
        "Are waiting children rows of their own beside those nested in the parent?",
        {
            "twice": "Each child has a row and is nested in its parent's",
            "once": "A child is nested in its parent's row alone",
        },
    ),
    Assumption(
        "partial_ioc_children",
        9,
        "What becomes of the children of an Ioc parent that filled in part?",
        {"canceled": "They are canceled", "placed": "They are open with their full size"},
    ),
    Assumption(
        "position_stop_alone",
        8,
        "Is a stop of a position refused when there is no position?",
        {"refused": "It is refused, and taken when there is a position", "kept": "It is open"},
    ),
    Assumption(
        "two_position_stops",
        8,
        "Does a second stop of a position replace the first?",
        {"both": "Both are open", "replaces": "Only the second is open"},
    ),
    Assumption(
        "modified_group",
        12,
        "Does a modified child or stop of a position keep its grouping?",
        {"lost": "The new order is no stop of the position", "kept": "The new order is a stop of the position"},
    ),
    Assumption(
        "trigger_passed",
        6,
        "Is a trigger order refused when its price has been passed?",
        {"refused": "`Invalid TP/SL price.`", "fires": "It fills at once"},
    ),
    Assumption(
        "trigger_oid",
        6,
        "Does an order keep its oid when its trigger fires?",
        {"same": "The fill names the oid of the order", "new": "The fill names another oid"},
    ),
    Assumption(
        "trigger_order",
        6,
        "Which of two triggers in one mark update fires first?",
        {"stop_first": "The fill of the stop starts from no position", "target_first": "The fill of the target does"},
    ),
    Assumption(
        "trigger_bound",
        6,
        "Is `p` of a market trigger a bound, beside 10 % slippage?",
        {"tighter": "It does not fill beyond `p`", "ten_percent": "It fills beyond `p`"},
    ),
    # ── Positions ───────────────────────────────────────────────────────────────────────────────────────────────────
    _known("fee", 15, "Is a fee the rate of `userFees`, cut at six decimals?", "Each fill agrees"),
    _known("cash", 15, "Do fills and fees explain the change of `totalRawUsd`?", "To the last unit"),
    Assumption(
        "reduce_larger",
        10,
        "Is a reduce-only order refused or cut when it is larger than the position?",
        {"refuse": "`Reduce only order would increase position.`", "cap": "It closes the position"},
    ),
    Assumption(
        "reduce_sum",
        10,
        "Do resting reduce-only orders stay when their sum exceeds the position?",
        {"both": "Both stay open", "older_canceled": "The older one is canceled"},
    ),
    Assumption(
        "close_minimum",
        11,
        "May an order that closes the whole position be below 10 USD?",
        {"exempt_whole": "It closes the position", "applies": "`Order must have minimum value of $10.`"},
    ),
    Assumption(
        "isolated_funding",
        14,
        "What pays the funding of an isolated position?",
        {"margin": "`rawUsd` of the position changes by it", "account": "`rawUsd` of the position stays"},
    ),
)
BY_NAME: Final = {assumption.name: assumption for assumption in ASSUMPTIONS}

# Switches of the local exchange that a run with an agent's key cannot show, and why.
NOT_SHOWN: Final[Mapping[str, str]] = {
    "agent_replaced": "only the account's own key can replace an agent, and this command never reads that key",
    "agent_expiry": "an agent that expires during the run needs the account's own key, which this command never reads",
    "upgrade_triggers": "the exchange is upgraded about once a week, at no instant that can be chosen",
    "channel_order": "the scenarios read by requests; they open no stream",
    "ip_limit": "to see the limit, a run would use up all requests of this IP address",
}
