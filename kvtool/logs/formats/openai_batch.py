"""openai-batch: Batch API input files; an output file read with them gives the answers by custom_id."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kvtool.logs import bodies
from kvtool.logs.fields import structured, text_or_none
from kvtool.logs.format import BadRow, Format
from kvtool.requests import Request, Source


class OpenAIBatch(Format):
    """Input rows have `custom_id`, `method`, `url`, `body`; output rows `custom_id` and `response`.

    Output files are read first: a request is complete when it is met.
    """

    name = "openai-batch"
    rank = 55
    nothing = "a batch's output has answers only: name its input file too"

    @classmethod
    def claims(cls, row: Any) -> bool:
        """`custom_id` beside a `body` or a `response`."""
        return isinstance(row, dict) and "custom_id" in row and ("body" in row or "response" in row)

    @classmethod
    def order(cls, row: Any) -> int:
        """0 for an output row, 1 for an input row."""
        return 1 if isinstance(row, dict) and "body" in row else 0

    def read(self, row: Any, source: Source) -> Iterator[Request]:
        """One request an input row, none for an output row."""
        if not isinstance(row, dict) or "custom_id" not in row:
            raise BadRow("no `custom_id` in the row")
        name = text_or_none(row["custom_id"])
        answers = self.shared.setdefault("openai-batch", {})
        if "body" not in row:
            if name is not None:
                answers[name] = bodies.answer_of(row.get("response"))
            return
        body, step = structured(row["body"])
        if not isinstance(body, dict):
            raise BadRow("body is not an object")
        url = text_or_none(row.get("url")) or ""
        if isinstance(body.get("prompt"), str):
            request = Request(
                id=name or "", source=source, text=body["prompt"], paths={"text": f"body{step}.prompt"}
            )
        else:
            prompt = bodies.prompt_of(body, "body" + step, url)
            request = Request(
                id=name or "",
                source=source,
                messages=prompt.messages,
                tools=prompt.tools,
                paths=prompt.paths,
                incomplete=prompt.incomplete,
            )
        output, output_tokens = answers.pop(name, (None, None))
        yield replace(
            request,
            id=name or f"{source.file}:{source.row}",
            model=text_or_none(body.get("model")),
            output=output,
            output_tokens=output_tokens,
        )


FORMAT = OpenAIBatch
