"""KV103 request-nonce: an identifier that is new for every request."""

from kvtool.lint.corpus import Corpus
from kvtool.lint.rule import Docs, Sample
from kvtool.lint.samples import AGENT, chat, turns
from kvtool.lint.spread import changes_in_sessions, unique_share
from kvtool.prompts.slots import Slot
from kvtool.prompts.values import is_identifier, mostly
from kvtool.report import Fix

IDS = ("9f8e7d6c5b4a", "1a2b3c4d5e6f", "77c0ffee1234")


class RequestNonce:
    """Names slots whose values look random and hardly ever come twice."""

    code = "KV103"
    name = "request-nonce"
    fix = Fix("strip", safe=False)
    docs = Docs(
        what="Finds request ids, billing hashes and random strings in the system prompt or in tools.",
        why="Everything behind a value that is unique per request misses the cache, always.",
        instead="Send such ids in a header or in the request's metadata; the model has no use for them.",
        references=(
            "anthropics/claude-code#68900",
            "ollama/ollama#14918",
            "ggml-org/llama.cpp#20623",
        ),
    )
    valid = (
        Sample("a constant id", turns(f"Deployment 9f8e7d6c5b4a.\n{AGENT}", 3)),
        Sample(
            "ids in the envelope",
            [{**row, "request_id": i} for row, i in zip(turns(AGENT, 3), IDS, strict=True)],
        ),
    )
    invalid = (
        Sample(
            "a request id in the first line",
            [chat(f"Request ID: {i}\n{AGENT}", ["Where is my bag?"], time=n) for n, i in enumerate(IDS)],
            path="messages[0].content",
            slot=IDS[0],
        ),
    )

    def claims(self, slot: Slot, corpus: Corpus) -> bool:
        """Identifiers, nearly all distinct, changing within sessions."""
        return (
            mostly(slot.values(), is_identifier)
            and unique_share(slot) >= 0.8
            and changes_in_sessions(slot, corpus, 0.8)
        )

    def message(self, slot: Slot, corpus: Corpus) -> str:
        """Says how many values there are."""
        return f"an identifier in the {slot.role} prompt is new in nearly every request"


RULE = RequestNonce()
