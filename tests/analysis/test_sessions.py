"""Session inference on dialogues whose sessions are known."""

import numpy as np

from kvtool.analysis.build import build_workload
from kvtool.analysis.sessions import infer_sessions, split_sessions
from kvtool.requests import BlockIds, Request, Source


class Ids:
    """Stands in for an encoder: prompts are token ids already."""

    fingerprint = "ids"

    def encode(self, requests):
        return [each.token_ids for each in requests]


def prompts(*rows):
    """(seconds, tokens, session) -> workload of blocks of two tokens."""
    requests = [
        Request(
            id=str(row),
            source=Source("t", row),
            arrival=int(seconds * 1e6),
            session=session,
            token_ids=np.array(tokens, np.uint32),
        )
        for row, (seconds, tokens, session) in enumerate(rows)
    ]
    return build_workload(requests, Ids(), 2)


def test_a_prompt_continues_the_one_it_extends_not_one_that_shares_a_head():
    system = [1, 2, 3, 4, 5, 6]
    a, b = [*system, 10, 11, 12], [*system, 20, 21]
    log = prompts((0, a, None), (1, b, None), (2, [*a, 13, 14, 15], None), (3, [*b, 22, 23, 24], None))
    assert infer_sessions(log).session.tolist() == [0, 1, 0, 1]
    names = infer_sessions(log).session_names
    assert list(names) == ["inferred-1", "inferred-2"] == names[:9] and len(names) == 2


def test_a_long_pause_ends_a_session():
    log = prompts(
        (0, [1, 2, 3, 4], None), (5, [1, 2, 3, 4, 5, 6], None), (99, [1, 2, 3, 4, 5, 6, 7, 8], None)
    )
    assert infer_sessions(log).session.tolist() == [0, 0, 0]
    assert infer_sessions(log, gap=10).session.tolist() == [0, 0, 1]


def test_a_trace_continues_where_two_blocks_are_shared():
    def row(ids):
        return Request(id="", source=Source("t", 1), block_ids=BlockIds(np.array(ids), 4, 4 * len(ids) - 1))

    log = build_workload([row([0, 1, 2, 90]), row([0, 50, 91]), row([0, 1, 2, 3, 92]), row([0, 60])], None)
    assert infer_sessions(log).session.tolist() == [0, 1, 0, 2]


def test_named_sessions_are_cut_at_pauses():
    log = prompts((0, [1, 2], "s"), (1, [1, 2], "t"), (50, [1, 2], "s"), (51, [1, 2], "s"), (99, [1, 2], "s"))
    cut = split_sessions(log, 10)
    assert [cut.session_names[number] for number in cut.session] == ["s", "t", "s#2", "s#2", "s#3"]
