"""KV502 template-bos: a prompt that begins with two begin-of-text tokens."""

from collections.abc import Iterable

from kvtool.lint.corpus import Corpus
from kvtool.lint.repair import Repair
from kvtool.lint.rule import Candidate, Docs, Sample
from kvtool.lint.samples import AGENT
from kvtool.report import Fix, plural

MARKS = ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<\uff5cbegin\u2581of\u2581sentence\uff5c>")


class TemplateBos:
    """Looks at the first tokens of rendered prompts."""

    code = "KV502"
    name = "template-bos"
    docs = Docs(
        what="Finds prompts whose text already begins with the token that the template or tokenizer adds.",
        why="Token 0 decides the whole prefix: two ways to begin make two caches, and answers get worse.",
        instead="Add it in one place only: in the template, or by the tokenizer.",
        references=(
            "sgl-project/sglang#888",
            "janhq/cortex.cpp#618",
        ),
    )
    valid = (Sample("one mark", [{"prompt": f"<s>{AGENT} Hello {n}", "timestamp": n} for n in range(2)]),)
    invalid = (
        Sample(
            "two marks",
            [{"prompt": f"<s><s>{AGENT} Hello {n}", "timestamp": n} for n in range(2)],
            path="prompt",
        ),
    )

    def candidates(self, corpus: Corpus) -> Iterable[Candidate]:
        """One for all prompts that begin twice. Reported without a price."""
        own = corpus.encoder.tokenizer.special_tokens.get("bos_token")
        marks = {*MARKS, own} if isinstance(own, str) and own else set(MARKS)
        found = []
        for index, prompt in enumerate(corpus.prompts):
            opening = prompt.opening
            if any(opening.replace(" ", "").startswith(mark * 2) for mark in marks):
                found.append(index)
        if found:
            first = corpus.prompts[found[0]].fields[0]
            yield Candidate(
                code=self.code,
                name=self.name,
                place=(found[0], first.path, first.role, 0, 0),
                template="{template-bos}",
                key="token 0",
                message=f"two begin-of-text tokens at the head of {plural(len(found), 'prompt')}",
                examples=[],
                requests=found,
                distinct=1,
                fix=Fix("report", safe=False),
                repair=Repair(),
                always=True,
            )


RULE = TemplateBos()
