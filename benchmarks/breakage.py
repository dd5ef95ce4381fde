"""Does the lint find what breaks a prefix, exactly there, and nothing else?

Plants every kind of breakage, several shapes each, into real dialogues, beside distractors that must
stay silent, and prints recall and precision per rule, the error of the promised hit rate, and the speed.

    python benchmarks/breakage.py [DIALOGUES.json] [--tools TOOLS.json] [--only KV101] [--seed 1]

DIALOGUES is a tau-bench trajectory file (default: the sample of it in samples/).
"""

import argparse
import copy
import json
import random
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvtool.lint.check import find
from kvtool.lint.corpus import arrival_order
from kvtool.lint.price import replayed
from kvtool.report import Finding
from kvtool.requests import Request, Source
from kvtool.tokens import PromptEncoder, load_encoder

ROOT = Path(__file__).resolve().parent.parent
BLOCK_SIZE = 32
SESSIONS, TURNS = 10, 6
START = 1_772_530_000

DESK = (
    "You work at the front desk of a hotel in Lisbon. Guests write to you from their rooms and before they "
    "arrive. Answer in the language of the guest, in two or three sentences. Breakfast is from seven to half "
    "past ten, the pool closes at nine, and the last shuttle to the airport leaves at a quarter to eleven. "
    "Never promise a late check-out: write it on the list and say that the manager decides in the morning. "
    "Complaints about noise go to the night porter at once; offer another room when one is free. Prices are "
    "in euros and include the city tax. If a guest asks for something that the hotel does not have, name "
    "the nearest place that does, and offer to book a taxi. Do not talk about other guests."
)
CODER = (
    "You are a coding agent that works in a terminal. Read files before you change them, and keep changes "
    "small. Run the tests after each change and quote the first failing line when they fail. Do not install "
    "packages without asking. Prefer the style of the code around you to your own. When a command may take "
    "long, say so first. Never print secrets, never push, never rewrite history. If the task is unclear, ask "
    "one question, then go on with the most likely reading. At the end, say what you changed in three lines "
    "at most, name the files, and name what you did not do.\n\n# Tools\nUse search before reading whole "
    "files. Use edit for changes of a few lines and write for new files only."
)

Row = dict[str, Any]
Place = tuple[str, int, int]
"""(path, start, end)."""


@dataclass
class Planted:
    """A log, the code that it should raise, and for each row where that may be pointed at."""

    rows: list[Row]
    code: str
    places: dict[int, set[Place]] = field(default_factory=lambda: defaultdict(set))
    truth: list[Row] | None = None

    def mark(self, row: int, path: str, text: str, value: str) -> None:
        """`value` stands in `text` at `path` of row `row` (0-based)."""
        at = text.index(value)
        self.places[row].add((path, at, at + len(value)))


class Base:
    """Clean logs made of real dialogues."""

    def __init__(self, dialogues: list[Any], tools: list[Any], seed: int) -> None:
        self.dialogues = dialogues
        self.tools = tools
        self.rng = random.Random(seed)

    def rows(
        self, agent: str = "", tools: bool = True, sessions: int = SESSIONS, turns: int = TURNS
    ) -> list[Row]:
        """Requests of some sessions, interleaved as traffic is, by time."""
        rows = []
        for number in range(min(sessions, len(self.dialogues))):
            run = self.dialogues[number]["traj"]
            messages = copy.deepcopy(run)
            if agent:
                messages[0]["content"] = agent
            calls = [at for at, message in enumerate(messages) if message["role"] == "assistant" and at][
                :turns
            ]
            for turn, at in enumerate(calls):
                row: Row = {
                    "messages": copy.deepcopy(messages[:at]),
                    "model": "m",
                    "session_id": f"s{number}",
                    "timestamp": START + number * 37 + turn * 61 + self.rng.random(),
                }
                if tools:
                    row["tools"] = copy.deepcopy(self.tools)
                rows.append(row)
        rows.sort(key=lambda row: row["timestamp"])
        return rows


def requests_of(rows: list[Row]) -> list[Request]:
    """Rows as the OpenAI chat reader would give them."""
    return [
        Request(
            id=str(number),
            source=Source("planted.jsonl", number + 1),
            arrival=int(row["timestamp"] * 1e6),
            session=row.get("session_id"),
            model=row.get("model"),
            messages=row["messages"],
            tools=row.get("tools"),
        )
        for number, row in enumerate(rows)
    ]


