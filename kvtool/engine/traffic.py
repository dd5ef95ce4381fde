"""The log read once more beside its plan: what each block holds, and what is asked behind it.

Roles come from the template's own spans (kvtool/spans.py), never from the look of a text. Requests are
sampled evenly over the log, so blocks are judged in proportion to their use; half of the sample chooses,
the other half is held back to judge the choice.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtool.analysis.plan import Plan
from kvtool.blocks import TokenIds
from kvtool.engine.trials import ANSWER, TAIL, Continuation
from kvtool.errors import KvtoolError
from kvtool.requests import Message, Request
from kvtool.spans import Rendered
from kvtool.tokens import PromptEncoder, batches

ROLES = {
    "system": {"system", "developer"},
    "tools": {"tools"},
    "user": {"user"},
    "assistant": {"assistant"},
    "tool": {"tool", "function"},
}
"""Values of `--protect` -> roles of spans."""

CALLS, OTHERS = 8, 4
"""Requests that call a tool next, and others: half of each choose, half judge."""

CALL_TAIL = 512
"""Tokens between stored blocks and a tool call at most: a call is only judged behind all of its prompt."""

DEEPEST_EXAMPLE = 4
"""Levels of nested objects in a tool's made-up arguments."""


@dataclass(frozen=True)
class Traffic:
    """protected: bool, for each row of the plan. probes choose, gates judge; no request is in both."""

    protected: NDArray[np.bool_]
    probes: list[Continuation]
    gates: list[Continuation]

    def behind(self, plan: Plan, kept: NDArray[np.bool_]) -> "Traffic":
        """The same where only the rows `kept` are stored: continuations begin where those end."""
        return replace(
            self,
            probes=[one for asked in self.probes for one in _begun_earlier(asked, plan, kept)],
            gates=[one for asked in self.gates for one in _begun_earlier(asked, plan, kept)],
        )


