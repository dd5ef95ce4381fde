"""Several replicas, each with its own cache, and the router that decides who gets a request.

random, round-robin; sticky: a session stays where its first request went, the replica with the least
prompt tokens so far; hash: rendezvous hashing of the first blocks; prefix: where the longest resident
prefix is, unless that replica already has more than its share of the load; cost: where the tokens to
compute for this request, on top of those computed there so far, are fewest (as NVIDIA Dynamo's router).
"""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import typeof, types
from numpy.typing import NDArray

from kvtool.analysis.replay import LOOP, Schedule, pool_state, serve_one, session_bits, stages
from kvtool.analysis.resident import Resident
from kvtool.analysis.workload import Workload
from kvtool.blocks import namespace
from kvtool.cache.aging import reclassify
from kvtool.cache.core import NODES, STATE, State, compiled, match, new_state
from kvtool.cache.policy import KEY_TYPE, Policy

ROUTINGS = ("random", "round-robin", "sticky", "hash", "prefix", "cost")

BY_PREFIX, BY_COST = -1, -2


@dataclass(frozen=True, slots=True)
class RoutingConfig:
    """hash_blocks: how many first blocks are hashed, and how many a prefix must share to attract a request
    (the very first one is often common to all). bound: a replica whose prompt tokens exceed this multiple
    of the mean takes no request for its prefix's sake (Mirrokni et al., 2018). seed: of `random`.
    ttl, admit: see `replay`."""

    replicas: int = 1
    routing: str = "prefix"
    hash_blocks: int = 2
    bound: float = 1.25
    seed: int = 0
    ttl: float | None = None
    admit: int = 1


@dataclass(frozen=True)
class Routed:
    """matched: blocks found by each request, replica: who served it, both [r]."""

    matched: NDArray[np.int64]
    replica: NDArray[np.int64]

    def load_over_mean(self, computed: NDArray[np.int64], replicas: int) -> float:
        """Computed prompt tokens of the busiest replica over the mean. computed: per request."""
        load = np.bincount(self.replica, weights=computed, minlength=replicas)
        return float(load.max() / load.mean()) if load.any() else 1.0


def replay_replicas(
    workload: Workload,
    policy: Policy | Schedule,
    capacity: int,
    config: RoutingConfig,
    resident: Resident | None = None,
    bits: NDArray[np.uint64] | None = None,
) -> Routed:
    """Replay with `capacity` blocks in all, the same for each replica; each begins with `resident`."""
    chosen = _choose(workload, config)
    matched = np.empty(workload.requests, np.int64)
    bits = session_bits(workload) if bits is None else bits
    load = np.zeros(config.replicas)
    bank = None
    for first, last, stage in stages(policy, workload):
        if bank is None:
            share = capacity // config.replicas
            bank = _bank([pool_state(workload, stage, share, resident) for _ in range(config.replicas)])
        else:
            bank = bank._replace(parameters=np.stack([stage.parameter_array()] * config.replicas))
            for replica in range(config.replicas):
                reclassify(_row(bank, replica), float(workload.clock[first]))
        _replay(
            bank,
            stage.key,
            stage.ages,
            workload.nodes,
            workload.offsets[first : last + 1],
            workload.clock[first:last],
            bits[first:last],
            workload.output_tokens[first:last],
            workload.prompt_tokens[first:last],
            workload.block_size,
            config.hash_blocks,
            config.bound,
            np.inf if config.ttl is None else config.ttl,
            config.admit,
            load,
            chosen[first:last],
            matched[first:last],
        )
    return Routed(matched, chosen)


def _bank(states: list[State]) -> State:
    """A State whose arrays have one row per replica."""
    rows: list[Any] = [np.stack(arrays) for arrays in zip(*states, strict=True)]
    return State(*rows)


def _row(bank: State, replica: int) -> State:
    rows: list[Any] = [array[replica] for array in bank]
    return State(*rows)


def _choose(workload: Workload, config: RoutingConfig) -> NDArray[np.int64]:
    """The replica of each request where it does not depend on what is resident; else BY_PREFIX or BY_COST."""
    match config.routing:
        case "random":
            chance = random.Random(config.seed)
            return np.array([chance.randrange(config.replicas) for _ in range(workload.requests)], np.int64)
        case "round-robin":
            return np.arange(workload.requests) % config.replicas
        case "sticky":
            return _sticky(workload, config.replicas)
        case "hash":
            return _hashed(workload, config)
        case "prefix":
            return np.full(workload.requests, BY_PREFIX)
        case _:
            assert config.routing == "cost"
            return np.full(workload.requests, BY_COST)