Value = Callable[[int, Row, random.Random], str]


def in_system(
    code: str, template: str, value: Value, where: str = "head", agent: str = ""
) -> Callable[[Base], Planted]:
    """Plant `template` with {} as the value at the head, in the middle or at the end of the system prompt."""

    def plant(base: Base) -> Planted:
        planted = Planted(base.rows(agent), code)
        planted.truth = copy.deepcopy(planted.rows)
        for number, row in enumerate(planted.rows):
            text = row["messages"][0]["content"]
            said = value(number, row, base.rng)
            line = template.replace("{}", said)
            middle = text.find("\n", len(text) // 5) + 1 or text.find(". ", len(text) // 5) + 2
            cut = {"head": 0, "middle": middle}[where]
            text = text[:cut] + line + text[cut:]
            row["messages"][0]["content"] = text
            if said:
                at = cut + template.index("{}")
                planted.places[number].add(("messages[0].content", at, at + len(said)))
        return planted

    return plant


def in_tool(code: str, template: str, value: Value) -> Callable[[Base], Planted]:
    """Plant into the description of the first tool."""

    def plant(base: Base) -> Planted:
        planted = Planted(base.rows(), code)
        planted.truth = copy.deepcopy(planted.rows)
        for number, row in enumerate(planted.rows):
            function = row["tools"][0]["function"]
            said = value(number, row, base.rng)
            function["description"] += template.replace("{}", said)
            planted.mark(number, "tools[0].function.description", function["description"], said)
        return planted

    return plant


def stamp(form: str) -> Value:
    """The request's own time."""
    return lambda number, row, rng: time.strftime(form, time.gmtime(row["timestamp"]))


def per_session(make: Callable[[random.Random, int], str]) -> Value:
    """One value for each session."""

    def value(number: int, row: Row, rng: random.Random) -> str:
        session = int(row["session_id"][1:])
        return make(random.Random(session * 7919 + 13), session)

    return value


def daily(form: str) -> Value:
    """A date that steps as if every three sessions ran on another day."""
    return lambda number, row, rng: time.strftime(
        form, time.gmtime(row["timestamp"] + 86400 * (int(row["session_id"][1:]) // 3))
    )


def hexes(length: int) -> Value:
    return lambda number, row, rng: "".join(rng.choice("0123456789abcdef") for _ in range(length))


def unique(number: int, row: Row, rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


NAMES = ("Ann Lee", "Bob Stone", "Chidi Okafor", "Dana Weiss", "Eve Adams", "Farid Khan", "Grace Hill")
MEMORIES = (
    "The customer prefers aisle seats and asked twice for vegetarian meals on long flights.",
    "Last week a bag was lost in Denver; it was found after three days and brought to the house.",
    "There is an open complaint about a refund of 214 dollars that was promised in January.",
    "The family travels with a small dog, which needs its own reservation on every leg.",
    "He is a gold member since 2019 and knows the rules for upgrades better than most.",
)
TREES = (
    "src/\n  main.py\n  util.py\nREADME.md",
    "app/\n  cart.ts\n  shop.ts\npackage.json\nyarn.lock",
    "lib.rs\nCargo.toml",
)
STATES = (
    " M src/main.py\n?? notes.txt",
    " M lib/cart.py\n M lib/shop.py\n D old.py",
    "A  setup.cfg\n?? build/",
)


def turn_of(row: Row) -> int:
    return sum(message["role"] != "system" for message in row["messages"])


SHAPES: list[tuple[str, Callable[[Base], Planted]]] = [
    ("KV101 iso line", in_system("KV101", "Current time: {}\n", stamp("%Y-%m-%d %H:%M:%S"))),
    (
        "KV101 sentence",
        in_system("KV101", "It is now {}. ", stamp("%A, %B %d, %Y at %I:%M:%S %p"), "middle", DESK),
    ),
    ("KV101 zulu tag", in_system("KV101", "<now>{}</now>\n", stamp("%Y-%m-%dT%H:%M:%SZ"), agent=CODER)),
    ("KV101 epoch", in_system("KV101", "[ts={}]\n", lambda n, row, r: str(int(row["timestamp"])), "middle")),
    ("KV101 in a tool", in_tool("KV101", " The time at the airport is {}.", stamp("%H:%M:%S"))),
    ("KV102 today", in_system("KV102", "Today's date is {}.\n", daily("%Y-%m-%d"))),
    ("KV102 long", in_system("KV102", "Today is {}.\n", daily("%A, %d %B %Y"), "middle", DESK)),
    ("KV102 us", in_system("KV102", "Date: {}\n", daily("%m/%d/%Y"), agent=CODER)),
    ("KV103 uuid", in_system("KV103", "Request ID: {}\n", unique)),
    (
        "KV103 billing",
        in_system("KV103", "x-billing-header: cc_version=2.1.39; cch={};\n", hexes(5), agent=CODER),
    ),
    ("KV103 comment", in_system("KV103", "<!-- {} -->\n", hexes(16), "middle", DESK)),
    ("KV103 in a tool", in_tool("KV103", " (call ref {})", hexes(12))),
    (
        "KV104 id",
        in_system("KV104", "Session: {}\n", per_session(lambda r, s: f"sess_{r.getrandbits(48):012x}")),
    ),
    (
        "KV104 scratch",
        in_system(
            "KV104",
            "Write temporary files to {} only.\n",
            per_session(lambda r, s: f"/tmp/agent-{r.getrandbits(32):08x}"),
            agent=CODER,
        ),
    ),
    (
        "KV104 uuid",
        in_system(
            "KV104",
            "conversation_id={}\n",
            per_session(lambda r, s: str(uuid.UUID(int=r.getrandbits(128)))),
            "middle",
            DESK,
        ),
    ),
    (
        "KV105 cwd",
        in_system(
            "KV105",
            "Working directory: {}\n",
            per_session(lambda r, s: f"/home/{NAMES[s % 7].split()[0].lower()}/work/project{s}"),
            agent=CODER,
        ),
    ),
    (
        "KV105 git",
        in_system("KV105", "Git status:\n{}\n\n", per_session(lambda r, s: STATES[s % 3]), agent=CODER),
    ),
    (
        "KV105 tree",
        in_system("KV105", "# Files\n{}\n\n", per_session(lambda r, s: TREES[s % 3]), "middle", CODER),
    ),
    (
        "KV105 branch",
        in_system(
            "KV105",
            "Current branch: {}\n",
            per_session(lambda r, s: f"feature/{NAMES[s % 7].split()[1].lower()}-fix"),
            agent=CODER,
        ),
    ),
    (
        "KV106 percent",
        in_system("KV106", "Context used: {}%\n", lambda n, row, r: str(3 + 4 * turn_of(row)), agent=CODER),
    ),
    (
        "KV106 left",
        in_system(
            "KV106", "You have {} tokens left.\n", lambda n, row, r: f"{200000 - 1371 * turn_of(row):,}"
        ),
    ),
    (
        "KV106 message",
        in_system(
            "KV106",
            "This is message number {} of the chat.\n",
            lambda n, row, r: str(turn_of(row)),
            "middle",
            DESK,
        ),
    ),
    ("KV107 name", in_system("KV107", "You are speaking with {}.\n", per_session(lambda r, s: NAMES[s % 7]))),
    (
        "KV107 mail",
        in_system(
            "KV107",
            "Account: {}\n",
            per_session(lambda r, s: NAMES[s % 7].lower().replace(" ", ".") + "@example.com"),
            agent=DESK,
        ),
    ),
    (
        "KV107 locale",
        in_system(
            "KV107",
            "User locale: {}\n",
            per_session(lambda r, s: ("en-US", "de-DE", "pt-PT", "fr-FR")[s % 4]),
            "middle",
            DESK,
        ),
    ),
    (
        "KV107 plan",
        in_system(
            "KV107",
            "Subscription plan: {}\n",
            per_session(lambda r, s: ("free", "pro", "enterprise")[s % 3]),
            agent=CODER,
        ),
    ),
    (
        "KV301 memory",
        in_system(
            "KV301",
            "# Memory\n{}\n\n",
            lambda n, row, r: MEMORIES[(turn_of(row) + int(row["session_id"][1:])) % 5],
        ),
    ),
    (
        "KV301 documents",
        in_system(
            "KV301",
            "Retrieved passages:\n{}\n\n",
            lambda n, row, r: "\n".join(r.sample(MEMORIES, 2)),
            "middle",
            DESK,
        ),
    ),
    (
        "KV302 task",
        in_system(
            "KV302",
            "Your goal today: {}\n\n",
            per_session(
                lambda r, s: (
                    "sell more upgrades to families",
                    "calm down guests whose flights are late",
                    "collect honest reviews of the lounge",
                )[s % 3]
            ),
        ),
    ),
    (
        "KV302 persona",
        in_system(
            "KV302",
            "{}\n\n",
            per_session(
                lambda r, s: (
                    "Speak like an old sea captain who loves the stars.",
                    "Sound like a patient teacher of small children.",
                    "Be as brief as a telegram from the last century.",
                )[s % 3]
            ),
            agent=DESK,
        ),
    ),
    (
        "KV100 mood",
        in_system(
            "KV100", "Mood: {}\n", per_session(lambda r, s: ("calm", "merry", "stern")[s % 3]), agent=DESK
        ),
    ),
]


def shape(name: str) -> Callable[[Callable[[Base], Planted]], Callable[[Base], Planted]]:
    """Enter a planter in SHAPES."""

    def enter(plant: Callable[[Base], Planted]) -> Callable[[Base], Planted]:
        SHAPES.append((name, plant))
        return plant

    return enter


def structural(base: Base, code: str, agent: str = "", tools: bool = True) -> Planted:
    planted = Planted(base.rows(agent, tools), code)
    planted.truth = copy.deepcopy(planted.rows)
    return planted


@shape("KV101 restamped question")
def restamped(base: Base) -> Planted:
    planted = structural(base, "KV101")
    for number, row in enumerate(planted.rows):
        said = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(row["timestamp"]))
        first = row["messages"][1]
        first["content"] = f"<context>Now: {said}</context>\n{first['content']}"
        planted.mark(number, "messages[1].content", first["content"], said)
    return planted


@shape("KV101 instructions in the first user message")
def in_first_message(base: Base) -> Planted:
    planted = structural(base, "KV101", tools=False)
    for rows in (planted.rows, planted.truth or []):
        for number, row in enumerate(rows):
            said = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(START + 97 * int(row["session_id"][1:])))
            line = f"Session started at {said}.\n" if rows is planted.rows else ""
            question = row["messages"][1]["content"]
            row["messages"][1]["content"] = f"{line}{CODER}\n\n# Task\n{question}"
            row["messages"].pop(0)
            if line:
                planted.mark(number, "messages[0].content", row["messages"][0]["content"], said)
    return planted


@shape("KV302 the task before the instructions, in the first user message")
def task_first(base: Base) -> Planted:
    planted = structural(base, "KV302", tools=False)
    for rows in (planted.rows, planted.truth or []):
        for number, row in enumerate(rows):
            question = row["messages"][1]["content"]
            rest = f"\n\n{CODER}"
            row["messages"][1]["content"] = (
                question + rest if rows is planted.rows else CODER + "\n\n" + question
            )
            row["messages"].pop(0)
            if rows is planted.rows:
                planted.mark(number, "messages[0].content", row["messages"][0]["content"], question)
    return planted


@shape("KV201 shuffled at times")
def shuffled(base: Base) -> Planted:
    planted = structural(base, "KV201")
    for number, row in enumerate(planted.rows):
        if number % 3 == 1:
            while row["tools"] == base.tools:
                base.rng.shuffle(row["tools"])
            planted.places[number].add(("tools", 0, 0))
    return planted


@shape("KV201 rotated by session")
def rotated(base: Base) -> Planted:
    planted = structural(base, "KV201", DESK)
    for number, row in enumerate(planted.rows):
        turn = int(row["session_id"][1:]) % 3
        row["tools"] = row["tools"][turn:] + row["tools"][:turn]
        planted.places[number].add(("tools", 0, 0))
    return planted


@shape("KV202 last call without tools")
def without_tools(base: Base) -> Planted:
    planted = structural(base, "KV202")
    last = {row["session_id"]: number for number, row in enumerate(planted.rows)}
    for number in last.values():
        del planted.rows[number]["tools"]
        planted.places[number].add(("tools", 0, 0))
    return planted


@shape("KV202 a tool comes in between")
def tool_comes(base: Base) -> Planted:
    planted = structural(base, "KV202", CODER)
    for number, row in enumerate(planted.rows):
        if turn_of(row) in (5, 6, 7):
            extra = {
                "type": "function",
                "function": {"name": "zoom", "description": "Zoom.", "parameters": {}},
            }
            row["tools"].insert(2, extra)
            planted.places[number].add(("tools", 0, 0))
    return planted


@shape("KV203 key order")
def key_order(base: Base) -> Planted:
    planted = structural(base, "KV203")
    for number, row in enumerate(planted.rows):
        if number % 2:
            for at, tool in enumerate(row["tools"]):
                tool["function"] = dict(reversed(list(tool["function"].items())))
                planted.places[number].add((f"tools[{at}]", 0, 0))
    return planted


@shape("KV203 wording")
def wording(base: Base) -> Planted:
    planted = structural(base, "KV203", DESK)
    for number, row in enumerate(planted.rows):
        said = ("Ask before you call it.", "Call it without asking first.", "Never call it twice in a row.")[
            number % 3
        ]
        function = row["tools"][1]["function"]
        function["description"] += " " + said
        planted.mark(number, "tools[1].function.description", function["description"], said)
    return planted


@shape("KV401 reminder in a message")
def reminder(base: Base) -> Planted:
    planted = structural(base, "KV401")
    for number, row in enumerate(planted.rows):
        if turn_of(row) in (5, 6, 9):
            said = "<system-reminder>The list of tasks is empty. Do not mention this.</system-reminder>"
            row["messages"][1]["content"] += "\n" + said
            planted.mark(number, "messages[1].content", row["messages"][1]["content"], said)
    return planted


@shape("KV401 message of its own")
def inserted(base: Base) -> Planted:
    planted = structural(base, "KV401", CODER)
    for number, row in enumerate(planted.rows):
        if turn_of(row) in (5, 6):
            said = "Reminder: check the list of open tasks before you answer, and keep your answer short."
            row["messages"].insert(2, {"role": "user", "content": said})
            planted.places[number].add(("messages[2].content", 0, len(said)))
    return planted


@shape("KV401 in the system prompt")
def flicker(base: Base) -> Planted:
    planted = structural(base, "KV401", DESK)
    for number, row in enumerate(planted.rows):
        if turn_of(row) % 4 == 1:
            said = "Important: the elevators are out of order."
            row["messages"][0]["content"] = said + "\n" + row["messages"][0]["content"]
            planted.places[number].add(("messages[0].content", 0, len(said)))
    return planted


@shape("KV402 notes in the system prompt")
def hoisted(base: Base) -> Planted:
    planted = structural(base, "KV402", tools=False)
    for number, row in enumerate(planted.rows):
        notes = [
            f"Note {n}: the customer was asked about step {n} and agreed." for n in range(turn_of(row) // 2)
        ]
        for note in notes:
            row["messages"][0]["content"] += "\n" + note
        text = row["messages"][0]["content"]
        if notes:
            at = text.index(notes[0])
            planted.places[number] |= {("messages[0].content", text.index(note), len(text)) for note in notes}
            planted.places[number].add(("messages[0].content", at, len(text)))
    return planted


@shape("KV402 messages at the head")
def hoisted_messages(base: Base) -> Planted:
    planted = structural(base, "KV402", DESK)
    for number, row in enumerate(planted.rows):
        notes = [
            f"Policy update {n}: refunds above {n}00 dollars need a manager."
            for n in range(turn_of(row) // 2)
        ]
        row["messages"][1:1] = [{"role": "system", "content": note} for note in notes]
        for at, note in enumerate(notes, start=1):
            planted.places[number].add((f"messages[{at}].content", 0, len(note)))
    return planted


@shape("KV403 last messages only")
def window(base: Base) -> Planted:
    planted = structural(base, "KV403")
    for number, row in enumerate(planted.rows):
        row["messages"][1:] = row["messages"][1:][-3:]
        first = row["messages"][1]
        planted.places[number].add(("messages[1].content", 0, len(first.get("content") or "")))
        if first.get("tool_calls"):
            name = first["tool_calls"][0]["function"]["name"]
            planted.places[number].add(("messages[1].tool_calls[0].function.name", 0, len(name)))
        if first.get("name"):
            planted.places[number].add(("messages[1].name", 0, len(first["name"])))
    return planted


@shape("KV403 pinned first message")
def pinned_window(base: Base) -> Planted:
    planted = structural(base, "KV403", CODER)
    for number, row in enumerate(planted.rows):
        row["messages"][2:] = row["messages"][2:][-4:]
        if len(row["messages"]) > 2:
            for part, text in (
                ("content", row["messages"][2].get("content") or ""),
                ("name", row["messages"][2].get("name") or ""),
            ):
                planted.places[number].add((f"messages[2].{part}", 0, len(text)))
            if row["messages"][2].get("tool_calls"):
                name = row["messages"][2]["tool_calls"][0]["function"]["name"]
                planted.places[number].add(("messages[2].tool_calls[0].function.name", 0, len(name)))
    return planted


@shape("KV404 old answers pruned")
def pruned(base: Base) -> Planted:
    planted = structural(base, "KV404")
    for number, row in enumerate(planted.rows):
        for at in range(2, len(row["messages"]) - 4):
            message = row["messages"][at]
            if message["role"] == "assistant" and message.get("content"):
                message["content"] = "[earlier answer left out]"
                planted.places[number].add((f"messages[{at}].content", 0, len(message["content"])))
    return planted


@shape("KV404 compaction")
def compaction(base: Base) -> Planted:
    planted = structural(base, "KV404", DESK)
    for number, row in enumerate(planted.rows):
        if turn_of(row) >= 7:
            said = "Summary of the conversation so far: the guest asked for help and got it, step by step."
            row["messages"][1:5] = [{"role": "user", "content": said}]
            planted.places[number].add(("messages[1].content", 0, len(said)))
    return planted


@shape("KV405 ids in texts")
def call_ids(base: Base) -> Planted:
    planted = structural(base, "KV405")
    for number, row in enumerate(planted.rows):
        said = f"call_{base.rng.getrandbits(64):016x}"
        planted.truth[number]["messages"][1]["content"] += "\n[ref call_0000000000000000]"  # type: ignore[index]
        row["messages"][1]["content"] += f"\n[ref {said}]"
        planted.mark(number, "messages[1].content", row["messages"][1]["content"], said)
    return planted


@shape("KV406 results turned around")
def results(base: Base) -> Planted:
    planted = structural(base, "KV406")
    for rows in (planted.rows, planted.truth or []):
        for number, row in enumerate(rows):
            calls = [
                {
                    "id": f"p{n}",
                    "type": "function",
                    "function": {"name": "get_flight", "arguments": f'{{"n": {n}}}'},
                }
                for n in range(3)
            ]
            given = [
                {"role": "tool", "tool_call_id": f"p{n}", "content": f"flight {n}: " + MEMORIES[n]}
                for n in range(3)
            ]
            if rows is planted.rows and turn_of(row) % 4 == 3:
                given = given[::-1]
            row["messages"][2:2] = [{"role": "assistant", "content": None, "tool_calls": calls}, *given]
            if rows is planted.rows:
                planted.places[number] |= {
                    (f"messages[{3 + n}].content", 0, len(given[n]["content"])) for n in range(3)
                }
    return planted


@shape("KV407 spaces when read back")
def spaces_added(base: Base) -> Planted:
    planted = structural(base, "KV407")
    for number, row in enumerate(planted.rows):
        for at in range(1, len(row["messages"]) - 1):
            message = row["messages"][at]
            if message["role"] == "assistant" and message.get("content") and turn_of(row) % 4 == 1:
                before = len(message["content"])
                message["content"] += "  "
                planted.places[number].add((f"messages[{at}].content", before, before + 2))
    return planted


@shape("KV407 line ends")
def line_ends(base: Base) -> Planted:
    planted = structural(base, "KV407", DESK)
    for row in (*planted.rows, *(planted.truth or [])):
        row["messages"][1]["content"] = "Good day.\n" + row["messages"][1]["content"]
    for number, row in enumerate(planted.rows):
        if turn_of(row) % 4 == 3:
            row["messages"][1]["content"] = row["messages"][1]["content"].replace("\n", "\r\n")
        planted.places[number].add(("messages[1].content", 9, 10 + (turn_of(row) % 4 == 3)))
        planted.places[number] |= {("messages[1].content", 9, 10), ("messages[1].content", 9, 9)}
    return planted


@shape("KV601 model to and fro")
def models(base: Base) -> Planted:
    planted = structural(base, "KV601")
    for number, row in enumerate(planted.rows):
        if turn_of(row) % 4 == 1:
            row["model"] = "n"
        planted.places[number].add(("model", 0, 0))
    return planted


DISTRACTORS: list[tuple[str, Callable[[Base], list[Row]]]] = []


def distractor(name: str) -> Callable[[Callable[[Base], list[Row]]], Callable[[Base], list[Row]]]:
    """Enter a log that must stay silent."""

    def enter(make: Callable[[Base], list[Row]]) -> Callable[[Base], list[Row]]:
        DISTRACTORS.append((name, make))
        return make

    return enter


@distractor("clean")
def clean(base: Base) -> list[Row]:
    return base.rows()


@distractor("clean, another agent, no tools")
def clean_desk(base: Base) -> list[Row]:
    return base.rows(DESK, tools=False)


@distractor("the time stands last")
def time_last(base: Base) -> list[Row]:
    rows = base.rows()
    for row in rows:
        said = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(row["timestamp"]))
        last = row["messages"][-1]
        if last["role"] == "user":
            last["content"] += f"\n\nCurrent time: {said}"
        else:
            row["messages"].append({"role": "user", "content": f"Current time: {said}"})
    return rows


@distractor("constant ids and dates")
def constants(base: Base) -> list[Row]:
    rows = base.rows()
    for row in rows:
        head = row["messages"][0]
        head["content"] = (
            f"Deployment 6ba7b810-9dad-11d1-80b4-00c04fd430c8 of 2025-03-03 10:15:00.\n{head['content']}"
        )
    return rows


@distractor("ids in the envelope")
def envelope(base: Base) -> list[Row]:
    rows = base.rows()
    for row in rows:
        row["request_id"] = unique(0, row, base.rng)
        for message in row["messages"]:
            message["id"] = unique(0, row, base.rng)
            if message.get("tool_calls"):
                fresh = unique(0, row, base.rng)
                for call in message["tool_calls"]:
                    call["id"] = fresh
    return rows


@distractor("mixed traffic")
def mixed(base: Base) -> list[Row]:
    rows = base.rows()
    extra = []
    for row in rows:
        if turn_of(row) <= 2:
            title = [
                {"role": "system", "content": "Find a title of at most five words for the conversation."}
            ]
            extra.append(
                {**row, "messages": [*title, *row["messages"][1:2]], "timestamp": row["timestamp"] + 1}
            )
            extra[-1].pop("tools", None)
    others = base.rows(CODER, tools=False, sessions=4)
    for row in others:
        row["session_id"] = "c" + row["session_id"]
    return sorted([*rows, *extra, *others], key=lambda row: row["timestamp"])


@distractor("the customer's data stands last in the system prompt")
def user_last(base: Base) -> list[Row]:
    rows = base.rows(DESK, tools=False)
    for row in rows:
        row["messages"][0]["content"] += f"\n\nCustomer: {NAMES[int(row['session_id'][1:]) % 7]}"
    return rows


@distractor("questions of one form")
def forms(base: Base) -> list[Row]:
    return [
        {
            "messages": [
                {"role": "system", "content": DESK},
                {"role": "user", "content": f"Please look up order {n * 7919}."},
            ],
            "timestamp": START + n,
            "model": "m",
        }
        for n in range(40)
    ]


@distractor("regenerated answers")
def branches(base: Base) -> list[Row]:
    rows = base.rows()
    again = [
        {**copy.deepcopy(row), "timestamp": row["timestamp"] + 5} for row in rows if turn_of(row) % 4 == 1
    ]
    for row in again:
        row["messages"][-1]["content"] = "Let me say it in other words: " + str(
            row["messages"][-1].get("content")
        )
    return sorted([*rows, *again], key=lambda row: row["timestamp"])


@dataclass
class Score:
    planted: int = 0
    found: int = 0
    exact: int = 0
    false: int = 0
    worst: float = 0.0


def true_rate(rows: list[Row], encoder: PromptEncoder) -> float:
    requests = requests_of(rows)
    return replayed(requests, arrival_order(requests), encoder, BLOCK_SIZE).tokens


def is_exact(finding: Finding, planted: Planted) -> bool:
    place = finding.location
    return (place.path, place.start, place.end) in planted.places.get(place.row - 1, set())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dialogues", nargs="?", default=str(ROOT / "samples/airline-tau-bench.json"))
    parser.add_argument("--tools", default=str(ROOT / "samples/airline-chat.jsonl"))
    parser.add_argument("--tokenizer", default=None)
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    text = Path(options.tools).read_text(encoding="utf-8")
    tools = json.loads(text) if options.tools.endswith(".json") else json.loads(text.splitlines()[0])["tools"]
    base = Base(
        json.loads(Path(options.dialogues).read_text(encoding="utf-8")), sorted(tools, key=str), options.seed
    )
    encoder = load_encoder(options.tokenizer)
    scores: dict[str, Score] = defaultdict(Score)
    size = seconds = 0.0
    for name, plant in SHAPES:
        if options.only not in name:
            continue
        planted = plant(base)
        requests = requests_of(planted.rows)
        encoder.encode(requests)
        size += len(json.dumps(planted.rows))
        start = time.perf_counter()
        findings = find(requests, encoder, BLOCK_SIZE)
        seconds += time.perf_counter() - start
        score = scores[planted.code]
        score.planted += 1
        mine = [finding for finding in findings if finding.code == planted.code]
        others = [
            finding for finding in findings if finding.code != planted.code and finding.severity != "info"
        ]
        exact = any(is_exact(finding, planted) for finding in mine)
        score.found += bool(mine)
        score.exact += exact
        error = 1.0
        if mine and planted.truth is not None:
            error = abs(mine[0].hit_rate_if_fixed - true_rate(planted.truth, encoder))
            score.worst = max(score.worst, error)
        for finding in [*others, *mine[1:]]:
            scores[finding.code].false += 1
        if options.verbose or not exact or others or error > 0.005 or len(mine) > 1:
            print(f"{name}: {'exact' if exact else 'found' if mine else 'MISSED'}, rate error {error:.4f}")
            for finding in findings:
                place = finding.location
                print(
                    f"    {finding.code} {finding.severity} {place.row} "
                    f"{place.path}[{place.start}:{place.end}] "
                    f"{finding.slot!r} {finding.examples[:2]!r} lost {finding.lost_tokens}"
                )
            row = mine[0].location.row - 1 if mine else min(planted.places, default=0)
            if not exact:
                print(f"    expected in row {row + 1}: {sorted(planted.places.get(row, set()))[:3]}")
    for name, make in DISTRACTORS:
        if options.only not in name:
            continue
        for finding in find(requests_of(make(base)), encoder, BLOCK_SIZE):
            loud = finding.severity != "info"
            scores[finding.code].false += loud
            print(
                f"silent log '{name}': {finding.code} {finding.severity} {finding.location.path} "
                f"{finding.slot!r} {finding.examples[:2]} lost {finding.lost_tokens}"
            )
    print(f"\n{'rule':6} planted found exact false  recall precision  rate error")
    for code, score in sorted(scores.items()):
        recall = score.exact / score.planted if score.planted else 1.0
        precision = score.found / (score.found + score.false) if score.found + score.false else 1.0
        print(
            f"{code:6} {score.planted:7} {score.found:5} {score.exact:5} {score.false:5} "
            f"{recall:7.2f} {precision:9.2f} {score.worst:11.4f}"
        )
    planted_all = sum(score.planted for score in scores.values())
    exact_all = sum(score.exact for score in scores.values())
    found_all = sum(score.found for score in scores.values())
    false_all = sum(score.false for score in scores.values())
    print(
        f"all: recall {exact_all / max(planted_all, 1):.3f}, "
        f"precision {found_all / max(found_all + false_all, 1):.3f}, "
        f"{seconds / max(size / 1e6, 1e-9):.2f} s per MB"
    )


if __name__ == "__main__":
    main()
