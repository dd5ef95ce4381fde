"""analysis.duckdb: an analysis as tables, whole or absent, that SQL and every other command can read."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kvtool.analysis.hit_rates import HitRates
from kvtool.analysis.learned import learn
from kvtool.analysis.prefixes import Usage
from kvtool.analysis.reuse_model import ReuseModel
from kvtool.analysis.runs import Blocks, Runs
from kvtool.analysis.workload import META, Workload
from kvtool.blocks import BlockHash, child_hash
from kvtool.errors import KvtoolError
from kvtool.files import PRIVATE, whole
from kvtool.report import Finding

SCHEMA = "kvtool.analysis/1"

FINDINGS = pa.schema(
    [
        *((name, pa.string()) for name in ("code", "name", "severity", "message", "fingerprint")),
        (
            "location",
            pa.struct(
                [
                    ("file", pa.string()),
                    ("row", pa.int64()),
                    ("path", pa.string()),
                    ("role", pa.string()),
                    ("start", pa.int64()),
                    ("end", pa.int64()),
                ]
            ),
        ),
        ("slot", pa.string()),
        ("examples", pa.list_(pa.string())),
        *((name, pa.int64()) for name in ("requests", "sessions", "distinct_values", "lost_tokens")),
        ("hit_rate_if_fixed", pa.float64()),
        ("fix", pa.struct([("action", pa.string()), ("safe", pa.bool_())])),
    ]
)
CURVES = pa.schema(
    [
        ("capacity_blocks", pa.int64()),
        ("policy", pa.string()),
        ("tokens", pa.float64()),
        ("blocks", pa.float64()),
    ]
)
BLOCK_SIZES = pa.schema(
    [("block_size", pa.int64()), ("tokens", pa.float64()), ("distinct_blocks", pa.int64())]
)
HOT_PREFIXES = pa.schema(
    [
        ("hash", pa.string()),
        ("node", pa.int32()),
        ("tokens", pa.int64()),
        ("requests", pa.int64()),
        ("sessions", pa.int64()),
        ("saved_tokens", pa.int64()),
        ("preview", pa.string()),
    ]
)
REUSE_RULES = pa.schema(
    [
        ("class", pa.int64()),
        ("when", pa.string()),
        *((name, pa.float64()) for name in ("uses", "reused", "worth_at_first", "best_worth", "best_age")),
    ]
)
ADVICE = pa.schema([("code", pa.string()), ("text", pa.string()), ("evidence", pa.string())])


ROWS = 1 << 18
"""Requests or blocks that are turned into table rows at a time."""


def save_analysis(
    path: Path,
    workload: Runs,
    rates: HitRates,
    usage: Usage,
    findings: Sequence[Finding],
    document: Mapping[str, Any],
) -> None:
    """Write every table of an analysis; `document` is its JSON, from which the small tables are made. The
    file is its owner's alone: token ids are prompts.

    Requests and blocks go in piece by piece: a log's blocks need not fit into memory. If the log supports a
    reuse model (see `learn`), its rules are a table and its JSON is in `meta`.
    """
    import duckdb

    model = learn(workload)
    small = {
        "meta": _meta(workload, document, model),
        "spaces": _spaces(workload),
        "findings": pa.Table.from_pylist([finding.to_json() for finding in findings], FINDINGS),
        "curves": _rows(document["capacity"], CURVES),
        "block_sizes": _rows(document["block_sizes"], BLOCK_SIZES),
        "hot_prefixes": _rows(document["hot_prefixes"], HOT_PREFIXES),
        "advice": _rows(
            [{**piece, "evidence": json.dumps(piece["evidence"])} for piece in document["advice"]], ADVICE
        ),
        "reuse_rules": _rows(
            [{**rule, "when": json.dumps(rule["when"])} for rule in model.rules()] if model else [],
            REUSE_RULES,
        ),
    }
    with whole(path, PRIVATE) as temporary, duckdb.connect(str(temporary)) as connection:
        connection.execute("SET memory_limit = '1GB'")
        made: set[str] = set()
        for name, table in chain(small.items(), _requests(workload, rates), _blocks(workload, usage)):
            verb = f"INSERT INTO {name}" if name in made else f"CREATE TABLE {name} AS"
            connection.register("incoming", table)
            connection.execute(f"{verb} SELECT * FROM incoming")
            connection.unregister("incoming")
            made.add(name)


def load_analysis(path: Path | str) -> Workload:
    """The workload of a saved analysis, token ids of its distinct blocks included.

    KvtoolError for a file that another version wrote, or whose tables were changed since.
    """
    tables = _read(Path(path), ("meta", "spaces", "requests", "nodes", "blocks"))
    try:
        workload = _workload(tables)
    except (KeyError, ValueError, pa.ArrowException) as error:
        raise KvtoolError(
            f"{path}: not an analysis of this version: {str(error).strip(chr(39))}", "analyze the log anew"
        ) from error
    nodes = np.arange(len(tables["nodes"]))
    if not (
        all(np.array_equal(tables[name]["node"], nodes) for name in ("nodes", "blocks"))
        and _within(workload.parent, -1, nodes)
        and _within(workload.leaf, -1, len(nodes))
        and _within(workload.space, 0, len(workload.spaces))
        and _within(workload.node_space, 0, len(workload.spaces))
    ):
        raise KvtoolError(
            f"{path}: its requests, nodes and blocks do not fit together", "analyze the log anew"
        )
    return workload


def _within(numbers: NDArray[Any], least: int, ends: NDArray[Any] | int) -> bool:
    """Whether all are `least` or more and below `ends`."""
    return bool(((numbers >= least) & (numbers < ends)).all())


def _workload(tables: Mapping[str, pa.Table]) -> Workload:
    """KeyError for a column or an entry that is not there, ValueError for one of another kind."""
    meta = dict(zip(tables["meta"]["key"].to_pylist(), tables["meta"]["value"].to_pylist(), strict=True))
    requests, nodes = tables["requests"], tables["nodes"]
    names: dict[str, int] = {}
    sessions = [
        -1 if name is None else names.setdefault(name, len(names)) for name in requests["session"].to_pylist()
    ]
    words = tables["blocks"]["words"].combine_chunks()
    return Workload(
        block_size=int(meta["block_size"]),
        ready_made=meta["ready_made"] == "true",
        encoder_fingerprint=meta["encoder_fingerprint"],
        arrival=_own(requests["arrival"].cast(pa.int64()).fill_null(-1)),
        session=np.array(sessions, np.int32),
        session_names=list(names),
        space=_own(requests["space"]),
        spaces=list(
            zip(tables["spaces"]["model"].to_pylist(), tables["spaces"]["tenant"].to_pylist(), strict=True)
        ),
        prompt_tokens=_own(requests["prompt_tokens"]),
        output_tokens=_own(requests["output_tokens"].fill_null(-1)),
        leaf=_own(requests["leaf"]),
        partial=_own(requests["partial"]),
        parent=_own(nodes["parent"]),
        depth=_own(nodes["depth"]),
        node_space=_own(nodes["space"]),
        words=_own(words.flatten()).reshape(len(words), int(meta["width"])),
        meta=pa.table(
            [requests["id"], requests["file"].dictionary_encode(), requests["row"]], META.names
        ).cast(META),
    )


def _own(column: Any) -> Any:
    """A column as an array of its own: Arrow's memory is read-only, which compiled loops do not take."""
    return np.array(column.to_numpy())


