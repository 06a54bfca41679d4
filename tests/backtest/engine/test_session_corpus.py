"""Sessions of the corpus leave what they left when the file of digests was written (session_corpus.py)."""

from __future__ import annotations

import pytest

from bot.logs import quiet_log
from tests.backtest.engine.session_corpus import digests_of, kept


@pytest.mark.soak(worlds=6, full=150)
def test_a_seeded_session_leaves_the_same_events_account_and_files(worlds: int):
    """To change results on purpose, write the file anew: `python -m tests.backtest.engine.session_corpus`."""
    expected = kept()
    assert worlds <= len(expected)
    with quiet_log():
        for seed in range(worlds):
            assert digests_of(seed) == expected[seed]
