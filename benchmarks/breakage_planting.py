"""Planting into real dialogues: clean logs, where a breakage stands, and values that vary."""

import copy
import random
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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


Value = Callable[[int, Row, random.Random], str]
Plant = Callable[[Base], Planted]


def in_system(code: str, template: str, value: Value, where: str = "head", agent: str = "") -> Plant:
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


def in_tool(code: str, template: str, value: Value) -> Plant:
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
