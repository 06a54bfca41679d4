"""Other values of params in a config's text."""

from __future__ import annotations

from bot.config import with_params

TEXT = """\
# mine
account: {base_url: embedded}  # play money
strategies:
- name: a
  params: &shared
    fast: 4     # quick
    slow: "16"
- name: b
  params: *shared
- {name: c, use: "${env:USE}"}
"""


def test_only_the_named_params_change_and_comments_stay() -> None:
    assert with_params(TEXT, {("b", "fast"): "8", ("c", "bands"): "[1, 2.5]"}) == TEXT.replace(
        "params: &shared", "params:"
    ).replace("  params: *shared\n", '  params:\n    fast: 8     # quick\n    slow: "16"\n').replace(
        '"${env:USE}"}', '"${env:USE}", params: {bands: [1, 2.5]}}'
    )
