"""Which requests continue which: by session id where the log has one, else by the text of the history.

A request continues an earlier one whose whole conversation (instructions left out) it begins with. The
conversations form a trie over fields, so finding the longest such request costs one step per field.
"""

from collections.abc import Sequence

from kvtool.prompts.fields import Prompt


def number_conversations(prompts: Sequence[Prompt], order: Sequence[int]) -> list[int]:
    """A conversation number per prompt; `order` lists the prompts by arrival."""
    numbers = [-1] * len(prompts)
    sessions: dict[tuple[str | None, str], int] = {}
    nodes: dict[tuple[int, str, str], int] = {}
    ends: dict[int, int] = {}
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
        else:
            number = count
            count += 1
        numbers[index] = number
        ends[node] = number
    return numbers
