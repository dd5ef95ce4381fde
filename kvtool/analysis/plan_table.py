"""The prewarm plan as a table of a DuckDB file, beside an analysis' own tables or alone."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from kvtool.analysis.plan import TIERS, Plan
from kvtool.analysis.store import is_analysis
from kvtool.blocks import BlockHash
from kvtool.errors import KvtoolError
from kvtool.files import PRIVATE, whole

TABLE = "prewarm_plan"


def plan_table(plan: Plan, hashes: Sequence[BlockHash]) -> pa.Table:
    """One row per block in storage order. `hash` is the name that it has in index.parquet.

    value: FLOPs that the block is expected to save per stored byte.
    """
    value = plan.expected * plan.flops / np.maximum(plan.bytes, 1)
    tokens = pa.FixedSizeListArray.from_arrays(pa.array(plan.tokens.ravel(), pa.uint32()), plan.block_size)
    return pa.table(
        {
            "row": np.arange(len(plan)),
            "parent": pa.array(plan.parent, mask=plan.parent < 0),
            "hash": pa.array(hashes, pa.binary(16)),
            "tenant": pa.array([plan.tenants[at] for at in plan.tenant.tolist()], pa.string()),
            "depth": plan.depth,
            "requests": plan.hits,
            "expected_hits": plan.expected,
            "rebuild_flops": plan.flops,
            "bytes": plan.bytes,
            "value": value,
            "tier": pa.array([TIERS[at] for at in plan.tier.tolist()], pa.string()),
            "tokens": tokens,
        }
    )


def save_plan(path: Path, plan: Plan, hashes: Sequence[BlockHash]) -> None:
    """Write the table to `path`, readable by its owner only: it holds token ids. Other tables of a file that
    exists, an analysis, stay as they are, and so do its permissions."""
    table = plan_table(plan, hashes)
    if not path.parent.is_dir():
        raise KvtoolError(f"{path}: no such folder {path.parent}", "create it, or name another file")
    if path.exists():
        if not is_analysis(path):  # DuckDB opens JSON, CSV and Parquet too, and keeps nothing of it
            raise KvtoolError(f"{path}: cannot hold a plan: not a DuckDB file", "name one, or a new file")
        _write(path, table, path)
    else:
        with whole(path, PRIVATE) as temporary:
            _write(temporary, table, path)


def _write(file: Path, table: pa.Table, named: Path) -> None:
    import duckdb

    try:
        with duckdb.connect(str(file)) as connection:
            connection.register("incoming", table)
            connection.execute(f"CREATE OR REPLACE TABLE {TABLE} AS SELECT * FROM incoming")
    except duckdb.Error as error:
        raise KvtoolError(
            f"{named}: cannot hold a plan: {str(error).splitlines()[0]}", "name another file"
        ) from error
