"""What `simulate` replays is what `serve` did: the runtime's stream, run again through a fresh pool."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvtool.cache.policies import POLICIES, fitted
from kvtool.cache.policy import Policy
from kvtool.cache.pool import Lease
from kvtool.cache.reuse_table import DEPTH, OUTPUT, USES, ReuseTable
from kvtool.cache.tiers import Staging, Tier, TieredLease, TieredPool
from kvtool.engine.compute.sampler import GREEDY
from kvtool.engine.serving.choosing import Rules
from kvtool.engine.serving.chunking import Limits

Make = Callable[..., Any]

TABLE = ReuseTable(
    tree=np.array(
        [
            [USES, 0, 1, 2],
            [DEPTH, 1, 3, 4],
            [OUTPUT, 0, 5, 6],
            *([-1, kind, 0, 0] for kind in range(4)),
        ]
    ),
    edges=np.array([20.0, 60.0]),
    worth=np.array([[0.5, 0.2, 0.01], [0.1, 0.3, 0.02], [0.4, 0.05, 0.25], [0.2, 0.35, 0.1]]),
    partial_ends=False,
)
"""Classes by uses, depth and whether the answer's length is known; the clock ticks a few times a request."""


class Recorded(TieredPool):
    """Writes down what the runtime asks of its pool and what it got, and every block that left a tier."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.script: list[tuple[Any, ...]] = []
        self.left: list[tuple[int, Tier, int]] = []
        self._leases: list[Lease] = []
        self._stagings: list[Staging] = []

    def add_node(self, parent: int, shard_row: int = -1) -> int:
        self.script.append(("add_node", parent))
        return super().add_node(parent, shard_row)

    def acquire(self, nodes: list[int], want: int, now: float, session: Any = None, most: Any = None) -> Any:
        lease = super().acquire(nodes, want, now, session, most)
        assert lease is not None
        self._leases.append(lease)
        got = (lease.hit, list(lease.slots), list(lease.loads))
        self.script.append(("acquire", len(self._leases) - 1, list(nodes), want, now, session, most, got))
        return lease

    def settle(self, lease: TieredLease, loaded: int, bad: bool = True) -> None:
        self.script.append(("settle", self._number(lease), loaded, bad))
        super().settle(lease, loaded, bad)

    def extend(self, lease: TieredLease, blocks: int) -> bool:
        done = super().extend(lease, blocks)
        self.script.append(("extend", self._number(lease), blocks, done, list(lease.slots)))
        return done

    def append(self, lease: TieredLease, node: int, now: float, session: Any = None) -> None:
        self.script.append(("append", self._number(lease), node, now, session))
        super().append(lease, node, now, session)

    def commit(self, lease: TieredLease, upto: int) -> None:
        super().commit(lease, upto)
        self.script.append(("commit", self._number(lease), upto, list(lease.slots)))

    def release(self, lease: TieredLease, output_tokens: int = -1) -> None:
        self.script.append(("release", self._number(lease), output_tokens))
        super().release(lease, output_tokens)

    def stage(self, nodes: list[int], most: int) -> Staging:
        staging = super().stage(nodes, most)
        self._stagings.append(staging)
        got = list(staging.moves), list(staging.held)
        self.script.append(("stage", len(self._stagings) - 1, list(nodes), most, got))
        return staging

    def land(self, staging: Staging, count: int) -> None:
        self.script.append(("land", self._which(staging), count))
        super().land(staging, count)

    def abandon(self, staging: Staging) -> None:
        self.script.append(("abandon", self._which(staging)))
        super().abandon(staging)

    def unstage(self, staging: Staging) -> None:
        self.script.append(("unstage", self._which(staging)))
        super().unstage(staging)

    def _which(self, staging: Staging) -> int:
        return next(at for at, one in enumerate(self._stagings) if one is staging)

    def _number(self, lease: Lease) -> int:
        return next(at for at, one in enumerate(self._leases) if one is lease)

    def _demote(self, node: int, tier: Tier, slot: int) -> None:
        self.left.append((node, tier, slot))
        super()._demote(node, tier, slot)


def play(script: list[tuple[Any, ...]], fresh: TieredPool, answers: bool = True) -> None:
    """Ask `fresh` what the runtime asked its pool; each reply must be the one that was written down.

    answers: whether the pool is told how long answers were, as the runtime told its own.
    """
    leases: list[TieredLease] = []
    stagings: list[Staging] = []
    for kind, *rest in script:
        if kind == "add_node":
            fresh.add_node(rest[0])
        elif kind == "acquire":
            number, nodes, want, now, session, most, got = rest
            lease = fresh.acquire(nodes, want, now, session, most)
            assert lease is not None and number == len(leases)
            assert (lease.hit, lease.slots, lease.loads) == got
            leases.append(lease)
        elif kind == "stage":
            staging = fresh.stage(*rest[1:3])
            assert (staging.moves, staging.held) == rest[3]
            stagings.append(staging)
        elif kind in ("land", "abandon", "unstage"):
            getattr(fresh, kind)(stagings[rest[0]], *rest[1:])
        elif kind == "settle":
            fresh.settle(leases[rest[0]], *rest[1:])
        elif kind == "extend":
            assert fresh.extend(leases[rest[0]], rest[1]) == rest[2]
            assert leases[rest[0]].slots == rest[3]
        elif kind == "append":
            fresh.append(leases[rest[0]], *rest[1:])
        elif kind == "commit":
            fresh.commit(leases[rest[0]], rest[1])
            assert leases[rest[0]].slots == rest[2]
        else:
            fresh.release(leases[rest[0]], rest[1] if answers else -1)


def serve(fake_engine: Make, policy: Policy, device: int, host: int, ahead: bool = False) -> Recorded:
    """A server's life of forty requests of four sessions, three at a time."""
    pool = Recorded(policy, device, host)
    engine = fake_engine(device=device, pool=pool, limits=Limits(16, 3), ahead=ahead)
    for number in range(40):
        prompt = [number % 3] * (5 + number % 7) + [number % 5, number % 2, 9]
        engine.ask(prompt, 6, session=f"s{number % 4}", choose=Rules(GREEDY) if ahead else None)
        if number % 3:
            engine.scheduler.step()
    engine.run()
    return pool


