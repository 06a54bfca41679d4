"""Other values of params in a config's text."""

from __future__ import annotations

import pytest

from bot.config import with_params
from bot.errors import ConfigError

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


NESTED = {
    "brackets without an end": "[" * 100_000,
    "deep lists": "[" * 900 + "]" * 900,
    "deep mappings": "{a: " * 900 + "1" + "}" * 900,
    "aliases that multiply": "[&a0 [x, x, x, x, x, x, x, x, x, x]"
    + "".join(f", &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12))
    + "]",
    "an alias that holds itself": "&a [*a]",
}


@pytest.mark.parametrize("name", NESTED)
def test_a_value_that_nests_without_bound_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="--param a.fast=.*: the value is nested too deeply") as refused:
        with_params(TEXT, {("a", "fast"): NESTED[name]})
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "value", ["8", "2.5", "trend", "true", "[1, 2.5]", "{a: [1]}", '"a: b"', "null", "- 1\n- 2", "a: 1\nb: 2"]
)
def test_every_kind_of_value_is_read(value: str) -> None:
    assert with_params(TEXT, {("a", "fast"): value})
