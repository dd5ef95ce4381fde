"""vcr: cassettes of recorded HTTP traffic (vcrpy); model calls of any known API are requests."""

from collections.abc import Iterator
from typing import Any

from kvtool.logs import bodies
from kvtool.logs.fields import count_or_none, microseconds, structured
from kvtool.logs.format import BadRow, Format
from kvtool.requests import Request, Source


class Cassette(Format):
    """A row is one cassette; its `interactions` hold request and response."""

    name = "vcr"
    rank = 70

    @classmethod
    def claims(cls, row: Any) -> bool:
        """`interactions`, each with a `request`."""
        interactions = row.get("interactions") if isinstance(row, dict) else None
        return (
            isinstance(interactions, list)
            and bool(interactions)
            and all(isinstance(one, dict) and isinstance(one.get("request"), dict) for one in interactions)
        )

    def read(self, row: Any, source: Source) -> Iterator[Request]:
        """One request for each interaction that is a model call; uploads and the like are passed over."""
        interactions = row.get("interactions") if isinstance(row, dict) else None
        if not isinstance(interactions, list):
            raise BadRow("no `interactions` in the row")
        for index, interaction in enumerate(interactions):
            recorded = interaction.get("request") if isinstance(interaction, dict) else None
            if not isinstance(recorded, dict):
                raise BadRow("interactions[].request is not an object")
            body, path = _body(recorded)
            url = str(recorded.get("uri") or recorded.get("url") or "")
            if bodies.api_of(body, url) is None:
                continue
            prompt = bodies.prompt_of(body, f"interactions[{index}].request.{path}", url)
            response = interaction.get("response")
            answer, _ = _body(response) if isinstance(response, dict) else (None, "")
            output, output_tokens = bodies.answer_of(answer) if isinstance(answer, dict) else (None, None)
            yield Request(
                id=f"{source.file}:{source.row}-{index}",
                source=source,
                arrival=microseconds(interaction.get("recorded_at")),
                model=prompt.model,
                messages=prompt.messages,
                tools=prompt.tools,
                output=output,
                output_tokens=count_or_none(output_tokens),
                paths=prompt.paths,
                incomplete=prompt.incomplete,
            )


def _body(recorded: dict[str, Any]) -> tuple[Any, str]:
    """(decoded body, path below the request): `parsed_body`, or `body` as text or as {string: text}."""
    if recorded.get("parsed_body") is not None:
        return recorded["parsed_body"], "parsed_body"
    body, path = recorded.get("body"), "body"
    if isinstance(body, dict) and "string" in body:
        body, path = body["string"], "body.string"
    value, step = structured(body)
    return value, path + step


FORMAT = Cassette
