"""Which requests continue which: by session id where the log has one, else by the text of the history.

A request continues an earlier one whose whole conversation (instructions left out) it begins with. The
conversations form a trie over fields, so finding the longest such request costs one step per field. White
space and Unicode form do not count: a history that was saved and read back is still the same one. Where
the history was rewritten, what only this conversation said tells: an answer, a tool's result, or the
message that the earlier request ended with and this one has answered.
"""

import unicodedata
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kvtool.prompts.fields import Prompt

UNMISTAKABLE = 40
"""Characters of a message that hardly another conversation will hold by chance."""
ENOUGH = 24
"""Characters of a request's last message by which the request that follows it is known."""
EDGE, RIVALS = 32, 16
"""Characters at either end by which a first message is looked up; conversations remembered for each."""
NEARLY = 0.8
"""Part of the shorter first message, at its two ends together, that a changed one still has."""
AMBIGUOUS = -1
"""Stands for a text that several conversations hold."""


def number_conversations(prompts: Sequence[Prompt], order: Sequence[int]) -> list[int]:
    """A conversation number per prompt; `order` lists the prompts by arrival."""
    numbers = [-1] * len(prompts)
    sessions: dict[tuple[str | None, str], int] = {}
    nodes: dict[tuple[int, str, str], int] = {}
    ends: dict[int, int] = {}
    said: dict[str, int] = {}
    asked: dict[str, int] = {}
    edges: dict[str, deque[tuple[str, int]]] = {}
    forms: dict[str, str] = {}
    opened: dict[int, str] = {}
    count = 0
    for index in order:
        prompt = prompts[index]
        node, found = 0, -1
        for field in prompt.conversation():
            if field.text not in forms:
                forms[field.text] = bare(field.text)
            node = nodes.setdefault((node, field.role, forms[field.text]), len(nodes) + 1)
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
        else:
            known = _familiar(prompt, said, asked, opened)
            number = _reopened(prompt, edges) if known is None else known
            if number < 0:
                number = count
                count += 1
        numbers[index] = number
        ends[node] = number
        opened[number] = _opening(prompt)
        for text in _memorable(prompt):
            said[text] = number if said.get(text, number) == number else AMBIGUOUS
        for text in _last(prompt):
            asked[text] = number if asked.get(text, number) == number else AMBIGUOUS
        if len(prompt.conversation()) == 1:
            for edge in _edges(opened[number]):
                edges.setdefault(edge, deque(maxlen=RIVALS)).append((opened[number], number))
    return numbers


def _edges(text: str) -> tuple[str, str]:
    return "<" + text[:EDGE], ">" + text[-EDGE:]


def _reopened(prompt: Prompt, edges: Mapping[str, Iterable[tuple[str, int]]]) -> int:
    """The conversation whose first message this prompt has with a change in it, the nearest one; -1: none."""
    opening = _opening(prompt)
    if len(prompt.conversation()) < 2 or len(opening) < UNMISTAKABLE:
        return -1
    best, found = NEARLY, -1
    for edge in _edges(opening):
        for text, number in edges.get(edge, ()):
            shorter = min(len(text), len(opening))
            head = _shared(text, opening)
            tail = _shared(text[head:][::-1], opening[head:][::-1])
            part = (head + tail) / shorter if len(text) >= UNMISTAKABLE else 0.0
            if part > best:
                best, found = part, number
    return found


def bare(text: str) -> str:
    """`text` in NFC without white space."""
    return "".join(unicodedata.normalize("NFC", text).split())


def _memorable(prompt: Prompt) -> Iterator[str]:
    """Texts of the model and of tools that are long enough to be told apart."""
    for field in prompt.conversation():
        if field.role in ("assistant", "tool") and len(field.text) >= UNMISTAKABLE:
            yield field.text


def _last(prompt: Prompt) -> Iterator[str]:
    """The last message, if it is long enough to be told apart: the next request has it answered."""
    conversation = prompt.conversation()
    if conversation and len(conversation[-1].text) >= ENOUGH:
        yield conversation[-1].text


def _familiar(
    prompt: Prompt, said: Mapping[str, int], asked: Mapping[str, int], opened: Mapping[int, str]
) -> int | None:
    """Where this prompt's memorable texts were said before, if it rewrote its history.

    One text is enough only where the first message is nearly that conversation's (greetings repeat), or
    where a request ended with it that this one goes on from.
    """
    known = Counter(
        number for text in _memorable(prompt) if (number := said.get(text, AMBIGUOUS)) != AMBIGUOUS
    )
    answered = {asked.get(field.text, AMBIGUOUS) for field in prompt.conversation()[:-1]} - {AMBIGUOUS}
    known.update(answered)
    for number, texts in known.most_common(1):
        if texts > 1 or number in answered or _alike(_opening(prompt), opened[number]):
            return number
    return None


def _shared(a: str, b: str) -> int:
    """Characters with which both begin."""
    shorter = min(len(a), len(b))
    return next((at for at in range(shorter) if a[at] != b[at]), shorter)


def _opening(prompt: Prompt) -> str:
    conversation = prompt.conversation()
    return conversation[0].text if conversation else ""


def _alike(a: str, b: str) -> bool:
    """Whether the shorter text's words stand in the other, most of them."""
    ours, theirs = Counter(a.split()), Counter(b.split())
    least = min(ours.total(), theirs.total())
    return least > 0 and (ours & theirs).total() >= 0.7 * least
