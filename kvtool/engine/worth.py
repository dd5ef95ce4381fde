"""A plan with its prices on a machine: a tier pays only where loading is faster than computing."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtool.analysis.load_or_compute import Speeds, Way, seconds_saved, ways
from kvtool.analysis.plan import TIERS, Plan, PlanConfig, Planner
from kvtool.analysis.reuse_model import ReuseModel
from kvtool.analysis.workload import Workload
from kvtool.engine.compute.arena import block_bytes as memory_of
from kvtool.engine.compute.cost import prefill_of
from kvtool.engine.compute.model import Model
from kvtool.engine.storage.codec import BlockCodec, block_bytes
from kvtool.engine.storage.footprint import beside_block, beside_blocks
from kvtool.engine.storage.identity import Identity
from kvtool.engine.storage.layout import BlockShape
from kvtool.errors import KvtoolError
from kvtool.report import Column, Table


@dataclass(frozen=True)
class Priced:
    """ways: none for an empty plan. seconds_saved: of prefill, over as much traffic as the log.
    unused: memory tiers whose budget was not used, since loading from them would be slower.
    first_bytes: what files with one block, a prompt's first, take."""

    plan: Plan
    speeds: Speeds
    ways: list[Way]
    seconds_saved: float
    unused: tuple[str, ...]
    first_bytes: int

    def emptiness(self) -> tuple[str, str] | None:
        """Why nothing is worth storing and what to do about it; None if something is."""
        left = self.plan.forecast
        if len(self.plan):
            return None
        if left.over_budget:
            return "no block fits --budget", f"with one block the files take {self.first_bytes:,} bytes"
        if left.under_used:
            return (
                "no block is used by --min-requests requests of the log",
                "kvtool analyze LOG says what keeps prompts apart; --min-requests 1 stores every block",
            )
        if left.not_text:
            return (
                "every block holds or follows a part that is not text",
                "prewarm a log whose prompts begin with text",
            )
        if left.too_deep:
            return "every block lies beyond the model's positions", "name another --model"
        size = self.plan.block_size
        return f"no prompt is longer than a block of {size} tokens", "give a smaller --block-size"

    def require_gain(self, codec: str) -> None:
        """KvtoolError where there is nothing to store, or shards would make serving slower."""
        empty = self.emptiness()
        if empty is not None:
            raise KvtoolError(f"nothing to prewarm, the plan is empty: {empty[0]}", empty[1])
        for way in self.ways:
            if way.tier == "disk" and not way.pays:
                raise KvtoolError(
                    f"--codec {codec}: a token takes {way.load * 1e6:.0f} µs to load from disk and "
                    f"{way.compute * 1e6:.0f} µs to compute: these shards would slow a server down",
                    "another codec or disk, or --prefill-rate and --tier-speed of the machine that serves",
                )

    def to_json(self) -> dict[str, Any]:
        """`load_or_compute` of kvtool.prewarm/1."""
        return {
            "tiers": [
                {
                    "tier": way.tier,
                    "bytes_per_token": way.bytes_per_token,
                    "bytes_per_second": way.bytes_per_second,
                    "load_seconds_per_token": way.load,
                    "compute_seconds_per_token": way.compute,
                    "pays": way.pays,
                }
                for way in self.ways
            ],
            "decode_seconds_per_token": self.speeds.decode / self.plan.block_size,
            "seconds_saved": self.seconds_saved,
            "unused": list(self.unused),
        }

    def table(self) -> Table:
        """The arithmetic, for people."""
        return Table(
            "Load or compute, per token",
            [
                Column("from"),
                Column("bytes", "count"),
                Column("a second", "bytes"),
                Column("load µs"),
                Column("compute µs"),
                Column("faster by"),
            ],
            [
                [
                    way.tier,
                    round(way.bytes_per_token),
                    round(way.bytes_per_second),
                    f"{way.load * 1e6:,.1f}",
                    f"{way.compute * 1e6:,.1f}",
                    f"{way.compute / way.load:,.1f}x" if way.pays else "slower: not used",
                ]
                for way in self.ways
            ],
        )


