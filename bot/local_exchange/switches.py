"""Questions about the exchange that no public evidence answers.

Each is a switch: a client must be right under every value.
"""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple


class Switch(NamedTuple):
    """The first value is the default.

    `step` numbers the open question; 0: a setting of the local exchange, not a question.
    """

    name: str
    values: tuple[str, ...]
    step: int
    question: str


SWITCHES: Final = (
    Switch(
        "agent_replaced",
        ("refused", "pruned"),
        2,
        "Does an agent that was replaced lose its nonces when it is approved again?",
    ),
    Switch("agent_expiry", ("at_once", "late"), 2, "Is an expired agent refused at once, or 15 minutes late?"),
    Switch(
        "partial_gtc", ("resting", "filled"), 4, "The status in the answer of a Gtc order that fills in part and rests"
    ),
    Switch("partial_ioc", ("filled", "canceled"), 4, "The final status of an Ioc order that filled in part"),
    Switch("trigger_oid", ("same", "new"), 6, "Does an order keep its oid when its trigger fires?"),
    Switch("trigger_order", ("stop_first", "target_first"), 6, "Which of two triggers in one mark update fires first?"),
    Switch("trigger_bound", ("tighter", "ten_percent"), 6, "Is `p` of a market trigger a bound, beside 10 % slippage?"),
    Switch("trigger_passed", ("refused", "fires"), 6, "Is a trigger order refused when its price has been passed?"),
    Switch("cloid_open", ("refused", "accepted"), 7, "Is a second open order with the same cloid refused?"),
    Switch("position_stop_alone", ("refused", "kept"), 8, "Is a stop of a position refused when there is no position?"),
    Switch("two_position_stops", ("both", "replaces"), 8, "Does a second stop of a position replace the first?"),
    Switch(
        "partial_ioc_children",
        ("canceled", "placed"),
        9,
        "What becomes of the children of an Ioc parent that filled in part?",
    ),
    Switch(
        "children_rows",
        ("twice", "once"),
        9,
        "Are waiting children rows of their own beside those nested in the parent?",
    ),
    Switch(
        "reduce_larger",
        ("refuse", "cap"),
        10,
        "Is a reduce-only order refused or cut when it is larger than the position?",
    ),
    Switch(
        "reduce_sum",
        ("both", "older_canceled"),
        10,
        "Do resting reduce-only orders stay when their sum exceeds the position?",
    ),
    Switch(
        "close_minimum", ("exempt_whole", "applies"), 11, "May an order that closes the whole position be below 10 USD?"
    ),
    Switch("modified_group", ("lost", "kept"), 12, "Does a modified child or stop of a position keep its grouping?"),
    Switch("isolated_funding", ("margin", "account"), 14, "What pays the funding of an isolated position?"),
    Switch(
        "budget_counts",
        ("all", "orders"),
        16,
        "Which actions use the address budget: all, or those with orders or cancels?",
    ),
    Switch("upgrade_triggers", ("wait", "fire"), 17, "Do triggers wait during the post-only minutes after an upgrade?"),
    Switch("channel_order", ("fills_first", "drawn"), 18, "In which order do the channels tell of one block?"),
    Switch("hip3_cloid", ("works", "unknown"), 19, "Is an order on a HIP-3 market known by its cloid?"),
    Switch("open_margin", ("larger_side", "none"), 23, "Do resting orders reserve margin?"),
    Switch(
        "signed_form",
        ("canonical", "as_sent"),
        0,
        "Is the signature checked over the canonical action, or over the action as it was sent?",
    ),
    Switch("info_lag", ("none", "drawn"), 0, "May info answers be up to 1.2 s older than an acknowledged action?"),
    Switch("ip_limit", ("on", "off"), 0, "Are requests limited to a weight of 1,200 a minute for each IP?"),
)

BY_NAME: Final = {switch.name: switch for switch in SWITCHES}


def defaults() -> dict[str, str]:
    return {switch.name: switch.values[0] for switch in SWITCHES}


def drawn(random: Random) -> dict[str, str]:
    """A value for each open question, by chance. The settings of the local exchange keep their defaults."""
    return {switch.name: random.choice(switch.values) if switch.step else switch.values[0] for switch in SWITCHES}


def fault_of(name: str, value: str) -> str | None:
    """What is wrong with a choice; None if it is valid."""
    switch = BY_NAME.get(name)
    if switch is None:
        return f"there is no switch {name!r}; there are {', '.join(BY_NAME)}"
    if value not in switch.values:
        return f"switch {name} is {' or '.join(switch.values)}, not {value!r}"
    return None
