"""`response_format` and forced tool calls: answers held to JSON, by masking the tokens that could not go on.

The grammar engine is llguidance, an optional extra: without it a request that wants JSON is refused, never
answered as if it were constrained.
"""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvtool.engine.compute.model import Model
from kvtool.engine.serving.api import ApiError, ResponseFormat, Tool, ToolChoice
from kvtool.engine.serving.generation import Choose
from kvtool.engine.serving.tool_calls import CLOSE, OPEN
from kvtool.tokens import FastTokenizer

EXTRA = "pip install 'kvtool[json]'"

SPACE = r"[ \n\t]{0,12}"
"""White space between tokens of JSON: enough for an indented document, and no endless line of blanks."""


class Grammars:
    """Compiles grammars for one model's tokenizer, which is read when the first request wants one."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._tokenizer: Any = None

    def compile(self, wanted: ResponseFormat) -> str:
        """The grammar of a response_format that is not `text`; 400 where it cannot be held to."""
        place = "response_format"
        if not _installed():
            raise _refused(place, f"{wanted.type} needs an extra that this server lacks: {EXTRA}")
        from llguidance import LLMatcher

        schema: Any = {"type": "object"}
        if wanted.type == "json_schema":
            schema = (wanted.json_schema or {}).get("schema")
            if not isinstance(schema, dict | bool):
                raise _refused(place, "json_schema.schema must be a JSON schema")
        try:
            grammar = LLMatcher.grammar_from_json_schema(
                json.dumps(schema), overrides={"whitespace_pattern": SPACE}
            )
        except (ValueError, RecursionError) as error:
            raise _refused(place, f"the schema cannot be held to: {error}") from error
        return self._checked(str(grammar), place)

    def call(self, tools: Sequence[Tool], choice: str | ToolChoice) -> str:
        """The grammar of one call of the tool that `tool_choice` names, or of any that is `required`."""
        if not _installed():
            raise _refused(
                "tool_choice", f"a call can be forced only with an extra that this server lacks: {EXTRA}"
            )
        wanted = None if isinstance(choice, str) else choice.function.name
        able = [tool.function for tool in tools if wanted in (None, tool.function.name)]
        if not able:
            raise _refused("tool_choice", "names no tool of this request")
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": function.name},
                    "arguments": (function.model_extra or {}).get("parameters") or {"type": "object"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for function in able
        ]
        schema = json.dumps({"anyOf": calls, "x-guidance": {"whitespace_pattern": SPACE}})
        return self._checked(f'start: "{OPEN}\\n" call "\\n{CLOSE}"\ncall: %json {schema}\n', "tool_choice")

    def constrain(self, choose: Choose, grammar: str) -> Choose:
        """`choose` among the tokens that the grammar allows; for one answer, from its first token on."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self._ll_tokenizer(), grammar, log_level=0)
        end = min(self._model.stop_tokens)

        def pick(logits: Tensor, generated: Sequence[int]) -> int:
            if matcher.is_error() or matcher.is_stopped():
                return end
            allowed = _allowed(matcher.compute_bitmask(), logits.shape[0]).to(logits.device)
            token = choose(logits.masked_fill(~allowed, -torch.inf), generated)
            matcher.consume_token(token)
            return token

        return pick

    def _checked(self, grammar: str, place: str) -> str:
        from llguidance import LLMatcher

        try:
            problem = LLMatcher.validate_grammar(grammar, self._ll_tokenizer())
        except (ValueError, RecursionError) as error:
            problem = str(error)
        if problem:
            raise _refused(place, f"the schema cannot be held to: {problem.splitlines()[0][:200]}")
        return grammar

    def _ll_tokenizer(self) -> Any:
        if self._tokenizer is None:
            from llguidance import LLTokenizer

            tokenizer = self._model.encoder.tokenizer
            assert isinstance(tokenizer, FastTokenizer)  # every model directory's is
            self._tokenizer = LLTokenizer(
                tokenizer.to_json(),
                n_vocab=self._model.config.vocab,
                eos_token=sorted(self._model.stop_tokens),
            )
        return self._tokenizer


def _allowed(bits: bytes, vocab: int) -> Tensor:
    """llguidance's mask, a bit a token -> bool [vocab]."""
    mask = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    padded = np.zeros(vocab, np.bool_)
    count = min(vocab, len(mask))
    padded[:count] = mask[:count]
    return torch.from_numpy(padded)


def _installed() -> bool:
    return find_spec("llguidance") is not None


def _refused(place: str, why: str) -> ApiError:
    return ApiError(400, f"{place}: {why}", param=place)
