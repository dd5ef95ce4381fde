"""Distractors: logs that hold what looks like a breakage and costs nothing. They must stay silent."""

import copy
import time
from collections.abc import Callable

from breakage_planting import CODER, DESK, NAMES, START, Base, Row, turn_of, unique

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


@distractor("a reminder behind the last message, said again each time")
def trailing(base: Base) -> list[Row]:
    rows = base.rows()
    for row in rows:
        row["messages"].append(
            {"role": "user", "content": "[harness] Two tasks are open; do not mention them."}
        )
    return rows


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
