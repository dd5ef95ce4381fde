"""KV701 below-block: what requests share is shorter than one block."""

from collections.abc import Iterable

from kvtool.lint.corpus import Corpus
from kvtool.lint.repair import Repair
from kvtool.lint.rule import Candidate, Docs, Sample
from kvtool.lint.samples import AGENT, chat
from kvtool.prompts.fields import Prompt
from kvtool.report import Fix

CHARACTERS_PER_TOKEN = 4
LEAST_REQUESTS = 20
"""Requests of an agent from which its instructions are worth a word."""


class BelowBlock:
    """Compares the length of an agent's constant instructions with the block size."""

    code = "KV701"
    name = "below-block"
    docs = Docs(
        what="Finds agents whose instructions are constant and shorter than one block.",
        why="Only full blocks are shared (providers ask for 1,024 tokens): such a prefix never hits.",
        instead="Use smaller blocks, or put more of what is constant (examples, tools) to the head.",
        references=(
            "vllm-project/vllm#53749",
            "jundot/omlx#3430",
        ),
    )
    valid = (Sample("longer instructions", [chat(AGENT, [f"Question {n}?"], time=n) for n in range(24)]),)
    invalid = (
        Sample(
            "two words",
            [chat("Be kind.", [f"{n} is a question about bag number {n}?"], time=n) for n in range(24)],
            path="messages[0].content",
        ),
    )

    def candidates(self, corpus: Corpus) -> Iterable[Candidate]:
        """One per agent with short instructions. Reported without a price: nothing is there to be won."""
        for members in corpus.members.values():
            heads = {_head(corpus.prompts[index]) for index in members}
            if len(members) < LEAST_REQUESTS or len(heads) > 1 or corpus.sessions(members) < LEAST_REQUESTS:
                continue
            head = heads.pop()
            if not head or len(head) >= corpus.block_size * CHARACTERS_PER_TOKEN // 2:
                continue
            field = corpus.prompts[members[0]].system()[0]
            yield Candidate(
                code=self.code,
                name=self.name,
                place=(corpus.first(members), field.path, field.role, 0, len(field.text)),
                template=f"{head[:60]}",
                key="head",
                message=f"{len(members)} requests share instructions that do not fill a block",
                examples=[],
                requests=members,
                distinct=1,
                fix=Fix("report", safe=False),
                repair=Repair(),
                always=True,
            )


def _head(prompt: Prompt) -> str:
    return "" if prompt.shows_tools() else "\n".join(field.text for field in prompt.system())


RULE = BelowBlock()
