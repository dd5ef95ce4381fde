"""How large is a report page, and how soon can it be read?

Writes a chat log (agents with system prompts and tools, some with a clock in front, some with tools in
changing order), makes its page with `kvtool analyze --report`, and opens that in Chromium, a fresh profile
each time: milliseconds until the document is loaded and until every chart is drawn.

    python benchmarks/report.py [--requests 100000] [--opens 5]
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

READ = "(() => { const n = performance.getEntriesByType('navigation')[0]; return n.loadEventEnd; })()"


def write_log(path: Path, requests: int) -> None:
    """Conversations of two to nine turns, forty at a time, of twelve agents."""
    draw = random.Random(1)
    words = [
        "".join(draw.choice("abcdefghijklmnoprstuw") for _ in range(draw.randint(2, 9))) for _ in range(3000)
    ]

    def text(count: int) -> str:
        return " ".join(draw.choice(words) for _ in range(count))

    systems = [f"You are agent {number}. {text(120)}" for number in range(12)]
    tools = [
        {"type": "function", "function": {"name": f"tool_{number}", "description": text(12)}}
        for number in range(5)
    ]
    open_ones: list[tuple[int, int, list[dict[str, str]], int]] = []
    session, moment = 0, 1_767_600_000.0
    with path.open("w", encoding="utf-8") as out:
        for _ in range(requests):
            while len(open_ones) < 40:
                open_ones.append((session, draw.randrange(12), [], draw.randint(2, 9)))
                session += 1
            name, agent, said, left = open_ones.pop(draw.randrange(len(open_ones)))
            moment += draw.expovariate(1 / 0.6)
            clock = time.strftime("Current time: %Y-%m-%d %H:%M:%S\n", time.gmtime(moment))
            messages = [
                {"role": "system", "content": clock * (agent % 3 == 0) + systems[agent]},
                *said,
                {"role": "user", "content": text(15)},
            ]
            own = draw.sample(tools, len(tools)) if agent % 4 == 1 else tools
            row = {"created": moment, "session_id": f"s{name}", "messages": messages, "tools": own}
            out.write(json.dumps(row) + "\n")
            if left > 1:
                answer = {"role": "assistant", "content": text(10)}
                open_ones.append((name, agent, [*messages[1:], answer], left - 1))


def opened(page: Path, times: int) -> list[tuple[float, float]]:
    """(loaded, drawn) in milliseconds for each opening."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("needs Chromium: apt-get install chromium")
    found = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for _ in range(times):
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            start = time.perf_counter()
            tab.goto(page.as_uri())
            tab.wait_for_selector("html[data-ready]")
            found.append((float(tab.evaluate(READ)), 1000 * (time.perf_counter() - start)))
            tab.close()
        browser.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--opens", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log, page = Path(folder) / "log.jsonl", Path(folder) / "report.html"
        write_log(log, options.requests)
        command = ["kvtool", "analyze", str(log), "--tokenizer", "bytes", "--report", str(page)]
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        print(f"{options.requests:,} requests, {log.stat().st_size / 1e6:,.0f} MB")
        seconds, size = time.perf_counter() - start, page.stat().st_size / 1e6
        print(f"analyze with the page: {seconds:.1f} s; page {size:.2f} MB")
        times = sorted(opened(page, options.opens))
        loaded, drawn = times[len(times) // 2]
        print(f"opened {options.opens} times, median: loaded {loaded:.0f} ms, all drawn {drawn:.0f} ms")


if __name__ == "__main__":
    main()
