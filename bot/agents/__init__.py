"""Strategies that ask a language model. The model proposes; limits outside of it decide. Start with `agent_strategy`.

`answers` is what a model may answer, `limits` what is let through, `models` the only module that talks to a model. The
library of models (pydantic-ai, the extra `agents`) is imported in the thread of the first question.
"""

from bot.agents.agent_strategy import AgentStrategy
from bot.agents.answers import Answer, CancelDecision, CloseDecision, Decision, HoldDecision, OpenDecision
from bot.agents.params import AgentParams

__all__ = [
    "AgentParams",
    "AgentStrategy",
    "Answer",
    "CancelDecision",
    "CloseDecision",
    "Decision",
    "HoldDecision",
    "OpenDecision",
]
