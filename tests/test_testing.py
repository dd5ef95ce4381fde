"""assert_prefix_stable: counts shared tokens exactly and says where renderings part."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from kvtool.errors import KvtoolError
from kvtool.testing import assert_prefix_stable

RULES = "Answer in two sentences. Never invent a price. Name amounts in euros. "


def chat(system: str, question: str = "Where is my bag?") -> list[dict[str, Any]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


def test_shared_tokens_are_counted_in_the_tokenizers_units() -> None:
    shared = assert_prefix_stable(
        lambda: "a" * 40 + "b", lambda: "a" * 40 + "c", min_tokens=10, tokenizer="bytes"
    )
    assert shared == 10  # four bytes to a token, the eleventh differs


def test_a_value_that_changes_from_call_to_call_is_shown() -> None:
    clock = itertools.count(100)
    with pytest.raises(AssertionError, match=r"Now: 10' they go on with '0\. Answer.*' and '1\. Answer"):
        assert_prefix_stable(lambda: chat(f"Now: {next(clock)}. {RULES}"), min_tokens=20)


def test_the_question_may_differ_behind_the_instructions() -> None:
    renders = [lambda: chat(RULES * 4, "Where is it?"), lambda: chat(RULES * 4, "Is it lost?")]
    shared = assert_prefix_stable(*renders, min_tokens=60)
    assert shared < assert_prefix_stable(renders[0], min_tokens=60)


def test_tools_in_another_order_part_early() -> None:
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("find", "track")]
    straight = {"messages": chat(RULES), "tools": tools}
    turned = {"messages": chat(RULES), "tools": tools[::-1]}
    whole = assert_prefix_stable(lambda: straight, min_tokens=40)
    with pytest.raises(AssertionError, match=r"go on with 'find.*' and 'track"):
        assert_prefix_stable(lambda: straight, lambda: turned, min_tokens=whole)


def test_a_short_prompt_is_no_difference() -> None:
    with pytest.raises(AssertionError, match="the prompt has 3 tokens, fewer than the 50 wanted"):
        assert_prefix_stable(lambda: "twelve bytes", min_tokens=50, tokenizer="bytes")


def test_what_is_no_prompt_is_named() -> None:
    with pytest.raises(KvtoolError, match="int is no prompt"):
        assert_prefix_stable(lambda: 7, min_tokens=1)  # type: ignore[arg-type, return-value]
    with pytest.raises(KvtoolError, match="nothing to render"):
        assert_prefix_stable(min_tokens=1)


def test_the_plugin_offers_the_function(pytestconfig: pytest.Config) -> None:
    from kvtool import pytest_plugin

    fixture: Callable[[], object] = pytest_plugin._assert_prefix_stable.__wrapped__  # type: ignore[attr-defined]
    assert fixture() is assert_prefix_stable