@dataclass(frozen=True)
class Prices:
    """Plans of a log for a model, and what loading their blocks costs beside computing them with `speeds`."""

    workload: Workload
    model: Model
    speeds: Speeds
    reuse: ReuseModel | None = None

    @cached_property
    def shape(self) -> BlockShape:
        """Of a block of the model's."""
        return Identity.of_model(self.model, self.workload.block_size).shape

    @cached_property
    def _memory(self) -> int:
        return memory_of(self.model, self.workload.block_size)

    @cached_property
    def _planner(self) -> Planner:
        return Planner(
            self.workload,
            self.model.config.max_positions,
            prefill=prefill_of(self.model),
            reuse=self.reuse,
            memory_bytes=self._memory,
            decode=self.model.encoder.tokenizer.decode,
        )

    def plan(
        self,
        config: PlanConfig,
        codec: BlockCodec,
        among: Plan | None = None,
        beside: NDArray[np.int64] | int | None = None,
    ) -> Priced:
        """Plan with blocks of `codec`, or with those of `among` as they are there. beside: what each of those
        takes in header and index. Those count as the shards', and so does what a folder takes once."""
        once = 0
        if "disk" in config.budgets:
            whole = config.budgets["disk"]
            once = beside_blocks(whole, {tenant or "" for _, tenant in self.workload.spaces})
            config = replace(config, budgets={**config.budgets, "disk": max(whole - once, 0)})
        if beside is None:
            beside = max(beside_block(codec, self.shape, first) for first in (False, True))

        def planned(limits: PlanConfig) -> Plan:
            def size(depth: int) -> int:
                return block_bytes(codec, self.shape, depth == 0)

            return self._planner.plan(limits, size, among, beside)

        speeds = self.speeds
        first_bytes = block_bytes(codec, self.shape, first=True)
        if among is not None and len(among):
            first_bytes = int(among.bytes[among.depth == 0].min())
        first_bytes += int(np.min(beside)) + once if np.size(beside) else once
        plan = planned(config)
        if not len(plan):
            return Priced(plan, speeds, [], 0.0, (), first_bytes)
        found = ways(plan, speeds, self._memory)
        slow = {way.tier for way in found if not way.pays}
        unused = tuple(name for name in TIERS[:-1] if name in slow and name in config.budgets)
        if unused:
            kept = {name: size for name, size in config.budgets.items() if name not in unused}
            plan = planned(replace(config, budgets=kept))
        return Priced(plan, speeds, found, seconds_saved(plan, speeds, found), unused, first_bytes)


def shares_json(plan: Plan) -> dict[str, Any]:
    """Fields `tiers` and `tenants` of `plan` in kvtool.prewarm/1: who and what gets which part."""
    total = plan.forecast.prompt_tokens
    tiers = []
    for number, name in enumerate(TIERS):
        here = plan.tier == number
        served = int(plan.hits[here].sum()) * plan.block_size
        tiers.append({"tier": name, "blocks": int(here.sum()), "hit_rate": round(served / max(total, 1), 6)})
    tenants = []
    for number, name in enumerate(plan.tenants):
        own = plan.tenant == number
        tenants.append({"tenant": name, "blocks": int(own.sum()), "bytes": int(plan.bytes[own].sum())})
    return {"tiers": tiers, "tenants": tenants}


def shares_tables(plan: dict[str, Any]) -> list[Table]:
    """The same for people, where there is more than one."""
    tables = []
    if len([row for row in plan["tiers"] if row["blocks"]]) > 1:
        rows = [[row["tier"], row["blocks"], f"{row['hit_rate']:.1%}"] for row in plan["tiers"]]
        tables.append(
            Table("Where it is kept", [Column("tier"), Column("blocks", "count"), Column("serves")], rows)
        )
    if len(plan["tenants"]) > 1:
        rows = [[row["tenant"], row["blocks"], row["bytes"]] for row in plan["tenants"]]
        columns = [Column("tenant"), Column("blocks", "count"), Column("size", "bytes")]
        tables.append(Table("By tenant", columns, rows))
    return tables
