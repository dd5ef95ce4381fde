"""KV201 tool-order: the same tools in another order."""

import json
from collections.abc import Iterable

from kvtool.lint.corpus import Corpus
from kvtool.lint.repair import Repair
from kvtool.lint.rule import Candidate, Docs, Sample
from kvtool.lint.samples import AGENT, TOOLS, chat
from kvtool.prompts.edits import ToolEdit
from kvtool.prompts.slots import tool_name
from kvtool.report import Fix


class ToolOrder:
    """Compares the multiset of tools: equal sets in different orders are one cause per set."""

    code = "KV201"
    name = "tool-order"
    docs = Docs(
        what="Finds requests that list the same tools in different orders.",
        why="Tools stand at the head of the prompt; from the first one out of place on, all of it misses.",
        instead="Sort tools by name before every call: sets, maps and discovery have no order.",
        references=(
            "openclaw/openclaw#58037",
            "googleapis/mcp-toolbox#3463",
            "QwenLM/qwen-code#6338",
        ),
    )
    valid = (
        Sample("one order", [chat(AGENT, ["Hello"], TOOLS, time=n) for n in range(3)]),
        Sample(
            "another agent's order",
            [
                chat(AGENT, ["Hi"], TOOLS),
                chat("You translate menus into French.", ["Hi"], TOOLS[::-1], time=9),
            ],
        ),
    )
    invalid = (
        Sample(
            "reversed now and then",
            [chat(AGENT, ["Hello"], order, time=n) for n, order in enumerate((TOOLS, TOOLS[::-1], TOOLS))],
            path="tools",
        ),
    )

    def candidates(self, corpus: Corpus) -> Iterable[Candidate]:
        """One candidate per set of tools of an agent that comes in more than one order."""
        groups: dict[tuple[int, tuple[str, ...]], dict[tuple[str, ...], list[int]]] = {}
        for index in corpus.order:
            tools = corpus.requests[index].tools
            if tools and len(tools) > 1 and corpus.prompts[index].shows_tools():
                printed = tuple(json.dumps(tool, sort_keys=True) for tool in tools)
                key = (corpus.agent[index], tuple(sorted(printed)))
                groups.setdefault(key, {}).setdefault(printed, []).append(index)
        for orders in groups.values():
            if len(orders) > 1:
                yield self._candidate(orders, corpus)

    def _candidate(self, orders: dict[tuple[str, ...], list[int]], corpus: Corpus) -> Candidate:
        usual = max(orders, key=lambda order: len(orders[order]))
        repair = Repair()
        moved: list[int] = []
        for order, indices in orders.items():
            if order == usual:
                continue
            places: dict[str, list[int]] = {}
            for place, printed in enumerate(order):
                places.setdefault(printed, []).append(place)
            permutation = [places[printed].pop(0) for printed in usual]
            for index in indices:
                repair.tool_order[index] = permutation
            moved += indices
        names = [tool_name(json.loads(printed)) for printed in usual]
        first = corpus.first(moved)
        return Candidate(
            code=self.code,
            name=self.name,
            place=(first, "tools", "tools", 0, 0),
            template="{tool-order}",
            key=" ".join(sorted(names)),
            message=f"the same {len(names)} tools come in {len(orders)} orders",
            examples=[", ".join(tool_name(json.loads(p)) for p in order) for order in list(orders)[:3]],
            requests=moved,
            distinct=len(orders),
            fix=Fix("sort", safe=True),
            repair=repair,
            edits=[ToolEdit(self.code, "sort-tools")],
        )


RULE = ToolOrder()