POLICIES_RUN = {
    "lru": POLICIES.load("lru"),
    "cost": POLICIES.load("cost"),
    "fitted": fitted.by_table(TABLE, 4),
}


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("host", [0, 6])
@pytest.mark.parametrize("name", POLICIES_RUN)
def test_the_runtimes_stream_in_a_fresh_pool_gives_the_same_leases_and_evictions(
    fake_engine: Make, name: str, host: int, ahead: bool
) -> None:
    """Same hits, same slots, same loads, same evictions in the same order, same state to the last bit."""
    pool = serve(fake_engine, POLICIES_RUN[name], 12, host, ahead)
    leases = [step[-1] for step in pool.script if step[0] == "acquire"]
    assert len(leases) >= 40
    assert sum(hit for hit, _, _ in leases) > 0, "a replay without hits proves nothing"
    assert len([1 for _, tier, _ in pool.left if tier is Tier.DEVICE]) > 40
    assert any(loads for _, _, loads in leases) == bool(host)
    assert {step[2] for step in pool.script if step[0] == "release"} > {-1, 6}, "answers' lengths are told"

    fresh = Recorded(POLICIES_RUN[name], 12, host)
    play(pool.script, fresh)
    assert fresh.left == pool.left
    assert fresh.lost == pool.lost > 0
    pairs = [(fresh.device, pool.device), *((fresh.lower[tier], pool.lower[tier]) for tier in pool.lower)]
    for ours, theirs in pairs:
        for mine, other in zip(ours.state, theirs.state, strict=True):
            assert (mine == other).all()


def test_other_policies_and_other_answers_would_be_noticed(fake_engine: Make) -> None:
    """The streams above tell the policies apart, and `fitted` uses the lengths it is told."""
    left = {name: serve(fake_engine, policy, 12, 0).left for name, policy in POLICIES_RUN.items()}
    assert left["lru"] != left["fitted"] and left["lru"] != left["cost"] and left["cost"] != left["fitted"]
    pool = serve(fake_engine, POLICIES_RUN["fitted"], 12, 0)
    deaf = Recorded(POLICIES_RUN["fitted"], 12)
    with pytest.raises(AssertionError):
        play(pool.script, deaf, answers=False)
        assert deaf.left == pool.left
