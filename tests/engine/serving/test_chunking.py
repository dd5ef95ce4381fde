"""Prefill fills its budget in order, ends at borders of blocks, and leaves no crumbs."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from kvtool.engine.serving.chunking import REST, Limits, prefills

SIZE = 16


def asking(remaining: int, computed: int = 0, loading: bool = False) -> SimpleNamespace:
    return SimpleNamespace(remaining=remaining, computed=computed, loading=loading)


def counts(requests: list[SimpleNamespace], budget: int) -> list[tuple[int, int]]:
    """(place of the request, tokens)."""
    chosen = prefills(requests, Limits(chunk_tokens=budget), SIZE)  # type: ignore[arg-type]
    return [
        (next(at for at, one in enumerate(requests) if one is request), count) for request, count in chosen
    ]


def test_the_budget_goes_to_those_that_came_first() -> None:
    waiting = [asking(1), asking(40), asking(30, loading=True), asking(120), asking(9)]
    assert counts(waiting, 128) == [(1, 40), (3, 80), (4, 9)]  # 88 were left: at a border that is 80
    assert counts([asking(143)], 128) == [(0, 143)]  # fifteen more are less than an eighth of a chunk
    assert counts([asking(145)], 128) == [(0, 128)]
    assert counts([asking(300, computed=5)], 128) == [(0, 123)]


@given(
    st.lists(
        st.builds(asking, st.integers(1, 600), st.integers(0, 100), st.booleans()), min_size=1, max_size=8
    ),
    st.integers(SIZE, 256),
)
def test_whatever_asks(requests: list[SimpleNamespace], budget: int) -> None:
    found = counts(requests, budget)
    assert [at for at, _ in found] == sorted({at for at, _ in found})
    assert sum(count for _, count in found) <= budget + budget // REST
    for at, count in found:
        request = requests[at]
        assert 1 < request.remaining >= count > 0 and not request.loading
        rest = request.remaining - count
        assert rest == 0 or (rest > 0 and (request.computed + count) % SIZE == 0)