def load_document(path: Path | str) -> dict[str, Any]:
    """The JSON document of a saved analysis."""
    meta = _read(Path(path), ("meta",))["meta"].to_pylist()
    found = next((row["value"] for row in meta if row["key"] == "document"), "null")
    document: dict[str, Any] | None = json.loads(found)
    if document is None:
        raise KvtoolError(f"{path}: meta has no document", "analyze the log anew")
    return document


def is_analysis(path: Path | str) -> bool:
    """Whether `path` is a DuckDB file, by its magic bytes."""
    file = Path(path)
    if not file.is_file():
        return False
    with file.open("rb") as handle:
        return handle.read(12)[8:] == b"DUCK"


def _read(path: Path, names: Sequence[str]) -> dict[str, pa.Table]:
    import duckdb

    if not path.is_file():
        raise KvtoolError(f"{path}: no such file", "make it with kvtool analyze LOGS -o FILE.duckdb")
    order = {"requests": "number", "nodes": "node", "blocks": "node", "spaces": "space", "meta": "key"}
    try:
        with duckdb.connect(str(path), read_only=True) as connection:
            found = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchall()
            if found != [(SCHEMA,)]:
                raise KvtoolError(f"{path}: its schema is {found}, not {SCHEMA}", "analyze the log anew")
            return {
                name: connection.sql(f"SELECT * FROM {name} ORDER BY {order[name]}").to_arrow_table()
                for name in names
            }
    except duckdb.Error as error:
        raise KvtoolError(
            f"{path}: not an analysis: {str(error).splitlines()[0]}",
            "make it with kvtool analyze LOGS -o FILE.duckdb",
        ) from error


