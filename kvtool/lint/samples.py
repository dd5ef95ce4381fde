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


QUESTIONS = (
    "Where is my bag?",
    "Can you see it on a map?",
    "When does it arrive?",
    "Who brings it?",
    "Thank you!",
)
ANSWERS = (
    "It missed the connection in Chicago and was scanned there at noon. It is on the list for the evening.",
    "There is no map, only scans: Seattle in the morning, Chicago at noon, and nothing since then.",
    "The evening flight lands at nine, so it should be in the hall at about half past nine tonight.",
    "A driver brings it to the address in your booking and calls half an hour before he arrives.",
)


def history(count: int) -> list[str]:
    """User and assistant texts up to the `count`-th question."""
    texts = [text for pair in zip(QUESTIONS, ANSWERS, strict=False) for text in pair]
    return [*texts, QUESTIONS[-1]][: 2 * count - 1]


def dialogue(
    rows: Sequence[Sequence[str]], system: str = AGENT, session: str = "bag"
) -> list[dict[str, Any]]:
    """One session: a row per list of texts."""
    return [chat(system, texts, session=session, time=number * 30) for number, texts in enumerate(rows)]
