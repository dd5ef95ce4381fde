"""KV203 schema-churn: the same tool with its JSON printed or worded differently."""

import json
from collections.abc import Iterable

from kvtool.lint.corpus import Corpus
from kvtool.lint.repair import Repair
from kvtool.lint.rule import Candidate, Docs, Sample
from kvtool.lint.samples import AGENT, TOOLS, chat
from kvtool.prompts.edits import ToolEdit
from kvtool.prompts.forms import canonical_tool
from kvtool.prompts.slots import Slot, tool_name, worded
from kvtool.report import Fix, plural


def _turned(tool: dict[str, object]) -> dict[str, object]:
    """The tool with the keys of its function in another order."""
    function = tool["function"]
    assert isinstance(function, dict)
    return {**tool, "function": dict(reversed(list(function.items())))}


class SchemaChurn:
    """Compares prints of each tool by name; wordings that vary are slots of the tool."""

    code = "KV203"
    name = "schema-churn"
    fix = Fix("canonicalize", safe=True)
    docs = Docs(
        what="Finds tools that keep their name and change: key order, schema, descriptions.",
        why="Tools are printed at the head of the prompt; from the first difference on, all of it misses.",
        instead="Print schemas with sorted keys, once, and keep descriptions free of what varies.",
        references=(
            "github/copilot-sdk#1931",
            "maximhq/bifrost#2082",
            "sgl-project/sglang#34553",
        ),
    )
    valid = (Sample("the same print", [chat(AGENT, ["Hello"], TOOLS, time=n) for n in range(3)]),)
    invalid = (
        Sample(
            "keys in another order",
            [
                chat(AGENT, ["Hello"], TOOLS if n % 2 else [_turned(tool) for tool in TOOLS], time=n)
                for n in range(4)
            ],
            path="tools[0]",
        ),
    )

    def claims(self, slot: Slot, corpus: Corpus) -> bool:
        """A wording in a tool that no value rule knows."""
        return slot.key[0] == "tools"

    def message(self, slot: Slot, corpus: Corpus) -> str:
        """Names the tool."""
        return f"the text of tool {slot.key[1]} has {len(slot.values())} versions"

    def candidates(self, corpus: Corpus) -> Iterable[Candidate]:
        """Per agent one for the order of keys and of lists that are sets, one for other changes."""
        for members in corpus.members.values():
            prints: dict[str, dict[str, list[tuple[int, int]]]] = {}
            for index in members:
                for number, tool in enumerate(corpus.requests[index].tools or []):
                    printed = json.dumps(tool, ensure_ascii=False)
                    prints.setdefault(tool_name(tool), {}).setdefault(printed, []).append((index, number))
            order = {name: versions for name, versions in prints.items() if _one(versions, _sorted)}
            other = {
                name: versions
                for name, versions in prints.items()
                if len(versions) > 1 and name not in order and not _one(versions, worded)
            }
            if order:
                yield self._candidate(order, corpus, "order inside", Fix("canonicalize", safe=True))
            if other:
                yield self._candidate(other, corpus, "schemas", Fix("report", safe=False))

    def _candidate(
        self, tools: dict[str, dict[str, list[tuple[int, int]]]], corpus: Corpus, what: str, fix: Fix
    ) -> Candidate:
        repair = Repair()
        places: list[tuple[int, int]] = []
        distinct = 0
        for versions in tools.values():
            usual = max(versions, key=lambda printed: len(versions[printed]))
            distinct = max(distinct, len(versions))
            for printed, found in versions.items():
                if printed == usual:
                    continue
                places += found
                for index, number in found:
                    changed = repair.tools.setdefault(index, list(corpus.requests[index].tools or []))
                    changed[number] = json.loads(usual)
        first, number = min(places)
        return Candidate(
            code=self.code,
            name=self.name,
            place=(first, f"tools[{number}]", "tools", 0, 0),
            template=f"{{schema-churn: {what}}}",
            key=what,
            message=f"{what} of {plural(len(tools), 'tool')}: {distinct} versions",
            examples=list(tools)[:3],
            requests=sorted({index for index, _ in places}),
            distinct=distinct,
            fix=fix,
            repair=repair,
            edits=[ToolEdit(self.code, "canonical-tools")] if fix.safe else [],
        )


def _sorted(tool: object) -> str:
    return json.dumps(canonical_tool(tool))


def _one(versions: dict[str, list[tuple[int, int]]], form: object) -> bool:
    """More than one print, and one form for all of them."""
    assert callable(form)
    return len(versions) > 1 and len({form(json.loads(printed)) for printed in versions}) == 1


RULE = SchemaChurn()