def _rows(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows of the JSON document as a table; fields beyond the schema stay in the document."""
    return pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema)


def _meta(workload: Runs, document: Mapping[str, Any], model: ReuseModel | None) -> pa.Table:
    values = {
        "schema": SCHEMA,
        "block_size": str(workload.block_size),
        "ready_made": str(workload.ready_made).lower(),
        "width": str(workload.words_per_block),
        "encoder_fingerprint": workload.encoder_fingerprint,
        "document": json.dumps(document, ensure_ascii=False),
    }
    if model is not None:
        values["reuse_model"] = model.to_json()
    return pa.table({"key": list(values), "value": list(values.values())})


def _spaces(workload: Runs) -> pa.Table:
    return pa.table(
        {
            "space": pa.array(range(len(workload.spaces)), pa.int32()),
            "model": pa.array([model for model, _ in workload.spaces], pa.string()),
            "tenant": pa.array([tenant for _, tenant in workload.spaces], pa.string()),
        }
    )


def _requests(workload: Runs, rates: HitRates) -> Iterator[tuple[str, pa.Table]]:
    """Pieces of the table `requests`; `leaf` is a node, which is a block."""
    last = workload.last_blocks
    for first in range(0, max(workload.requests, 1), ROWS):
        part = workload.select(first, first + ROWS)
        codes, own = np.unique(part.session, return_inverse=True)
        names = [None if code < 0 else workload.session_names[code] for code in codes.tolist()]
        columns = {
            "number": np.arange(first, first + part.requests),
            "id": part.ids,
            "file": part.meta["file"].cast(pa.string()),
            "row": part.meta["row"],
            "arrival": pa.array(part.arrival, mask=part.arrival < 0).cast(pa.timestamp("us")),
            "session": pa.array(names, pa.string()).take(pa.array(own)),
            "space": part.space,
            "prompt_tokens": part.prompt_tokens,
            "output_tokens": pa.array(part.output_tokens, mask=part.output_tokens < 0),
            "leaf": last[part.leaf].astype(np.int32),
            "partial": pa.array(part.partial),
            "matched_blocks": rates.matched[first : first + ROWS],
            "saved_tokens": rates.saved[first : first + ROWS],
        }
        yield "requests", pa.table(columns)


def _blocks(workload: Runs, usage: Usage) -> Iterator[tuple[str, pa.Table]]:
    """Pieces of the tables `nodes`, which are blocks, and `blocks`: token ids of each, or a trace's block id
    as two words (low, high)."""
    roots = [workload.root(space) for space in range(len(workload.spaces))]
    ends = bytearray(16 * len(workload.parent))  # the hash that each run ends with
    number = 0
    for piece in workload.pieces(ROWS):
        count = len(piece.run)
        nodes = np.arange(number, number + count, dtype=np.int32)
        number += count
        hashes = _hashes(workload, roots, piece, ends)
        counts = {
            "requests": usage.requests[piece.run],
            "sessions": usage.sessions[piece.run],
            "first_request": usage.first[piece.run],
            "last_request": usage.last[piece.run],
        }
        columns = {
            "node": nodes,
            "parent": piece.parent,
            "depth": piece.depth,
            "space": workload.node_space[piece.run],
            "hash": pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), count, [None, pa.py_buffer(hashes)]),
            **counts,
        }
        yield "nodes", pa.table(columns)
        words = pa.FixedSizeListArray.from_arrays(pa.array(piece.words.ravel()), workload.words_per_block)
        yield "blocks", pa.table({"node": nodes, "words": words})


def _hashes(workload: Runs, roots: Sequence[BlockHash], piece: Blocks, ends: bytearray) -> bytes:
    """BlockHash of every block of a piece, one after another; enters those that runs end with in `ends`."""
    digests = bytearray()
    data = np.ascontiguousarray(piece.words)
    before = -1
    digest = BlockHash(b"")
    for row, run in enumerate(piece.run.tolist()):
        if run != before:
            above = int(workload.parent[run])
            if before >= 0:
                ends[16 * before : 16 * before + 16] = digest
            digest = (
                roots[workload.node_space[run]]
                if above < 0
                else BlockHash(bytes(ends[16 * above : 16 * above + 16]))
            )
            before = run
        digest = child_hash(digest, data[row])
        digests += digest
    if before >= 0:
        ends[16 * before : 16 * before + 16] = digest
    return bytes(digests)