def _sticky(workload: Workload, replicas: int) -> NDArray[np.int64]:
    load = [0] * replicas
    home: dict[int, int] = {}
    chosen = np.empty(workload.requests, np.int64)
    for request, (session, tokens) in enumerate(
        zip(workload.session.tolist(), workload.prompt_tokens.tolist(), strict=True)
    ):
        idlest = load.index(min(load))
        replica = idlest if session < 0 else home.setdefault(session, idlest)
        load[replica] += tokens
        chosen[request] = replica
    return chosen


def _hashed(workload: Workload, config: RoutingConfig) -> NDArray[np.int64]:
    """Rendezvous hashing (Thaler and Ravishankar, 1998): a replica that leaves moves only its own keys."""
    heads = workload.offsets[:-1] + np.minimum(workload.lengths, config.hash_blocks) - 1
    keys = np.where(workload.lengths > 0, workload.nodes[np.maximum(heads, 0)], -1).tolist()
    home = {
        node: max(
            range(config.replicas), key=lambda replica: namespace(workload.hash_of(node).hex(), replica)
        )
        for node in set(keys) - {-1}
    }
    return np.array([home.get(node, 0) for node in keys], np.int64)


# All of this is compiled as the core is, without reference counts: a counting caller would give back
# rows of a bank that it never took.
BANK = typeof(_bank([new_state(1, 1, np.zeros(1))]))


@compiled(STATE(BANK, types.int64))
def _replica(bank: Any, replica: Any) -> Any:
    return State(
        bank.parent[replica],
        bank.depth[replica],
        bank.touches[replica],
        bank.last[replica],
        bank.turn[replica],
        bank.sharers[replica],
        bank.stay[replica],
        bank.birth[replica],
        bank.slot[replica],
        bank.pins[replica],
        bank.kids[replica],
        bank.place[replica],
        bank.key[replica],
        bank.owner[replica],
        bank.heap[replica],
        bank.free[replica],
        bank.control[replica],
        bank.age[replica],
        bank.parameters[replica],
        bank.traits[replica],
    )


@compiled(
    types.int64(BANK, NODES, types.float64[::1], types.int64, types.int64, types.float64),
)
def _by_prefix(bank: Any, blocks: Any, load: Any, tokens: Any, least: Any, bound: Any) -> Any:
    """The replica with the longest resident prefix of at least `least` blocks, if its load allows; of
    equals, and where there is none, the one with the least load."""
    best, longest = 0, 0
    limit = bound * (load.sum() + tokens) / load.size
    for replica in range(load.size):
        found = 0
        if load[replica] <= limit:
            found = match(_replica(bank, replica), blocks)
            if found < least:
                found = 0
        if found > longest or (found == longest and load[replica] < load[best]):
            best, longest = replica, found
    return best


@compiled(types.int64(BANK, NODES, types.float64[::1], types.int64))
def _by_cost(bank: Any, blocks: Any, load: Any, block_size: Any) -> Any:
    """The replica with the least load plus tokens to compute; of equals the first."""
    best, least = 0, np.inf
    for replica in range(load.size):
        cost = load[replica] - match(_replica(bank, replica), blocks) * block_size
        if cost < least:
            best, least = replica, cost
    return best


@compiled(
    types.void(
        *(BANK, KEY_TYPE, types.boolean, NODES, *LOOP, types.int64[::1]),
        *(types.int64, types.int64, types.float64, types.float64, types.int64),
        *(types.float64[::1], types.int64[::1], types.int64[::1]),
    )
)
def _replay(
    bank: Any,
    key: Any,
    ages: Any,
    nodes: Any,
    offsets: Any,
    clock: Any,
    bits: Any,
    outputs: Any,
    prompt_tokens: Any,
    block_size: Any,
    least: Any,
    bound: Any,
    ttl: Any,
    admit: Any,
    load: Any,
    chosen: Any,
    matched: Any,
) -> None:
    """load: prompt tokens given to each replica, or by cost those that it had to compute."""
    by_cost = chosen.size > 0 and chosen[0] == BY_COST
    for request in range(clock.size):
        blocks = nodes[offsets[request] : offsets[request + 1]]
        tokens = prompt_tokens[request]
        if chosen[request] == BY_PREFIX:
            chosen[request] = _by_prefix(bank, blocks, load, tokens, least, bound)
        elif chosen[request] == BY_COST:
            chosen[request] = _by_cost(bank, blocks, load, block_size)
        replica = chosen[request]
        now, bit, output = clock[request], bits[request], outputs[request]
        hit = serve_one(_replica(bank, replica), key, ages, blocks, now, bit, output, ttl, admit)
        matched[request] = hit
        load[replica] += max(tokens - hit * block_size, 0) if by_cost else tokens
