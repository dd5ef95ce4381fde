"""The report page of a prewarm plan or run: what is stored, what it buys, and how exactly it is kept."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtool.analysis.analysis_page import SHOWN, SHOWN_TOKENS, files
from kvtool.analysis.branches import branches
from kvtool.analysis.next_steps import command
from kvtool.analysis.plan import Plan
from kvtool.analysis.prefixes import usage
from kvtool.analysis.workload import Workload
from kvtool.engine.allocation import PROTECTED
from kvtool.engine.compute.model import Model
from kvtool.engine.prewarm import plan_hashes
from kvtool.engine.storage.identity import Identity
from kvtool.engine.storage.index import BlockRow
from kvtool.engine.storage.shards import open_shards
from kvtool.page import Branch, Figure, Page, Step, Storage, StoredBlock
from kvtool.tokens import PromptEncoder

CELLS = 320
"""Cells of the heat strip at most, where codec and protection do not cut more."""
POINTS = 160
"""Points of the curve of value."""


def stored_page(
    plan: Plan,
    data: Mapping[str, Any],
    workload: Workload,
    model: Model,
    folder: Path | None,
    arguments: Sequence[str],
    budget: int | None,
    *,
    protects: bool,
    hide: Callable[[str], str] | None,
) -> Page:
    """`prewarm_page` of a plan, or where a run was made of what `folder` holds of it. protects: whether roles
    keep blocks in 16 bits."""
    identity = Identity.of_model(model, plan.block_size)
    index = open_shards(folder).index if folder is not None and "tokens_computed" in data else {}
    rows = [index.get(name) for name in plan_hashes(plan, identity)]
    kept = [protects and row is not None and row.codec == PROTECTED for row in rows]
    return prewarm_page(
        plan,
        data,
        workload,
        model.encoder,
        rows,
        identity.shape.elements,
        np.array(kept, np.bool_),
        arguments,
        budget,
        hide,
    )


def prewarm_page(
    plan: Plan,
    data: Mapping[str, Any],
    workload: Workload,
    encoder: PromptEncoder,
    stored: Sequence[BlockRow | None],
    elements: int,
    protected: NDArray[np.bool_],
    arguments: Sequence[str],
    budget: int | None,
    hide: Callable[[str], str] | None,
) -> Page:
    """The page of `data`, the document of kvtool.prewarm/1.

    stored: for each row of the plan its block on disk, None where there is none (yet). elements: numbers in
    a block. protected: rows that no lossy codec may touch. arguments: of the command, to run it again.
    hide: see `analysis_page`.
    """
    plan = _as_stored(plan, stored)
    gate = data.get("gate")
    title = "Prewarm plan" if data["dry_run"] else "Prewarmed shards"
    if gate is not None and not gate["holds"]:
        title = "Nothing stored: the gate does not hold"
    name = files([argument for argument in arguments if not argument.startswith("--")][:1])
    return Page(
        title=title,
        subtitle=f"{name}: {len(plan):,} blocks of {plan.block_size} tokens for {data['model']['name']}, "
        f"codec {data['codec']}",
        figures=_figures(data, stored),
        redacted=hide is not None,
        block_size=plan.block_size,
        trie=_trie(plan, workload, encoder, hide),
        storage=Storage(_cells(plan, stored, elements, protected, data["codec"]), _value(plan), budget),
        steps=_steps(data, arguments),
    )


def _as_stored(plan: Plan, stored: Sequence[BlockRow | None]) -> Plan:
    """The plan with the bytes that blocks took, where they are there."""
    planned = plan.bytes.tolist()
    sizes = [size if row is None else row.bytes for size, row in zip(planned, stored, strict=True)]
    return replace(plan, bytes=np.array(sizes, np.int64))


def _figures(data: Mapping[str, Any], stored: Sequence[BlockRow | None]) -> list[Figure]:
    plan = data["plan"]
    ran = "tokens_computed" in data
    size = data if ran else plan
    rates, bits = plan["hit_rate"], size["bits_per_element"]
    figures = [
        Figure(
            "Hit rate from the shards",
            f"{rates['tokens']:.1%}",
            f"predicted on this log; {rates['with_cache']:.1%} with a cache too, "
            f"{rates['cache_alone']:.1%} with the cache alone",
            strong=True,
        ),
        Figure(
            "Computed" if ran else "To compute",
            f"{plan['tokens']:,}",
            f"tokens, each once, instead of {plan['tokens_unshared']:,} without sharing",
        ),
        Figure(
            "On disk",
            f"{size['bytes'] / 2**20:,.1f} MiB",
            f"{size['blocks']:,} blocks" + ("" if bits is None else f", {bits:.2f} bits an element"),
        ),
    ]
    gate = data.get("gate")
    if gate is not None:
        told = f"mean KL {gate['kl']:.1e} of {gate['max_kl']:.1e} over {gate['continuations']} continuations"
        if gate["calls"]:
            told += f", {gate['calls_unchanged']} of {gate['calls']} greedy tool calls unchanged"
        figures.append(Figure("Gate", "holds" if gate["holds"] else "does not hold", told))
    saved = data["load_or_compute"]["seconds_saved"]
    figures.append(Figure("Prefill saved", f"{saved:,.1f} s", "expected over as much traffic again"))
    measured = [row.kl for row in stored if row is not None and row.kl is not None]
    if measured:
        worst = (
            f"on average, {max(measured):.1e} at most; {len(measured):,} of {len(stored):,} blocks measured"
        )
        figures.append(Figure("KL of a block", f"{sum(measured) / len(measured):.1e}", worst))
    return figures


def _cells(
    plan: Plan,
    stored: Sequence[BlockRow | None],
    elements: int,
    protected: NDArray[np.bool_],
    codec: str,
) -> list[StoredBlock]:
    """Consecutive rows of one codec and one protection, so many to a cell that all fit."""
    size = max(-(-len(plan) // CELLS), 1)
    codecs = [codec if row is None else row.codec for row in stored]
    cells = []
    first = 0
    for row in range(1, len(plan) + 1):
        same = row < len(plan) and codecs[row] == codecs[first] and protected[row] == protected[first]
        if same and row - first < size:
            continue
        known = [one.kl for one in stored[first:row] if one is not None and one.kl is not None]
        total = int(plan.bytes[first:row].sum())
        cells.append(
            StoredBlock(
                blocks=row - first,
                depth=int(plan.depth[first]),
                requests=int(plan.hits[first]),
                bytes=total,
                bits=round(8 * total / (elements * (row - first)), 4),
                kl=max(known) if known else None,
                protected=bool(protected[first]),
                codec=codecs[first],
            )
        )
        first = row
    return cells


def _value(plan: Plan) -> list[tuple[int, int]]:
    """(bytes, prompt tokens of the log that they serve), blocks taken by their worth per byte."""
    worth = plan.expected * plan.flops / np.maximum(plan.bytes, 1)
    order = np.lexsort((plan.depth, -worth))
    size = np.cumsum(plan.bytes[order])
    saved = np.cumsum(plan.hits[order] * plan.block_size)
    places = np.unique(np.linspace(0, len(order) - 1, min(len(order), POINTS)).round().astype(np.int64))
    return [(0, 0), *((int(size[at]), int(saved[at])) for at in places)] if len(order) else []


def _trie(
    plan: Plan, workload: Workload, encoder: PromptEncoder, hide: Callable[[str], str] | None
) -> list[Branch]:
    users = session_counts(plan, workload)

    def text(head: int, last: int) -> str:
        rows = [last]
        while rows[-1] != head:
            rows.append(int(plan.parent[rows[-1]]))
        shown = rows[::-1][: -(-SHOWN_TOKENS // plan.block_size)]
        own = encoder.tokenizer.decode(plan.tokens[shown].ravel().tolist())[:SHOWN]
        return hide(own) if hide is not None and users[head] < 2 else own

    return branches(
        plan.parent.astype(np.int32),
        plan.depth,
        np.ones(len(plan), np.int32),
        plan.hits,
        users,
        plan.block_size,
        text,
    )


def session_counts(plan: Plan, workload: Workload) -> NDArray[np.int64]:
    """Sessions that use each row of the plan, int64 [n]; of a block that several models use, the most."""
    known = {
        (parent, tenant, tokens.tobytes()): row
        for row, (parent, tenant, tokens) in enumerate(
            zip(plan.parent.tolist(), plan.tenant.tolist(), plan.tokens, strict=True)
        )
    }
    tenants = {name: number for number, name in enumerate(plan.tenants)}
    tenant_of = [tenants[tenant or ""] for _, tenant in workload.spaces]
    sessions = usage(workload).sessions
    counts = np.zeros(len(plan), np.int64)
    row_of = np.full(len(workload.parent) + 1, -1, np.int64)  # [-1]: above a first block
    for node, (parent, space) in enumerate(
        zip(workload.parent.tolist(), workload.node_space.tolist(), strict=True)
    ):
        above = int(row_of[parent])
        row = known.get((above, tenant_of[space], workload.words[node].tobytes())) if above >= -1 else None
        row_of[node] = -2 if row is None else row
        if row is not None:
            counts[row] = max(counts[row], sessions[node])
    return counts


def _steps(data: Mapping[str, Any], arguments: Sequence[str]) -> list[Step]:
    if data["dry_run"]:
        run = "Compute and store what is planned. An interrupted run resumes."
        return [Step("Run it", run, command("prewarm", *arguments))]
    if "tokens_computed" not in data:
        again = (
            "With a codec of more bits, or a larger --max-kl; auto climbs to the bits that each block needs."
        )
        return [Step("Run it anew", again, command("prewarm", *arguments))]
    out = str(data["out"])
    return [
        Step("Check every byte", "Digests and checksums of all shards.", command("shards", "verify", out)),
        Step("Serve from them", "The hot prefixes are in the cache before the first request.",
             command("serve", "--shards", out)),
    ]  # fmt: skip
