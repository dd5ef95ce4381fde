"""KV407 reserialized: the same message with other white space, line ends, JSON or Unicode form."""

from collections.abc import Iterable

from kvtool.lint.corpus import Corpus
from kvtool.lint.history import Break, Place, changed_place, differing, new_unit, old_unit
from kvtool.lint.repair import Repair
from kvtool.lint.rule import Candidate, Docs, Sample
from kvtool.lint.samples import AGENT, chat, dialogue, history
from kvtool.prompts.edits import Edit, TextEdit
from kvtool.prompts.forms import canonical
from kvtool.prompts.turns import Change, Step
from kvtool.report import Fix, plural


class Reserialized:
    """Claims replaced messages that are equal in canonical form, and instructions that come in two forms."""

    code = "KV407"
    name = "reserialized"
    rank = 1
    fix = Fix("canonicalize", safe=True)
    docs = Docs(
        what="Finds earlier messages that differ only in white space, line ends, JSON layout or Unicode.",
        why="For people it is the same message; for the cache it is another one, and all behind it misses.",
        instead="Send messages again byte for byte: store them, do not rebuild them.",
        references=(
            "NousResearch/hermes-agent#7988",
            "MiniMax-AI/Mini-Agent#22",
            "anomalyco/opencode#37886",
        ),
    )
    valid = (Sample("a growing history", dialogue([history(n) for n in (1, 2, 3)])),)
    invalid = (
        Sample(
            "spaces at the end when read back",
            dialogue([history(3), [history(4)[0], history(4)[1] + "  ", *history(4)[2:]]]),
            path="messages[2].content",
            slot="  ",
        ),
        Sample(
            "instructions with other line ends now and then",
            [
                chat(
                    f"{AGENT}\n{AGENT}".replace("\n", "\r\n" if n == 3 else "\n"),
                    history(n),
                    session="a",
                    time=n,
                )
                for n in (1, 2, 3, 4)
            ],
            path="messages[0].content",
            slot="\r",
        ),
    )

    def claims_change(self, change: Change, step: Step, corpus: Corpus) -> bool:
        """Equal in canonical form."""
        if change.kind != "replaced":
            return False
        old, new = old_unit(change, step, corpus), new_unit(change, step, corpus)
        return [(f.part, canonical(f.text)) for f in old.fields] == [
            (f.part, canonical(f.text)) for f in new.fields
        ]

    def place(self, change: Change, step: Step, corpus: Corpus) -> Place:
        """The characters that differ."""
        return changed_place(change, step, corpus)

    def candidates(self, corpus: Corpus) -> Iterable[Candidate]:
        """One per field of an agent's instructions or tools that comes in more than one form."""
        for (agent, key), odd in corpus.off_form.items():
            fields = corpus.heads[agent][key]
            repair = Repair()
            places: list[tuple[int, str, str | None, int, int]] = []
            for index, usual in odd.items():
                path, role, text, offset = fields[index]
                start, end, _ = differing(text, usual)
                places.append((index, path, role, offset + start, offset + end))
                repair.texts[index].append((path, offset, offset + len(text), usual))
            first = min(places)
            yield Candidate(
                code=self.code,
                name=self.name,
                place=first,
                template=f"{first[2]}: {{{self.name}}}",
                key=" ".join(map(str, key)),
                message=f"the {first[2]} prompt comes in another form in {plural(len(odd), 'request')}",
                examples=[],
                requests=sorted(odd),
                distinct=len(set(odd.values())),
                fix=self.fix,
                repair=repair,
                edits=[TextEdit(self.code, "canonical-text")],
            )

    def summary(self, breaks: list[Break]) -> str:
        """Says how often."""
        return f"earlier messages come back in another form in {plural(len(breaks), 'step')}"

    def edits(self, change: Change, step: Step, corpus: Corpus) -> list[Edit]:
        """The canonical form that takes the difference away."""
        parts = [(f.part, f.text) for f in new_unit(change, step, corpus).fields]
        before = {f.part: f.text for f in old_unit(change, step, corpus).fields}
        changed = [part for part, text in parts if before.get(part) != text]
        edits: list[Edit] = []
        if any(part.endswith("arguments") for part in changed):
            edits.append(TextEdit(self.code, "canonical-arguments"))
        if any(not part.endswith("arguments") for part in changed):
            edits.append(TextEdit(self.code, "canonical-text"))
        return edits


RULE = Reserialized()
