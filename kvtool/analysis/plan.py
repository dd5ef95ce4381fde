"""The prewarm plan: which blocks of a log are worth storing under a budget of bytes.

A block's value is what it saves per stored byte: expected hits x FLOPs to compute it given its parent /
bytes. Attention makes a deep block dearer than a shallow one, and a block is of no use without its
parent, so the choice is prefix-closed and takes groups, see `plan_choice`. What a node is expected to be
hit is what the log counted, weighed by the fitted reuse model where there is one, see `expected`.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvtool.analysis.expected import chance_of_use
from kvtool.analysis.flops import TYPICAL, Prefill
from kvtool.analysis.plan_choice import choose
from kvtool.analysis.plan_trie import PlanTrie
from kvtool.analysis.reuse_model import ReuseModel
from kvtool.analysis.text_only import Decode, beyond_text
from kvtool.analysis.workload import Workload
from kvtool.errors import KvtoolError

TIERS = ("device", "host", "disk")
"""Where a planned block is kept, fastest first. All of them stand in the shards, on disk."""

EVERY = ""
"""In place of a tenant's name: each tenant that has no budget of its own."""


@dataclass(frozen=True)
class PlanConfig:
    """budgets: bytes by tier; disk limits the shards, device and host what of them is kept in memory, where
    blocks are not coded. tenants: bytes of shards by tenant, EVERY for those not named. min_requests:
    fewer users, not stored."""

    budgets: Mapping[str, int] = field(default_factory=dict)
    min_requests: int = 2
    tenants: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """n blocks in storage order: depth first, so that chains stand together, see `_storage_order`.

    node: the block's number among all blocks of the log, the same in every plan of it. parent: row in this
    plan, -1 for a first block. tokens: uint32 [n, block_size]. hits: requests of the log that would use the
    block; expected: the same of as much traffic to come. tenant: index into `tenants`. bytes: stored size of
    each block. flops: what computing it costs when its parent is there. tier: index into TIERS.
    """

    block_size: int
    node: NDArray[np.int64]
    tenants: Sequence[str]
    tenant: NDArray[np.int32]
    parent: NDArray[np.int64]
    depth: NDArray[np.int32]
    tokens: NDArray[np.uint32]
    hits: NDArray[np.int64]
    expected: NDArray[np.float64]
    bytes: NDArray[np.int64]
    flops: NDArray[np.float64]
    tier: NDArray[np.int8]
    forecast: "Forecast"

    def __len__(self) -> int:
        return len(self.parent)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the plan would have done for the very log it was made from, and what it is expected to do.

    hit_rate: prompt tokens served by the stored blocks / prompt tokens, over the whole log.
    hit_rate_cached: the same with an unbounded cache that also keeps what it computes.
    hit_rate_cold: that cache without the stored blocks.
    hit_rate_expected: the stored blocks' over as much traffic to come; None without a reuse model.
    tokens: distinct tokens of the planned prefixes, each of which is computed once.
    tokens_unshared: what the same prefixes cost when every request computes its own.
    flops_saved: prefill that the stored blocks are expected to save, over as much traffic as the log.
    split_tokens: copies that are stored because prompts part inside a block.
    too_deep: blocks left out because they lie beyond the model's positions.
    not_text: blocks left out because they hold or follow a part of a prompt that is not text.
    over_budget, under_used: blocks left out by --budget and by --min-requests.
    """

    prompt_tokens: int
    hit_rate: float
    hit_rate_cached: float
    hit_rate_cold: float
    hit_rate_expected: float | None
    tokens: int
    tokens_unshared: int
    flops_saved: float
    split_tokens: int
    too_deep: int
    not_text: int
    over_budget: int
    under_used: int


class Planner:
    """Plans of one workload for one model; what they choose from is found once.

    memory_bytes: a block's size in the device's and the host's tier. decode: how token ids read; with it,
    blocks that hold or follow a part that is not text are left out.

    Spaces that differ only in the model named in the log are one: the blocks are computed by our model
    whatever the log's was. Tenants stay apart. Raises KvtoolError for a log without tokens.
    """

    def __init__(
        self,
        workload: Workload,
        max_positions: int,
        *,
        prefill: Prefill = TYPICAL,
        reuse: ReuseModel | None = None,
        memory_bytes: int = 0,
        decode: Decode | None = None,
    ) -> None:
        if workload.ready_made:
            raise KvtoolError(
                "the log holds block ids, not tokens: there is nothing to compute",
                "prewarm from a log of prompts",
            )
        self._reuse = reuse
        self._memory_bytes = memory_bytes
        self._prompt_tokens = int(workload.prompt_tokens.sum())
        self._decode = decode
        self._trie = PlanTrie(workload, None if reuse is None else chance_of_use(workload, reuse))
        self._in_reach = self._trie.depth < max_positions // workload.block_size
        self._depths = np.arange(int(self._trie.depth.max(initial=0)) + 1)
        self._flops = prefill.block_cost(self._depths, workload.block_size)[self._trie.depth]
        self._not_text: dict[int, NDArray[np.bool_]] = {}

    def plan(
        self,
        config: PlanConfig,
        block_bytes: Callable[[int], int],
        among: Plan | None = None,
        beside: NDArray[np.int64] | int = 0,
    ) -> Plan:
        """Choose blocks. `block_bytes` is the stored size of a block at a depth. `among`: an earlier plan of
        the same workload; only its blocks are chosen from, and each takes the bytes that it has there.
        `beside`: what each of these takes of the shards' budgets beyond its own bytes."""
        trie, in_reach, flops = self._trie, self._in_reach, self._flops
        used = trie.hits >= config.min_requests
        not_text = self._beyond_text(config.min_requests)
        wanted = in_reach & used & ~not_text
        able = wanted
        sizes = np.array([block_bytes(depth) for depth in self._depths.tolist()], np.int64)[trie.depth]
        taken = sizes + beside if among is None else sizes.copy()
        if among is not None:
            able = np.zeros_like(wanted)
            able[among.node] = True
            sizes[among.node] = among.bytes
            taken[among.node] = among.bytes + beside
        value = trie.expected * flops
        chosen = _choose(trie, config, able, value, taken)
        tier = _tiers(trie, config, chosen, value, self._memory_bytes)
        order = _storage_order(trie, chosen)
        row = np.full(len(trie.parent) + 1, -1, np.int64)
        row[order] = np.arange(len(order))
        tokens = trie.tokens[order]
        split = _split_tokens(row[trie.parent[order]], trie.tenant[order], tokens)
        served = float(trie.expected[order].sum()) * trie.block_size
        return Plan(
            block_size=trie.block_size,
            node=order,
            tenants=trie.tenants,
            tenant=trie.tenant[order],
            parent=row[trie.parent[order]],
            depth=trie.depth[order],
            tokens=tokens,
            hits=trie.hits[order],
            expected=trie.expected[order],
            bytes=sizes[order],
            flops=flops[order],
            tier=tier[order],
            forecast=Forecast(
                prompt_tokens=self._prompt_tokens,
                hit_rate=trie.hit_rate(chosen),
                hit_rate_cached=trie.hit_rate(chosen, grows=True),
                hit_rate_cold=trie.hit_rate(np.zeros_like(chosen), grows=True),
                hit_rate_expected=served / self._prompt_tokens if self._reuse is not None else None,
                tokens=len(order) * trie.block_size - split,
                tokens_unshared=int(trie.hits[order].sum()) * trie.block_size,
                flops_saved=float((trie.expected[order] * flops[order]).sum()),
                split_tokens=split,
                too_deep=int((used & ~in_reach).sum()),
                not_text=int((used & in_reach & not_text).sum()),
                over_budget=int((wanted & ~chosen).sum()),
                under_used=int((in_reach & ~used).sum()),
            ),
        )

    def _beyond_text(self, least: int) -> NDArray[np.bool_]:
        """Of blocks that `least` requests use, those that are not text or follow what is not."""
        if least not in self._not_text:
            used = self._trie.hits >= least
            none = np.zeros_like(used)
            self._not_text[least] = beyond_text(self._trie, used, self._decode) if self._decode else none
        return self._not_text[least]


