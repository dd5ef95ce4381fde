"""KV503 retokenization: an answer whose text, sent back, is other tokens than those that were generated."""

from collections.abc import Iterable, Sequence
from typing import Any

from kvtool.lint.corpus import Corpus
from kvtool.lint.repair import Repair
from kvtool.lint.rule import Candidate, Docs, Sample
from kvtool.lint.samples import AGENT, chat, history
from kvtool.report import Fix, plural
from kvtool.tokens import BytesTokenizer


def _answered(cut: int) -> list[dict[str, Any]]:
    """Two turns, the first with the ids of its answer, as if the model had split it at character `cut`."""
    answer = history(2)[1]
    tokens = BytesTokenizer()
    ids = [*tokens.encode(answer[:cut]).tolist(), *tokens.encode(answer[cut:]).tolist()]
    response = {"choices": [{"message": {"role": "assistant", "content": answer}, "token_ids": ids}]}
    first = {**chat(AGENT, history(1), session="a"), "response": response}
    return [first, chat(AGENT, history(2), session="a", time=9)]


class Retokenization:
    """Encodes generated texts again and compares with their ids, where the tokenizer is the log's own."""

    code = "KV503"
    name = "retokenization"
    docs = Docs(
        what="Finds answers whose text is tokenized in another way when the next request sends it back.",
        why="A server keeps what belongs to the tokens it generated; from the first other one on, it misses.",
        instead="Send token ids back where the server takes them; nothing in the prompt's text can help.",
        references=(
            "kubernetes-sigs/inference-perf#649",
            "mlc-ai/mlc-llm#3179",
            "PrimeIntellect-ai/prime-rl#1863",
        ),
    )
    valid = (Sample("the same tokens", _answered(8)),)
    invalid = (Sample("split elsewhere", _answered(7), path="messages[2].content"),)

    def candidates(self, corpus: Corpus) -> Iterable[Candidate]:
        """One for all answers. Information: replay knows prompts, not what stays of answers."""
        found: list[tuple[int, str, str | None, int, int]] = []
        lost = generated = 0
        for step in corpus.steps:
            ids = corpus.requests[step.previous].output_ids
            output = corpus.requests[step.previous].output
            text = output.get("content") if isinstance(output, dict) else output
            if ids is None or not isinstance(text, str) or not text:
                continue
            place = _sent_back(corpus, step.current, text)
            again = corpus.encoder.tokenizer.encode(text).tolist()
            if place is None or again == list(ids[: len(again)]):
                continue
            if corpus.encoder.tokenizer.decode(ids).replace("\0", "").strip() != text.strip():
                continue  # another tokenizer than the log's, or the text was changed; NUL pads bytes
            same = _shared(ids, again)
            start = len(corpus.encoder.tokenizer.decode(ids[:same]))
            path, offset = place
            found.append((step.current, path, "assistant", offset + start, offset + len(text)))
            lost += len(ids) - same
            generated += len(ids)
        if found:
            yield Candidate(
                code=self.code,
                name=self.name,
                place=min(found),
                template=f"assistant: {{{self.name}}}",
                key="answers",
                message=f"{plural(len(found), 'answer')} sent back as other tokens: "
                f"{lost:,} of {generated:,} generated tokens are not reused",
                examples=[],
                requests=sorted({one[0] for one in found}),
                distinct=len(found),
                fix=Fix("report", safe=False),
                repair=Repair(),
                always=True,
            )


def _sent_back(corpus: Corpus, index: int, text: str) -> tuple[str, int] | None:
    """(path, offset) of the model's message in request `index` that is `text`."""
    for field in corpus.prompts[index].conversation():
        if field.role == "assistant" and field.text == text and field.offset >= 0:
            return field.path, field.offset
    return None


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Ids with which both begin."""
    shorter = min(len(a), len(b))
    return next((at for at in range(shorter) if a[at] != b[at]), shorter)


RULE = Retokenization()
