"""Which requests continue which: by session id where the log has one, else by the text of the history.

A request continues an earlier one whose whole conversation (instructions left out) it begins with. The
conversations form a trie over fields, so finding the longest such request costs one step per field.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from kvtool.prompts.fields import Prompt

UNMISTAKABLE = 40
"""Characters of an assistant message that no other conversation will hold by chance."""


def number_conversations(prompts: Sequence[Prompt], order: Sequence[int]) -> list[int]:
    """A conversation number per prompt; `order` lists the prompts by arrival."""
    numbers = [-1] * len(prompts)
    sessions: dict[tuple[str | None, str], int] = {}
    nodes: dict[tuple[int, str, str], int] = {}
    ends: dict[int, int] = {}
    said: dict[str, int] = {}
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
        elif (known := _familiar(prompt, said)) is not None:
            number = known
        else:
            number = count
            count += 1
        numbers[index] = number
        ends[node] = number
        for field in prompt.conversation():
            if field.role == "assistant" and len(field.text) >= UNMISTAKABLE:
                said[field.text] = number
    return numbers


def _familiar(prompt: Prompt, said: Mapping[str, int]) -> int | None:
    """Where most of this prompt's assistant messages were said before, if it rewrote its history."""
    heard = [
        field.text for field in prompt.conversation() if field.role == "assistant" and field.text in said
    ]
    if len(heard) < 2 and sum(map(len, heard)) < 5 * UNMISTAKABLE:
        return None
    return Counter(said[text] for text in heard).most_common(1)[0][0]
