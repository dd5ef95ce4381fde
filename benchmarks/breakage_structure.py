"""Breakage of structure: tools, blocks that come and go, histories that are rewritten, models."""

import copy
import time
from collections.abc import Callable

from breakage_planting import CODER, DESK, MEMORIES, START, Base, Plant, Planted, turn_of

SHAPES: list[tuple[str, Plant]] = []


def shape(name: str) -> Callable[[Plant], Plant]:
    """Enter a planter in SHAPES."""

    def enter(plant: Plant) -> Plant:
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
