"""Branches of the trie against plain sets of prefixes."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtool.analysis import branches as module
from kvtool.analysis.branches import branches
from kvtool.analysis.build import build_runs
from kvtool.analysis.prefixes import usage
from kvtool.requests import Request, Source

PROMPTS = st.lists(st.lists(st.integers(0, 1), max_size=16), max_size=14)
SIZE = 2


class Ids:
    """Stands in for an encoder: prompts are token ids already."""

    fingerprint = "ids"

    def encode(self, requests):
        return [each.token_ids for each in requests]


def drawn(prompts, blocks=False):
    """Branches of `prompts`, from its runs or from its single blocks."""
    runs = build_runs(
        (Request("", Source("log", row), token_ids=np.array(p, np.uint32)) for row, p in enumerate(prompts)),
        Ids(),
        SIZE,
    )
    tree = runs.unfolded() if blocks else runs
    counts = usage(tree)
    sizes = tree.depth + np.int32(1) - tree.above
    texts = []

    def text(head, last):
        texts.append((head, last))
        return f"{head}-{last}"

    return branches(tree.parent, tree.above, sizes, counts.requests, counts.sessions, SIZE, text)


def prefixes(prompts):
    """Uses of every prefix of full blocks."""
    return Counter(
        tuple(prompt[:end])
        for prompt in prompts
        for end in range(SIZE, len(prompt) - len(prompt) % SIZE + 1, SIZE)
    )


@given(PROMPTS)
def test_every_token_of_every_prompt_stands_in_one_branch(prompts):
    rows, uses = drawn(prompts), prefixes(prompts)
    assert sum(row.tokens * row.requests for row in rows) == SIZE * sum(uses.values())
    assert sum(row.tokens for row in rows) == SIZE * len(uses)
    assert sum(row.weight for row in rows if row.parent < 0) == SIZE * sum(uses.values())
    for number, row in enumerate(rows):
        below = [other for other in rows if other.parent == number]
        assert row.weight == row.tokens * row.requests + sum(other.weight for other in below)
        assert all(other.requests < row.requests for other in below)
        assert all(other.start == row.start + row.tokens for other in below)
        assert row.parent < number


@given(PROMPTS)
def test_runs_and_single_blocks_give_the_same_branches(prompts):
    def shape(rows):
        return sorted((row.start, row.tokens, row.requests, row.weight, row.reused) for row in rows)

    assert shape(drawn(prompts)) == shape(drawn(prompts, blocks=True))


@given(PROMPTS)
def test_reuse_is_what_an_unbounded_cache_would_serve(prompts):
    uses = prefixes(prompts)
    served = SIZE * sum(count - 1 for count in uses.values())
    found = sum(row.tokens * row.requests * row.reused for row in drawn(prompts))
    assert found == pytest.approx(served, abs=1e-3)


@given(PROMPTS, st.integers(0, 3))
def test_merging_keeps_the_sums(prompts, most):
    whole = drawn(prompts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST", most)
        rows = drawn(prompts)
    kept = [row for row in rows if row.merged == 1 and row.text]
    assert len(kept) == min(most, len(whole))
    assert len({row.parent for row in rows if not row.text}) == len([row for row in rows if not row.text])
    assert sum(row.weight for row in rows if row.parent < 0) == sum(
        row.weight for row in whole if row.parent < 0
    )
    served = sum(
        row.weight * row.reused if not row.text else row.tokens * row.requests * row.reused for row in rows
    )
    assert served == pytest.approx(sum(row.tokens * row.requests * row.reused for row in whole), abs=1e-2)


def test_a_branch_says_where_it_is_and_who_uses_it():
    rows = drawn([[1, 1, 2, 2, 3, 3], [1, 1, 2, 2, 4, 4], [1, 1]])
    assert [(row.parent, row.start, row.tokens, row.requests, row.weight) for row in rows] == [
        (-1, 0, 2, 3, 14),
        (0, 2, 2, 2, 8),
        (1, 4, 2, 1, 2),
        (1, 4, 2, 1, 2),
    ]
    assert [row.reused for row in rows] == [round(2 / 3, 6), 0.5, 0.0, 0.0]
