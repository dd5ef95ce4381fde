"""Which requests continue which: by session id where the log has one, else by the text of the history.

A request continues an earlier one whose whole conversation (instructions left out) it begins with. The
conversations form a trie over fields, so finding the longest such request costs one step per field.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from kvtool.prompts.fields import Prompt

UNMISTAKABLE = 40
"""Characters of a message that hardly another conversation will hold by chance."""
AMBIGUOUS = -1
"""Stands for a text that several conversations hold."""


def number_conversations(prompts: Sequence[Prompt], order: Sequence[int]) -> list[int]:
    """A conversation number per prompt; `order` lists the prompts by arrival."""
    numbers = [-1] * len(prompts)
    sessions: dict[tuple[str | None, str], int] = {}
    nodes: dict[tuple[int, str, str], int] = {}
    ends: dict[int, int] = {}
    said: dict[str, int] = {}
    opened: dict[int, str] = {}
    count = 0
    for index in order:
        prompt = prompts[index]
        node, found = 0, -1
        for field in prompt.conversation():
            node = nodes.setdefault((node, field.role, field.text), len(nodes) + 1)
            found = ends.get(node, found)
        session = prompt.request.session
        if session is not None:
            key = (prompt.request.tenant, session)
            number = sessions.get(key, -1)
            if number < 0:
                number = sessions[key] = count
                count += 1
        elif found >= 0:
            number = found
        elif (known := _familiar(prompt, said, opened)) is not None:
            number = known
        else:
            number = count
            count += 1
        numbers[index] = number
        ends[node] = number
        opened[number] = _opening(prompt)
        for text in _memorable(prompt):
            said[text] = number if said.get(text, number) == number else AMBIGUOUS
    return numbers


def _memorable(prompt: Prompt) -> Iterator[str]:
    """Texts of the model and of tools that are long enough to be told apart."""
    for field in prompt.conversation():
        if field.role in ("assistant", "tool") and len(field.text) >= UNMISTAKABLE:
            yield field.text


def _familiar(prompt: Prompt, said: Mapping[str, int], opened: Mapping[int, str]) -> int | None:
    """Where this prompt's memorable texts were said before, if it rewrote its history.

    One text is enough only where the first message is nearly that conversation's: greetings repeat.
    """
    known = Counter(
        number for text in _memorable(prompt) if (number := said.get(text, AMBIGUOUS)) != AMBIGUOUS
    )
    for number, texts in known.most_common(1):
        if texts > 1 or _alike(_opening(prompt), opened[number]):
            return number
    return None


def _opening(prompt: Prompt) -> str:
    conversation = prompt.conversation()
    return conversation[0].text if conversation else ""


def _alike(a: str, b: str) -> bool:
    """Whether the shorter text's words stand in the other, most of them."""
    ours, theirs = Counter(a.split()), Counter(b.split())
    least = min(ours.total(), theirs.total())
    return least > 0 and (ours & theirs).total() >= 0.7 * least
