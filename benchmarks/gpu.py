"""The GPU path on one card, in one command: `python benchmarks/gpu.py [--out gpu.json] [--part NAME...]`.

No network, no weights: models of real shapes (Llama 3.2 1B and Llama 3.1 8B) with random weights in bf16.
Kernels are set against the card's own copy bandwidth and matrix rate, decodes against the time that reading
the weights once must take and against transformers' generate and continuous batching, first tokens of a
prefix on the device, in host memory and on disk against a cold one, and 20 sessions that share 8,192 tokens
with sharing on and off. Every figure is of this run; ratios are what to compare.

Each part runs in a process of its own, so that one that fails or hangs costs only itself, and every row is
written as soon as it is there. All parts together get `--minutes`; with `--part` some run now, and the rows
that `--out` has of the others stay, so the whole can be measured piece by piece. A model that does not fit is
replaced by the smaller one. `--rehearse` does everything on a CPU, with a tiny model under Triton's
interpreter: it finds what is broken and measures nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpu_aims import judged

PARTS = ("card", "correct", "kernels", "decode", "prefill", "first_token", "sessions", "peers")
"""In the order of what one would miss most."""

Row = dict[str, Any]


def run_part(name: str, rehearse: bool, card: Row | None) -> None:
    """In the child: rows as lines of JSON on stdout."""
    import gpu_kernels
    import gpu_models
    import torch

    device = torch.device("cpu") if rehearse else torch.device("cuda", 0)
    scale = gpu_models.Scale(device, 256 if rehearse else 1)
    if name == "card":
        found = gpu_kernels.measure_card(device, 512 if rehearse else 8192)
        title = "a rehearsal" if rehearse else torch.cuda.get_device_name(device)
        rows: Iterator[Row] = iter(
            [{"name": title, "torch": torch.__version__, "copy": found.copy, "matrix": found.matrix}]
        )
    else:
        assert card is not None
        measured = gpu_kernels.Card(device, card["copy"], card["matrix"])
        parts: dict[str, Callable[[gpu_models.Scale, gpu_kernels.Card], Iterator[Row]]] = {
            "correct": gpu_kernels.correct,
            "kernels": gpu_kernels.kernel_rows,
            "decode": gpu_models.decode,
            "prefill": gpu_models.prefill,
            "first_token": gpu_models.first_token,
            "sessions": gpu_models.sessions,
            "peers": gpu_models.peers,
        }
        rows = parts[name](scale, measured)
    for row in rows:
        print(json.dumps(row), flush=True)


def collect(name: str, rehearse: bool, card: Row | None, seconds: float, take: Callable[[Row], None]) -> str:
    """Run a part in a process and take its rows as they come; says why it ended early, "" if it did not."""
    command = [sys.executable, __file__, "--child", name, *(["--rehearse"] if rehearse else [])]
    if card is not None:
        command += ["--card", json.dumps(card)]
    environment = {**os.environ, **({"TRITON_INTERPRET": "1"} if rehearse else {})}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    timer = threading.Timer(seconds, child.kill)
    timer.start()
    try:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("{"):
                take(json.loads(line))
            else:
                sys.stderr.write(line)
        code = child.wait()
    finally:
        late = not timer.is_alive()
        timer.cancel()
        child.kill()
    if late:
        return f"stopped after {seconds:.0f} s"
    return f"exit status {code}" if code else ""


def show(title: str, rows: list[Row]) -> None:
    """Rows as a table."""
    from rich.console import Console
    from rich.table import Table

    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(*names, title=title)
    for row in rows:
        cells = (row.get(name, "") for name in names)
        table.add_row(*(f"{cell:,.4g}" if isinstance(cell, float) else str(cell) for cell in cells))
    Console(width=140).print(table)


def main() -> None:
    """Run all parts, print tables, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="JSON file to write")
    parser.add_argument("--minutes", type=float, default=8.0, help="for all parts together")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, to find what is broken")
    parser.add_argument(
        "--part", choices=PARTS, nargs="+", help="some parts, beside what --out has of others"
    )
    parser.add_argument("--child", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--card", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_part(arguments.child, arguments.rehearse, arguments.card)
        return
    document: dict[str, Any] = {"rehearsal": arguments.rehearse, "rows": {}, "problems": {}, "seconds": {}}
    if arguments.part and arguments.out.exists():
        found = json.loads(arguments.out.read_text())
        if found["rehearsal"] == arguments.rehearse:
            document = found
    end = time.monotonic() + 60 * arguments.minutes

    def save() -> None:
        draft = arguments.out.with_suffix(".part")
        draft.write_text(json.dumps(document, indent=1))
        draft.replace(arguments.out)

    for name in PARTS:
        if name not in (arguments.part or PARTS) and not (name == "card" and not document["rows"].get(name)):
            continue
        rows: list[Row] = []
        document["rows"][name] = rows
        document["problems"].pop(name, None)

        def take(row: Row, rows: list[Row] = rows) -> None:
            rows.append(row)
            save()

        begun = time.monotonic()
        card = document["rows"]["card"][0] if name != "card" else None
        problem = collect(name, arguments.rehearse, card, max(end - begun, 1.0), take)
        document["seconds"][name] = round(time.monotonic() - begun, 1)
        if problem:
            document["problems"][name] = problem
        save()
        print(f"{name}: {document['seconds'][name]} s {problem}", file=sys.stderr)
        if name == "card" and not rows:
            sys.exit("benchmarks/gpu.py: no CUDA device that works")
    document["aims"] = [] if arguments.rehearse else judged(document["rows"])
    save()
    for name, rows in (*document["rows"].items(), ("aims", document["aims"])):
        if rows:
            show(name, rows)
    if document["problems"]:
        sys.exit(f"benchmarks/gpu.py: parts that did not end well: {document['problems']}")


if __name__ == "__main__":
    main()
