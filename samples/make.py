"""Make the sample logs from public data: `python samples/make.py TAU_BENCH_FOLDER MOONCAKE_FOLDER`.

The airline sessions of tau-bench become an API log as an agent would have written it, with the two
commonest breakages planted: a clock in the system prompt, set anew for every request, and tools in
another order with every request. Deterministic: the same sources give the same bytes.
"""

import json
import random
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SESSIONS = 12
START = datetime(2024, 5, 15, 20, 0, tzinfo=UTC)
"""15:00 EST, the hour that tau-bench's system prompt names."""

CLOCK = "2024-05-15 15:00:00 EST"
PLANTED = [("clock",), ("clock",), ("tools",), ("clock", "tools")]
"""What is broken in a session, in turn."""


def main(tau_bench: Path, mooncake: Path) -> None:
    """Write every sample."""
    trajectories = json.loads((tau_bench / "gpt-4o-airline.json").read_text(encoding="utf-8"))
    tools = json.loads((tau_bench / "airline_tools.json").read_text(encoding="utf-8"))
    chosen = short_sessions(trajectories)
    rows = sorted(
        (row for number, run in enumerate(chosen) for row in session_rows(number, run, tools)),
        key=lambda row: (row["timestamp"], row["id"]),
    )
    write_lines(HERE / "airline-chat.jsonl", rows)
    write_parquet(HERE / "airline-chat.parquet", rows)
    excerpt = json.dumps(chosen[:4], ensure_ascii=False, indent=1)
    (HERE / "airline-tau-bench.json").write_text(excerpt + "\n", encoding="utf-8")
    with (mooncake / "conversation_trace.jsonl").open(encoding="utf-8") as trace:
        lines = [next(trace) for _ in range(500)]
    (HERE / "mooncake-conversation.jsonl").write_text("".join(lines), encoding="utf-8")


def short_sessions(trajectories: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """First trials with 4 to 8 model calls whose prompts stay well below 8,192 tokens."""
    return [
        run
        for run in trajectories
        if run["trial"] == 0
        and 4 <= sum(message["role"] == "assistant" for message in run["traj"]) <= 8
        and len(json.dumps(run["traj"][1:])) < 10_000
    ][:SESSIONS]


def session_rows(number: int, run: dict[str, Any], tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per model call, with what is planted in session `number`."""
    planted = PLANTED[number % len(PLANTED)]
    moment = START + timedelta(seconds=37 * number)
    rows = []
    for index, answer in enumerate(run["traj"]):
        if answer["role"] != "assistant":
            continue
        name = f"airline-{number:02}-{index:02}"
        messages = [dict(message) for message in run["traj"][:index]]
        if "clock" in planted:
            est = (moment - timedelta(hours=5)).strftime("%Y-%m-%d %H:%M:%S EST")
            assert CLOCK in messages[0]["content"]
            messages[0]["content"] = messages[0]["content"].replace(CLOCK, est)
        offered = list(tools)
        if "tools" in planted:
            random.Random(name).shuffle(offered)
        rows.append(
            {
                "id": name,
                "timestamp": moment.isoformat().replace("+00:00", "Z"),
                "session_id": f"airline-{number:02}",
                "model": "gpt-4o",
                "messages": messages,
                "tools": offered,
                "response": {"choices": [{"index": 0, "message": answer}]},
            }
        )
        moment += timedelta(seconds=7 + len(json.dumps(answer)) % 23)
    return rows


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """JSON, one row a line."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    """The same rows as a table; nested fields are JSON strings, as warehouses keep them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(
        {
            "id": [row["id"] for row in rows],
            "timestamp": pa.array(
                [datetime.fromisoformat(row["timestamp"]) for row in rows], pa.timestamp("us", tz="UTC")
            ),
            "session_id": [row["session_id"] for row in rows],
            "model": [row["model"] for row in rows],
            **{
                name: [json.dumps(row[name], ensure_ascii=False) for row in rows]
                for name in ("messages", "tools", "response")
            },
        }
    )
    pq.write_table(table, path, compression="zstd")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
