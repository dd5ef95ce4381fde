"""KV202 tool-set: tools added or taken away during a conversation."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from kvtool.lint.corpus import Corpus
from kvtool.lint.repair import Repair
from kvtool.lint.rule import Candidate, Docs, Sample
from kvtool.lint.samples import AGENT, TOOLS, chat, history
from kvtool.prompts.slots import tool_name
from kvtool.report import Fix, plural


class ToolSet:
    """Compares the names of tools between the requests of a conversation."""

    code = "KV202"
    name = "tool-set"
    fix = Fix("report", safe=False)
    docs = Docs(
        what="Finds conversations in which tools come or go, or whose last call is made without any.",
        why="Tools stand at the head of the prompt: one more or one less, and the whole history misses.",
        instead="Send all tools every time and forbid calls by tool_choice, or load tools at the end.",
        references=(
            "anthropics/claude-code#75142",
            "apmantza/pi-lens#1453",
        ),
    )
    valid = (
        Sample("the same tools", [chat(AGENT, history(n), TOOLS, "a", n) for n in (1, 2, 3)]),
        Sample(
            "a helper without tools",
            [chat(AGENT, history(1), TOOLS, "a", 1), chat("Find a title.", history(1)[:1], (), "a", 2)],
        ),
    )
    invalid = (
        Sample(
            "the last call without tools",
            [chat(AGENT, history(n), TOOLS if n < 4 else (), "a", n) for n in (1, 2, 3, 4)],
            path="tools",
        ),
    )

    def candidates(self, corpus: Corpus) -> Iterable[Candidate]:
        """One for all conversations whose requests deviate from their usual tools."""
        usual = self._usual(corpus)
        repair = Repair()
        places: list[int] = []
        examples: list[str] = []
        for indices in usual.values():
            names = Counter(_names(corpus, index) for index in indices)
            if len(names) < 2:
                continue
            tools = self._wanted(corpus, indices, names)
            best = tuple(sorted(map(tool_name, tools)))
            for index in indices:
                mine = _names(corpus, index)
                if mine != best:
                    repair.tools[index] = tools
                    places.append(index)
                    gone, come = sorted(set(best) - set(mine)), sorted(set(mine) - set(best))
                    examples.append(" ".join([*(f"-{n}" for n in gone), *(f"+{n}" for n in come)]))
        if not places:
            return
        first = corpus.first(places)
        yield Candidate(
            code=self.code,
            name=self.name,
            place=(first, "tools", "tools", 0, 0),
            template="{tool-set}",
            key="tools",
            message=f"tools come or go during {plural(corpus.sessions(places), 'conversation')}",
            examples=list(dict.fromkeys(examples))[:3],
            requests=sorted(places),
            distinct=len(places),
            fix=self.fix,
            repair=repair,
        )

    @staticmethod
    def _wanted(corpus: Corpus, indices: list[int], names: Counter[tuple[str, ...]]) -> list[dict[str, Any]]:
        """What each request of a conversation should have had: the tools that most have.

        Where no set is the usual one, all that the agent ever has.
        """
        if 2 * max(names.values()) <= len(indices):
            return _union(corpus, corpus.members[corpus.agent[indices[0]]])
        often = Counter(name for index in indices for name in set(_names(corpus, index)))
        return [tool for tool in _union(corpus, indices) if 2 * often[tool_name(tool)] > len(indices)]

    @staticmethod
    def _usual(corpus: Corpus) -> dict[tuple[int, int], list[int]]:
        """Requests by conversation and agent, only those that continue another or are continued."""
        linked: dict[tuple[int, int], list[int]] = {}
        seen: set[int] = set()
        for step in corpus.steps:
            for index in (step.previous, step.current):
                if index not in seen:
                    seen.add(index)
                    linked.setdefault((corpus.conversation[index], corpus.agent[index]), []).append(index)
        return linked


def _union(corpus: Corpus, indices: Iterable[int]) -> list[dict[str, Any]]:
    """Every tool of `indices` once, each behind the one that it followed where it was first seen."""
    tools: list[dict[str, Any]] = []
    for index in indices:
        at = 0
        for tool in corpus.requests[index].tools or []:
            names = [tool_name(known) for known in tools]
            if tool_name(tool) in names:
                at = names.index(tool_name(tool)) + 1
            else:
                tools.insert(at, tool)
                at += 1
    return tools


def _names(corpus: Corpus, index: int) -> tuple[str, ...]:
    return tuple(sorted(tool_name(tool) for tool in corpus.requests[index].tools or []))


RULE = ToolSet()
