"""KV402 hoisted-system: system messages of mid-conversation lifted to the head, which grows turn by turn."""

from collections.abc import Iterable

from kvtool.lint.corpus import Corpus
from kvtool.lint.history import Break, Place, history_candidate
from kvtool.lint.repair import Repair
from kvtool.lint.rule import Candidate, Docs, Sample
from kvtool.lint.samples import AGENT, chat, history
from kvtool.lint.spread import steps
from kvtool.prompts.fields import Field
from kvtool.prompts.slots import Slot
from kvtool.prompts.turns import Step
from kvtool.report import Fix, plural

NOTES = ["The bag was found.", "A driver has been called.", "The driver is on his way."]


class HoistedSystem:
    """Looks for heads that begin with the head of the request before and go on."""

    code = "KV402"
    name = "hoisted-system"
    fix = Fix("report", safe=False)
    docs = Docs(
        what="Finds system texts that are collected at the head and grow during a conversation.",
        why="Each new note stands before the history, so the whole history is computed again.",
        instead="Leave notes where they were said, as user messages where the API has no other place.",
        references=(
            "BerriAI/litellm#36559",
            "maximhq/bifrost#4592",
            "Blaizzy/mlx-vlm#2052",
        ),
    )
    valid = (Sample("a fixed head", [chat(AGENT, history(n), session="a", time=n) for n in (1, 2, 3)]),)
    invalid = (
        Sample(
            "notes at the end of the system prompt",
            [
                chat("\n".join([AGENT, *NOTES[: n - 1]]), history(n), session="a", time=n)
                for n in (1, 2, 3, 4)
            ],
            path="messages[0].content",
            slot=NOTES[0],
        ),
    )

    def claims(self, slot: Slot, corpus: Corpus) -> bool:
        """A text at the end of the instructions that goes on where it stopped, within conversations."""
        if slot.after.strip():
            return False
        grew = 0
        for before, after in steps(slot, corpus):
            if before.startswith(after):
                continue  # the same, or the conversation starts over
            if not after.startswith(before):
                return False
            grew += before != ""
        return grew > 0

    def message(self, slot: Slot, corpus: Corpus) -> str:
        """Says how many states there are."""
        return f"the {slot.role} prompt grows during conversations: {len(slot.values())} states"

    def candidates(self, corpus: Corpus) -> Iterable[Candidate]:
        """One for all heads that gain messages."""
        breaks: list[Break] = []
        longer: set[int] = set()
        for step in corpus.steps:
            if corpus.prompts[step.current].head > corpus.prompts[step.previous].head:
                longer.add(step.current)
            place = self._growth(step, corpus)
            if place is not None:
                breaks.append(Break(step, (), place[0], place[1]))
        breaks = [one for one in breaks if one.step.current in longer]
        if breaks:
            yield history_candidate(
                self,
                breaks,
                corpus,
                self._repair(breaks, corpus),
                f"the head of the prompt grows in {plural(len(breaks), 'step')}",
            )

    def _growth(self, step: Step, corpus: Corpus) -> tuple[Place, str] | None:
        """Place and text of what the head gained, None if it is the same or not an extension."""
        old, new = corpus.prompts[step.previous].system(), corpus.prompts[step.current].system()
        if not old or [f.text for f in old] == [f.text for f in new]:
            return None
        if [f.text for f in new[: len(old)]] == [f.text for f in old]:
            return self._placed(step.current, new[len(old)], 0)
        if len(new) >= len(old) and [f.text for f in new[: len(old) - 1]] == [f.text for f in old[:-1]]:
            last = new[len(old) - 1]
            if last.text.startswith(old[-1].text):
                return self._placed(step.current, last, len(old[-1].text))
        return None

    @staticmethod
    def _placed(request: int, field: Field, start: int) -> tuple[Place, str]:
        gained = field.text[start:]
        start += len(gained) - len(gained.lstrip())
        end = len(field.text.rstrip())
        offset = max(field.offset, 0)
        return (request, field.path, field.role, offset + start, offset + end), field.text[start:end]

    @staticmethod
    def _repair(breaks: list[Break], corpus: Corpus) -> Repair:
        """Every request of a growing conversation keeps the head of its first one."""
        repair = Repair()
        growing = {one.step.current for one in breaks}
        heads: dict[int, int] = {}
        for step in corpus.steps:
            source = heads.get(step.previous, step.previous if step.current in growing else -1)
            if source < 0:
                continue
            heads[step.current] = source
            head = (corpus.requests[source].messages or [])[: corpus.prompts[source].head]
            messages = corpus.requests[step.current].messages or []
            repair.messages[step.current] = [*head, *messages[corpus.prompts[step.current].head :]]
        return repair


RULE = HoistedSystem()
