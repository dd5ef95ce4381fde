"""Which requests come from the same agent: mixed traffic is normal, and only like is compared with like.

An agent is known by its instructions. Two instruction texts belong together when most of the shorter
one's lines stand in the other; where the lines themselves vary, their words decide. A text is compared
with one representative of each agent that shares a sentence, its opening or its end with it.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvtool.prompts.fields import Prompt
from kvtool.prompts.values import EAST_ASIAN

SAME_AGENT = 0.5
"""Part of the shorter text's characters that must stand in the other."""
OPENING = 16
"""Characters; texts that open or end alike, digits apart, are compared even if they share no sentence."""
_SENTENCE = re.compile(r"\s*\n\s*|(?<=[.!?])\s+|(?<=[。！？])")
_DIGIT = re.compile(r"\d")
_WORD = re.compile(rf"[{EAST_ASIAN}]|[^\W{EAST_ASIAN}]+|[^\w\s]")


@dataclass(slots=True)
class _Agent:
    number: int
    lines: Counter[str]
    size: int


@dataclass(slots=True)
class Agents:
    """Numbers agents as their texts come. `number` of equal texts is equal, whatever came between."""

    known: dict[tuple[str, str], int] = field(default_factory=dict)
    _agents: list[_Agent] = field(default_factory=list)
    _by_line: dict[tuple[str, str], list[_Agent]] = field(default_factory=dict)

    def number(self, kind: str, text: str) -> int:
        """The agent of `text`; texts of different `kind` never share one."""
        key = (kind, text)
        if key not in self.known:
            self.known[key] = self._find(kind, text)
        return self.known[key]

    def _find(self, kind: str, text: str) -> int:
        lines = Counter(line.strip() for line in text.split("\n") if line.strip())
        size = sum(len(line) * count for line, count in lines.items())
        bare = text.strip()
        edges = (_DIGIT.sub("0", bare[:OPENING]), _DIGIT.sub("0", bare[-OPENING:]))
        keys = [(kind, part) for part in (*dict.fromkeys(_SENTENCE.split(bare)), *edges)]
        rivals: dict[int, _Agent] = {}
        for key in keys:
            for agent in self._by_line.get(key, ()):
                rivals[agent.number] = agent
        best = max(
            ((_likeness(lines, size, agent), -agent.number) for agent in rivals.values()), default=(0.0, 0)
        )
        if best[0] >= SAME_AGENT:
            return -best[1]
        agent = _Agent(len(self._agents), lines, size)
        self._agents.append(agent)
        for key in keys:
            self._by_line.setdefault(key, []).append(agent)
        return agent.number


def _likeness(lines: Counter[str], size: int, agent: _Agent) -> float:
    """Shared characters over the shorter text's: whole lines first, then the words of the others."""
    shorter = min(size, agent.size)
    if not shorter:
        return 1.0
    common = lines & agent.lines
    shared = sum(len(line) * count for line, count in common.items())
    if shared < SAME_AGENT * shorter:
        ours, theirs = _words(lines - common), _words(agent.lines - common)
        overlap = sum(len(word) * count for word, count in (ours & theirs).items())
        total = min(_length(ours), _length(theirs))
        if total:
            shared += int((shorter - shared) * max(0.0, overlap / total * 2 - 1))  # half is chance
    return shared / shorter


def _words(lines: Counter[str]) -> Counter[str]:
    words: Counter[str] = Counter()
    for line in lines:
        words.update(_WORD.findall(line))
    return words


def _length(words: Counter[str]) -> int:
    return sum(len(word) * count for word, count in words.items())


def group(prompts: Sequence[Prompt]) -> list[int]:
    """The agent of each prompt, numbered in order of appearance."""
    agents = Agents()
    numbers = []
    for prompt in prompts:
        system = prompt.system()
        opening = system or [f for f in prompt.fields if f.message == prompt.head]
        numbers.append(agents.number("system" if system else "user", "\n".join(f.text for f in opening)))
    return numbers
