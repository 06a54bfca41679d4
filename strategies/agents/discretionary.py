"""A language model trades by itself, with headlines, within its limits.

The config asks a person for entries above 200 USD.
"""

from collections.abc import Iterable
from pathlib import Path

from bot import Field, View
from bot.agents import AgentParams, AgentStrategy


class Discretionary(AgentStrategy):
    """Let the model open and close, and show it the newest lines of a file of headlines."""

    class Params(AgentParams):
        headlines: str | None = Field(None, description="A text file with one headline in a line, the newest last.")
        max_order_usd: float = Field(400, gt=0, description="Largest entry.")

    def outside_texts(self, view: View) -> Iterable[str]:
        if self.params.headlines is None:
            return ()
        try:
            return Path(self.params.headlines).read_text(encoding="utf-8").splitlines()[-10:]
        except OSError as error:
            view.log("headlines.missing", reason=str(error))
            return ()
