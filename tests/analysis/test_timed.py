"""Replay in time against the runtime's own Pool, driven event by event."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.analysis.build import build_workload
from kvtool.analysis.replay import replay
from kvtool.analysis.timed import TimedConfig, held_blocks, replay_timed
from kvtool.cache.policies import POLICIES
from kvtool.cache.pool import Pool
from kvtool.requests import BlockIds, Request, Source

LRU = POLICIES.load("lru")


def workload_of(rows):
    """(seconds, path, output tokens, session): blocks of 4 tokens."""
    names = {}
    requests = []
    for number, (seconds, path, output, session) in enumerate(rows):
        ids = [names.setdefault(tuple(path[: i + 1]), len(names)) for i in range(len(path))]
        requests.append(
            Request(
                id="",
                source=Source("t", number),
                arrival=int(seconds * 1e6),
                session=session,
                output_tokens=output,
                block_ids=BlockIds(np.array(ids), 4, 4 * len(ids)),
            )
        )
    return build_workload(requests, None, 4)


def by_hand(workload, capacity, prefill_rate, decode_rate):
    """Matched blocks with Pool leases: commit when a prefill ends, release when its output does."""
    pool = Pool(capacity, LRU)
    for parent in workload.parent.tolist():
        pool.add_node(parent)
    running, matched = [], []

    def settle(now):
        while running and min(running)[0] <= now:
            event = min(running)
            running.remove(event)
            due, request, lease, published = event
            if published:
                pool.release(lease)
            else:
                pool.commit(lease, len(lease.slots))
                running.append((due + workload.output_tokens[request] / decode_rate, request, lease, True))
            pool.check()

    for request, now in enumerate(workload.clock.tolist()):
        settle(now)
        path = workload.nodes[workload.offsets[request] : workload.offsets[request + 1]].tolist()
        lease = pool.acquire(path, 0, now)
        assert lease is not None
        pool.extend(lease, len(path) - lease.hit)
        matched.append(lease.hit)
        tokens = int(workload.prompt_tokens[request])
        computed = tokens - min(lease.hit, (tokens - 1) // 4) * 4
        running.append((now + computed / prefill_rate, request, lease, False))
        pool.check()
    return matched


LOGS = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.lists(st.integers(0, 1), min_size=1, max_size=4),
        st.integers(0, 8),
        st.none(),
    ),
    max_size=20,
)


@settings(deadline=None)
@given(LOGS, st.integers(1, 12), st.sampled_from([1.0, 4.0, 16.0]), st.sampled_from([1.0, 3.0]))
def test_leases_overlap_as_the_pool_lets_them(log, capacity, prefill_rate, decode_rate):
    workload = workload_of(log)
    timed = replay_timed(workload, LRU, capacity, TimedConfig(prefill_rate, decode_rate))
    assert timed.matched.tolist() == by_hand(workload, capacity, prefill_rate, decode_rate)
    assert timed.most_held <= capacity


@settings(deadline=None)
@given(LOGS, st.integers(1, 12))
def test_in_no_time_it_is_the_plain_replay(log, capacity):
    for name in ("lru", "lfu-da", "gdsf"):
        workload, policy = workload_of(log), POLICIES.load(name)
        timed = replay_timed(workload, policy, capacity, TimedConfig())
        assert timed.matched.tolist() == replay(workload, policy, capacity).tolist()


def test_a_block_is_of_use_once_its_prefill_has_ended():
    """Two blocks at 4 tokens a second take two seconds: the second request comes too early, the third not."""
    rows = [(0, "ab", 0, None), (1, "ab", 0, None), (2.5, "ab", 0, None)]
    assert replay_timed(workload_of(rows), LRU, 9, TimedConfig(4.0)).matched.tolist() == [0, 0, 2]


def test_what_is_held_cannot_be_taken():
    """Two slots, both held for ten seconds by a request that generates: the others pass by."""
    rows = [(0, "ab", 10, None), (1, "cd", 0, None), (20, "cd", 0, None), (21, "cd", 0, None)]
    timed = replay_timed(workload_of(rows), LRU, 2, TimedConfig(decode_rate=1.0))
    assert timed.matched.tolist() == [0, 0, 0, 2]
    assert (timed.bypassed, timed.most_held) == (1, 2)


def test_outputs_serve_the_next_turn_as_far_as_it_repeats_them():
    """The first turn's 9 output tokens fill two more blocks of the next prompt; a branch gets none."""
    rows = [(0, "ab", 9, "s"), (5, "abcdef", 4, "s"), (6, "abxy", 9, "t"), (9, "zz", 1, "t")]
    workload = workload_of(rows)
    nodes, offsets, prompts = held_blocks(workload, outputs=True)
    assert np.diff(offsets).tolist() == [4, 6, 4, 2] and prompts.tolist() == [2, 6, 4, 2]
    assert nodes[:4].tolist() == workload.nodes[2:6].tolist()
    assert replay_timed(workload, LRU, 99, TimedConfig(outputs=True)).matched.tolist() == [0, 4, 2, 0]
    assert replay_timed(workload, LRU, 99, TimedConfig()).matched.tolist() == [0, 2, 2, 0]
