"""Building blocks for the samples in rule files: a small agent, its tools, rows in OpenAI chat form."""

from collections.abc import Sequence
from typing import Any

AGENT = (
    "You are the assistant of a small airline. Answer questions about bookings, baggage and flight status. "
    "Before you change a booking, repeat the change and wait until the customer has agreed to it. "
    "Never invent flights, prices or rules. If a request is outside of what your tools can do, hand the "
    "conversation to a person. Keep answers short, use the customer's language, and name amounts in dollars."
)


def tool(name: str, description: str, *parameters: str) -> dict[str, Any]:
    """A function with string parameters."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {parameter: {"type": "string"} for parameter in parameters},
                "required": list(parameters),
            },
        },
    }


TOOLS = (
    tool("find_booking", "Look a booking up by its code and return its flights and passengers.", "code"),
    tool("flight_status", "Return departure, gate and delay of a flight on a day.", "flight", "day"),
    tool("track_bag", "Return the last place where a bag was scanned.", "tag"),
)


def chat(
    system: str,
    texts: Sequence[str],
    tools: Sequence[dict[str, Any]] = (),
    session: str | None = None,
    time: float = 0,
) -> dict[str, Any]:
    """A row: `texts` are user and assistant messages in turn."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for number, text in enumerate(texts):
        messages.append({"role": "assistant" if number % 2 else "user", "content": text})
    row: dict[str, Any] = {"messages": messages, "timestamp": 1_740_000_000 + time}
    if tools:
        row["tools"] = list(tools)
    if session is not None:
        row["session_id"] = session
    return row


def turns(system: str, count: int, tools: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """`count` requests of one clean session, each with the history of the one before it."""
    texts: list[str] = []
    rows = []
    for number in range(count):
        texts = [*texts, f"Question number {number} about my bag?"]
        rows.append(chat(system, texts, tools, session="clean", time=number * 30))
        texts = [*texts, f"The answer to question {number} is that it is on its way."]
    return rows