def make_plan(
    workload: Workload,
    config: PlanConfig,
    block_bytes: Callable[[int], int],
    max_positions: int,
    *,
    prefill: Prefill = TYPICAL,
    reuse: ReuseModel | None = None,
    memory_bytes: int = 0,
) -> Plan:
    """One plan of `workload`, see `Planner`."""
    planner = Planner(workload, max_positions, prefill=prefill, reuse=reuse, memory_bytes=memory_bytes)
    return planner.plan(config, block_bytes)


def _choose(
    trie: PlanTrie,
    config: PlanConfig,
    wanted: NDArray[np.bool_],
    value: NDArray[np.float64],
    sizes: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """What the shards will hold."""
    if "disk" not in config.budgets and not config.tenants:
        return wanted.copy()  # hits fall along a chain, so what is wanted is prefix-closed
    strangers = sorted(set(config.tenants) - {EVERY, *trie.tenants})
    if strangers:
        known = ", ".join(name for name in trie.tenants[:5] if name) or "none"
        raise KvtoolError(f"--tenant-budget: the log has no tenant '{strangers[0]}'", f"it has {known}")
    every = config.tenants.get(EVERY, np.inf)
    quotas = np.array([config.tenants.get(name, every) for name in trie.tenants], np.float64)
    budget = config.budgets.get("disk", int(sizes.sum()))
    return choose(trie.parent, trie.depth, value, sizes, wanted, budget, trie.tenant, quotas)


def _tiers(
    trie: PlanTrie,
    config: PlanConfig,
    chosen: NDArray[np.bool_],
    value: NDArray[np.float64],
    memory_bytes: int,
) -> NDArray[np.int8]:
    """The fastest tier that has room for a block; its parent is in the same one or a faster."""
    tier = np.full(len(chosen), TIERS.index("disk"), np.int8)
    sizes = np.full(len(chosen), memory_bytes, np.int64)
    open_ended = np.full(len(trie.tenants), np.inf)
    above = np.zeros(len(chosen) + 1, np.bool_)
    for number, name in enumerate(TIERS[:-1]):
        if name in config.budgets:
            rest = chosen & ~above[:-1]
            parent = np.where(above[trie.parent], -1, trie.parent)
            budget = config.budgets[name]
            kept = choose(parent, trie.depth, value, sizes, rest, budget, trie.tenant, open_ended)
            tier[kept] = number
            above[:-1] |= kept
    return tier


def _children(parent: NDArray[np.int64], kept: NDArray[np.bool_]) -> defaultdict[int, list[int]]:
    """Children of every kept node that are kept too, ascending; at -1 the first blocks."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for node in np.flatnonzero(kept).tolist():
        children[int(parent[node])].append(node)
    return children


def _storage_order(trie: PlanTrie, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Chosen nodes depth first. Siblings follow the trie of their tokens, the most used branch first.

    So a hot chain is one run, and a block finds what it shares with any earlier sibling in the sibling
    just before it.
    """
    children = _children(trie.parent, chosen)
    order: list[int] = []
    stack = [-1]
    while stack:
        node = stack.pop()
        if node >= 0:
            order.append(node)
        stack.extend(reversed(_ranked(trie, children[node])))
    return np.array(order, np.int64)


def _ranked(trie: PlanTrie, siblings: list[int]) -> list[int]:
    """Siblings grouped by tenant, then by each token in turn; groups of more hits first, then lower ids."""
    stack = [(siblings, -1)]
    order: list[int] = []
    while stack:
        nodes, place = stack.pop()
        if len(nodes) <= 1:
            order.extend(nodes)
            continue
        groups: dict[int, list[int]] = {}
        for node in nodes:
            groups.setdefault(int(trie.tenant[node] if place < 0 else trie.tokens[node, place]), []).append(
                node
            )
        ranked = sorted(groups.values(), key=lambda group: (-int(trie.hits[group].sum()), group[0]))
        stack.extend((group, place + 1) for group in reversed(ranked))
    return order


def behind_public(plan: Plan) -> int:
    """Blocks of tenants whose prompts begin with a block that is stored for no tenant.

    A server takes what is public from there, and gives what follows other names than the tenant's own.
    """
    public = {
        tokens.tobytes()
        for tokens, parent, tenant in zip(plan.tokens, plan.parent, plan.tenant, strict=True)
        if parent < 0 and not plan.tenants[tenant]
    }
    behind = np.zeros(len(plan), bool)
    for row, parent in enumerate(plan.parent.tolist()):
        first = plan.tenants[plan.tenant[row]] and plan.tokens[row].tobytes() in public
        behind[row] = bool(first) if parent < 0 else behind[parent]
    return int(behind.sum())


def _split_tokens(parent: NDArray[np.int64], tenant: NDArray[np.int32], tokens: NDArray[np.uint32]) -> int:
    """Leading tokens that sibling blocks have in common, each counted once less than it is stored."""
    families: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for above, owner, block in zip(parent.tolist(), tenant.tolist(), tokens, strict=True):
        families.setdefault((above, owner), []).append(tuple(block.tolist()))
    wasted = 0
    for blocks in families.values():
        blocks.sort()
        for left, right in pairwise(blocks):
            wasted += next(at for at, (a, b) in enumerate(zip(left, right, strict=True)) if a != b)
    return wasted
