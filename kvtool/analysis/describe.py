"""What an analysis says: the JSON document of the contract, and the same for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvtool.analysis.advice import advise
from kvtool.analysis.analyze import Analysis
from kvtool.logs.reader import Log
from kvtool.report import Column, Finding, Report, Table, plural


def describe(log: Log, analysis: Analysis, findings: Sequence[Finding], normalized: float) -> dict[str, Any]:
    """The JSON document of the contract."""
    workload, rates, encoder = analysis.runs, analysis.rates, analysis.encoder
    hit_rate = {
        "tokens": rates.tokens,
        "blocks": rates.blocks,
        "request_mean": rates.request_mean,
        "normalized_tokens": normalized,
        "within_session_tokens": rates.within_session_tokens,
        "across_session_tokens": rates.across_session_tokens,
        "tokens_uncapped": rates.tokens_uncapped,
    }
    return {
        "schema": "kvtool.analysis/1",
        "source": {
            "files": log.files,
            "format": log.format,
            "requests": workload.requests,
            "sessions": workload.sessions,
            "skipped": [
                {"reason": skipped.reason, "rows": skipped.rows, "first": skipped.first}
                for skipped in log.skipped
            ],
            "incomplete_prefix": log.incomplete_prefix,
            "notes": [*log.notes, *analysis.notes],
        },
        "tokenizer": {
            "name": encoder.tokenizer.name if encoder else "ready-made block ids",
            "fingerprint": encoder.tokenizer.fingerprint if encoder else "",
            "exact": encoder.tokenizer.exact if encoder else True,
            "chat_template": encoder.template.name if encoder else None,
        },
        "block_size": workload.block_size,
        "tokens": {"prompt": rates.prompt_tokens, "distinct": rates.distinct_tokens},
        "hit_rate": {name: round(value, 6) for name, value in hit_rate.items()},
        "block_sizes": analysis.block_sizes,
        "capacity": analysis.capacity_rows(),
        "hot_prefixes": analysis.prefix_rows(),
        "findings": [finding.to_json() for finding in findings],
        "advice": advise(analysis, findings, normalized, log.incomplete_prefix),
    }


def present(document: dict[str, Any], findings: Sequence[Finding]) -> Report:
    """The document and its rendering for people."""
    source, rate = document["source"], document["hit_rate"]
    headline = [
        f"{plural(source['requests'], 'request')} in {plural(source['sessions'], 'session')}, "
        f"{document['tokens']['prompt']:,} prompt tokens, blocks of {document['block_size']}",
        f"hit rate {rate['tokens']:.1%} of prompt tokens: "
        f"{rate['within_session_tokens']:.1%} within sessions, {rate['across_session_tokens']:.1%} across",
    ]
    if rate["normalized_tokens"] != rate["tokens"]:
        headline.append(f"hit rate {rate['normalized_tokens']:.1%} with all safe fixes (kvtool normalize)")
    headline += [
        f"{plural(skipped['rows'], 'row')} skipped: {skipped['reason']}, first at {skipped['first']}"
        for skipped in source["skipped"]
    ]
    details = [
        Table(
            "Block sizes",
            [
                Column("tokens a block", "count"),
                Column("hit rate", "rate"),
                Column("distinct blocks", "count"),
            ],
            [[row["block_size"], row["tokens"], row["distinct_blocks"]] for row in document["block_sizes"]],
        ),
        Table(
            "LRU capacity",
            [Column("blocks", "count"), Column("of distinct", "rate"), Column("hit rate", "rate")],
            [[row["capacity_blocks"], row["share"], row["tokens"]] for row in document["capacity"]],
        ),
        Table(
            "Hot prefixes",
            [
                Column("tokens", "count"),
                Column("requests", "count"),
                Column("sessions", "count"),
                Column("saves tokens", "count"),
                Column("ends with"),
            ],
            [
                [row["tokens"], row["requests"], row["sessions"], row["saved_tokens"], _tail(row)]
                for row in document["hot_prefixes"]
            ],
        ),
    ]
    advice = Table(
        "Advice", [Column(""), Column("")], [[row["code"], row["text"]] for row in document["advice"]]
    )
    return Report(
        document,
        headline,
        [advice] if advice.rows else [],
        list(findings),
        source["notes"],
        details=[table for table in details if table.rows],
    )


def _tail(prefix: Mapping[str, Any]) -> str:
    preview = " ".join(str(prefix["preview"]).split())
    return f"…{preview[-48:]}" if preview else str(prefix["hash"])[:16]
