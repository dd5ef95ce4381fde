"""What a simulation says, for people."""

from typing import Any

from kvtool.report import Column, Report, Table


def present(document: dict[str, Any], notes: list[str]) -> Report:
    """The document and its rendering for people."""
    unbounded = document["unbounded"]
    headline = [
        f"{document['requests']['measured']:,} of {document['requests']['all']:,} requests measured, "
        f"{document['distinct_blocks']:,} distinct blocks of {document['block_size']} tokens; "
        f"an unbounded cache serves {unbounded['tokens']:.1%}"
    ]
    memory = document.get("memory")
    if memory:
        headline.append(
            f"{memory['model']}: {memory['bytes_per_token']:,.0f} bytes per token in 16 bits, "
            f"{memory['blocks_per_gib']:,} blocks per GiB, {memory['sessions_per_gib']:,} sessions per GiB "
            f"at their longest, {memory['sessions_per_gib_shared']:,} with shared blocks kept once"
        )
    if "resident" in document:
        headline.append(
            f"prewarmed start: {document['resident']['blocks']:,} blocks are stored, of which this log uses "
            f"{document['resident']['in_log']:,}"
        )
    if "prefetch" in document:
        prefetch = document["prefetch"]
        headline.append(
            f"prefetch: {prefetch['prefetched_blocks']:,} blocks on {prefetch['predictions']:,} predictions, "
            f"recall {prefetch['recall']:.1%}, waste {prefetch['waste']:.1%}; "
            f"{prefetch['demand_loads_avoided']:.1%} of the demand loads avoided"
        )
    split = any(row["routing"] for row in document["rows"])
    columns = [
        Column("blocks", "count"),
        Column("of distinct", "rate"),
        Column("policy"),
        Column("hit rate", "rate"),
    ]
    columns += [Column("FLOPs saved", "rate")]
    columns += [Column("routing"), Column("max load / mean", "rate")] if split else []
    prewarmed = "resident" in document
    columns += [Column("prewarmed hit rate", "rate")] if prewarmed else []
    rows = [
        [
            row["capacity_blocks"],
            row["capacity_share"],
            row["policy"],
            row["tokens"],
            row["rebuild_flops_saved"],
        ]
        + ([row["routing"], row["max_load_over_mean"]] if split else [])
        + ([row["prewarmed"]["tokens"] if "prewarmed" in row else None] if prewarmed else [])
        for row in document["rows"]
    ]
    timed = any("seconds_saved" in row for row in document["tiers"])
    loads = any("load_seconds" in row for row in document["tiers"])
    tables = [
        Table("Caches", columns, rows),
        Table(
            "Tiers",
            [
                Column("policy"),
                Column("tier"),
                Column("blocks", "count"),
                Column("hit rate", "rate"),
                Column("blocks written", "count"),
                *([Column("prewarmed hit rate", "rate")] if prewarmed else []),
                *([Column("loads", "seconds"), Column("p99 load", "seconds")] if loads else []),
                *([Column("seconds saved", "count")] if timed else []),
            ],
            [
                [row["policy"], row["tier"], row["capacity_blocks"], row["tokens"], row["written_blocks"]]
                + ([row["prewarmed"]["tokens"]] if prewarmed else [])
                + ([row.get("load_seconds"), row.get("load_p99_seconds")] if loads else [])
                + ([round(row["seconds_saved"])] if timed else [])
                for row in document["tiers"]
            ],
        ),
        Table("Advice", [Column(""), Column("")], [[row["code"], row["text"]] for row in document["advice"]]),
    ]
    return Report(document, headline, [table for table in tables if table.rows], notes=notes)