def read_traffic(
    plan: Plan,
    requests: Iterable[Request],
    encoder: PromptEncoder,
    protect: Sequence[str],
    max_positions: int,
) -> Traffic:
    """One pass over the log that `plan` was made from. Continuations and answers end at `max_positions`."""
    roles = {role for name in protect for role in ROLES[name]}
    rows = _Rows(plan)
    protected = np.zeros(len(plan), np.bool_)
    calls, others = _Sample(CALLS), _Sample(OTHERS)
    for batch in batches(requests):
        known, _ = encoder.taken(batch)
        for request, tokens in zip(known, encoder.encode(known), strict=True):
            path = rows.path(request.tenant, tokens)
            if not path:
                continue
            if roles:
                for first, last in _token_ranges(encoder.render(request), roles, encoder):
                    size = plan.block_size
                    protected[path[first // size : -(-last // size)]] = True
            if len(path) * plan.block_size >= max_positions - ANSWER:  # no room behind the last blocks
                path = path[: max(max_positions - ANSWER - TAIL, plan.block_size) // plan.block_size]
            begin = len(path) * plan.block_size
            tail = tokens[begin : max_positions - ANSWER]
            if len(tail):
                one = _candidate(request, path, tail, whole=begin + len(tail) == len(tokens))
                (calls if one.asked.call else others).offer(one)
    chosen = [*calls.taken(), *others.taken()]
    probes = [one.asked for one in chosen[0::2]]
    gates = [one.asked for one in chosen[1::2]] or probes
    return Traffic(protected, [*probes, *_tool_probes(chosen, rows, encoder, max_positions)], gates)


@dataclass(frozen=True, slots=True)
class _Candidate:
    request: Request
    asked: Continuation


def _candidate(request: Request, path: list[int], tail: TokenIds, whole: bool) -> _Candidate:
    output = request.output
    call = isinstance(output, dict) and bool(output.get("tool_calls") or output.get("function_call"))
    call = call and whole and len(tail) <= CALL_TAIL
    return _Candidate(request, Continuation(tuple(path), tail if call else tail[:TAIL], call))


def _begun_earlier(asked: Continuation, plan: Plan, kept: NDArray[np.bool_]) -> list[Continuation]:
    """The continuation behind those of its blocks that are kept, none if none is. One that calls a tool is
    as good as any other where too much stands before the call."""
    stored = int(kept[list(asked.rows)].sum())
    if stored in (0, len(asked.rows)):
        return [asked] if stored else []
    tokens = np.concatenate([plan.tokens[list(asked.rows[stored:])].ravel(), asked.tokens])
    call = asked.call and len(tokens) <= CALL_TAIL
    return [Continuation(asked.rows[:stored], tokens if call else tokens[:TAIL], call)]


class _Rows:
    """Finds a prompt's blocks in the plan."""

    def __init__(self, plan: Plan) -> None:
        self.size = plan.block_size
        self._tenants = {name: number for number, name in enumerate(plan.tenants)}
        self._shared = len(plan.tenants) == 1
        self._rows = {
            (parent, tenant, tokens.tobytes()): row
            for row, (parent, tenant, tokens) in enumerate(
                zip(plan.parent.tolist(), plan.tenant.tolist(), plan.tokens, strict=True)
            )
        }

    def path(self, tenant: str | None, tokens: TokenIds) -> list[int]:
        """Rows of a prompt's leading blocks; the last token is never reused."""
        number = 0 if self._shared else self._tenants.get(tenant or "", -1)
        path: list[int] = []
        above = -1
        for start in range(0, (len(tokens) - 1) // self.size * self.size, self.size):
            row = self._rows.get((above, number, tokens[start : start + self.size].tobytes()))
            if row is None:
                break
            path.append(row)
            above = row
        return path


class _Sample:
    """At most `size` of a stream, evenly spread over it whatever its length."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._stride = 1
        self._seen = 0
        self._kept: list[_Candidate] = []

    def offer(self, one: _Candidate) -> None:
        if self._seen % self._stride == 0:
            self._kept.append(one)
            if len(self._kept) == 2 * self._size:
                self._kept = self._kept[::2]
                self._stride *= 2
        self._seen += 1

    def taken(self) -> list[_Candidate]:
        places = np.linspace(0, len(self._kept) - 1, min(self._size, len(self._kept))).round()
        return [self._kept[int(place)] for place in places]


def _token_ranges(rendered: Rendered, roles: set[str], encoder: PromptEncoder) -> list[tuple[int, int]]:
    """Tokens [first, last) of the spans of some roles, with the template's text before and between them."""
    ranges: list[tuple[int, int]] = []
    before: str | None = "start"
    for span in rendered.spans:
        if span.role in roles:
            if before is None:
                ranges.append((span.start, span.end))
            elif before == "start":
                ranges.append((0, span.end))
            else:
                ranges[-1] = (ranges[-1][0], span.end)
            before = "wanted"
        else:
            before = None

    def count(end: int) -> int:
        return len(encoder.tokenizer.encode(rendered.text[:end])) if end else 0

    return [(count(start), count(end)) for start, end in ranges]


def _tool_probes(
    chosen: Sequence[_Candidate], rows: _Rows, encoder: PromptEncoder, max_positions: int
) -> list[Continuation]:
    """For each set of tools in the sample a made-up turn that calls every one of them, behind the head."""
    found: dict[str, Continuation] = {}
    for one in chosen:
        request = one.request
        key = json.dumps(request.tools, sort_keys=True)
        if not request.tools or not request.messages or key in found:
            continue
        head = [message for message in request.messages[:1] if message.get("role") in ROLES["system"]]
        calls = [_example_call(tool.get("function", tool), at) for at, tool in enumerate(request.tools)]
        turn: Message = {"role": "assistant", "content": "", "tool_calls": calls}
        with suppress(KvtoolError):  # a template may refuse a turn that no user's turn precedes
            text = encoder.template.render([*head, turn], request.tools, generation=False).text
            tokens = encoder.tokenizer.encode(text)[:max_positions]
            path = rows.path(request.tenant, tokens)
            if path:
                found[key] = Continuation(tuple(path), tokens[len(path) * rows.size :])
    return list(found.values())


def _example_call(function: dict[str, Any], number: int) -> dict[str, Any]:
    arguments = _example(function.get("parameters") or function.get("input_schema") or {}, "value")
    name = str(function.get("name", ""))
    return {
        "id": f"call{number:05d}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
    }


def _example(schema: Any, name: str, depth: int = 0) -> Any:
    """A value that a JSON schema allows, as far as one can tell from types, enums and defaults."""
    if not isinstance(schema, dict):
        return name
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    if "default" in schema:
        return schema["default"]
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    properties = schema.get("properties")
    if kind == "object" or isinstance(properties, dict):
        inner = properties if isinstance(properties, dict) and depth < DEEPEST_EXAMPLE else {}
        return {key: _example(part, key, depth + 1) for key, part in inner.items()}
    if kind == "array":
        return [_example(schema.get("items"), name, depth + 1)] if depth < DEEPEST_EXAMPLE else []
    return {"integer": 1, "number": 1.5, "boolean": True, "null": None}.get(str(kind), name)
