"""swe-agent: `.traj` files; every step of the trajectory is one request."""

from collections.abc import Iterator
from typing import Any

from kvtool.logs import chat
from kvtool.logs.fields import text_or_none
from kvtool.logs.format import BadRow, Format
from kvtool.requests import Message, Request, Source


class SWEAgent(Format):
    """A row is one run. A step's `query` is its exact prompt; else `messages`, which already end with the
    step's own answer; else the `history` before the step's answer."""

    name = "swe-agent"
    rank = 70

    @classmethod
    def claims(cls, row: Any) -> bool:
        """`trajectory` steps beside a `history`."""
        return (
            isinstance(row, dict)
            and isinstance(row.get("trajectory"), list)
            and isinstance(row.get("history"), list)
        )

    def read(self, row: Any, source: Source) -> Iterator[Request]:
        """Steps in order; those whose prompt a history processor rewrote unseen are incomplete."""
        if not isinstance(row, dict) or not isinstance(row.get("trajectory"), list):
            raise BadRow("no `trajectory` in the row")
        history = row.get("history")
        model_at = {"model": "replay_config.agent.model.name"}
        paths: dict[str, str] = {"messages": "history", **model_at}
        past = chat.chat_messages(history, "history", paths) if history else []
        answers = [index for index, message in enumerate(past) if message["role"] == "assistant" and index]
        answers = [index for index in answers if not past[index].get("is_demo")]
        keep = _observations_kept(row)
        model, session = _model(row), _session(row, source)
        for index, step in enumerate(row["trajectory"]):
            if not isinstance(step, dict):
                raise BadRow("trajectory[] is not an object")
            incomplete = None
            if step.get("query"):
                places = {"messages": f"trajectory[{index}].query", **model_at}
                messages = chat.chat_messages(step["query"], "trajectory[].query", places)
            elif step.get("messages"):
                places = {"messages": f"trajectory[{index}].messages", **model_at}
                messages = _before_answer(
                    chat.chat_messages(step["messages"], "trajectory[].messages", places)
                )
            elif index < len(answers):
                places, messages = paths, past[: answers[index]]
                if keep is not None and index > keep:
                    incomplete = (
                        "earlier observations were elided by a history processor the file does not show"
                    )
            else:
                raise BadRow("a step without query, messages or history")
            if not messages:
                raise BadRow("a step without a prompt")
            yield Request(
                id=f"{session}-{index}",
                source=source,
                session=session,
                model=model,
                messages=messages,
                output=text_or_none(step.get("response")),
                paths=places,
                incomplete=incomplete or self._tools_missing(past),
            )

    def _tools_missing(self, past: list[Message]) -> str | None:
        """Runs with function calling had tools in their prompts that the file does not hold."""
        return "the file records no tools" if any(message.get("tool_calls") for message in past) else None


def _before_answer(messages: list[Message]) -> list[Message]:
    last = max(
        (index for index, message in enumerate(messages) if message["role"] == "assistant"), default=None
    )
    return messages if last is None else messages[:last]


def _agent(row: dict[str, Any]) -> dict[str, Any]:
    config = row.get("replay_config")
    agent = config.get("agent") if isinstance(config, dict) else None
    return agent if isinstance(agent, dict) else {}


def _model(row: dict[str, Any]) -> str | None:
    model = _agent(row).get("model")
    return text_or_none(model.get("name")) if isinstance(model, dict) else None


def _session(row: dict[str, Any], source: Source) -> str:
    return text_or_none(_agent(row).get("name")) or f"{source.file}:{source.row}"


def _observations_kept(row: dict[str, Any]) -> int | None:
    """n of a last-n-observations processor (None: none is recorded)."""
    tools = _agent(row).get("tools")
    for place in (_agent(row), tools if isinstance(tools, dict) else {}):
        listed = place.get("history_processors")
        processors = listed if isinstance(listed, list) else [place.get("history_processor")]
        for processor in processors:
            if isinstance(processor, dict) and processor.get("type") == "last_n_observations":
                n = processor.get("n")
                return n if type(n) is int else None
    return None


FORMAT = SWEAgent
