"""KV406 result-order: the results of parallel tool calls come in another order when they are sent again."""

from kvtool.lint.corpus import Corpus
from kvtool.lint.history import Break, Place, unit_place
from kvtool.lint.rule import Docs, Sample
from kvtool.lint.samples import AGENT
from kvtool.prompts.turns import Change, Step
from kvtool.report import Fix, plural

CALLS = [
    {"id": f"c{n}", "type": "function", "function": {"name": "track_bag", "arguments": f'{{"tag": "{n}"}}'}}
    for n in range(3)
]
RESULTS = [
    {"role": "tool", "tool_call_id": f"c{n}", "content": f"bag {n}: " + "scanned in hall B, " * 4}
    for n in range(3)
]


def _row(results: list[dict[str, str]], more: list[dict[str, str]], time: int) -> dict[str, object]:
    asked = [{"role": "system", "content": AGENT}, {"role": "user", "content": "Where are my three bags?"}]
    call = {"role": "assistant", "content": None, "tool_calls": CALLS}
    return {
        "messages": [*asked, call, *results, *more],
        "session_id": "bags",
        "timestamp": 1_740_000_000 + time,
    }


MORE = [
    {"role": "assistant", "content": "All are in hall B."},
    {"role": "user", "content": "Thanks, I go there."},
]


class ResultOrder:
    """Claims steps in which a run of tool results is permuted."""

    code = "KV406"
    name = "result-order"
    rank = 3
    fix = Fix("report", safe=False)
    docs = Docs(
        what="Finds tool results of one batch that stand in another order in a later request.",
        why="Results finish in any order; a history rebuilt from what finished when breaks the prefix.",
        instead="Sort the results of a batch by the order of their calls.",
        references=(
            "vercel/ai#16567",
            "langchain-ai/open-swe#2198",
            "strands-agents/harness-sdk#2112",
        ),
    )
    valid = (Sample("the same order", [_row(RESULTS, [], 0), _row(RESULTS, MORE, 30)]),)
    invalid = (
        Sample(
            "reversed when sent again",
            [_row(RESULTS, [], 0), _row(RESULTS[::-1], MORE, 30)],
            path="messages[3].content",
        ),
    )

    def claims_change(self, change: Change, step: Step, corpus: Corpus) -> bool:
        """Tool results that left one place and came back in another of the same batch."""
        old, new = corpus.turns.units[step.previous], corpus.turns.units[step.current]
        gone = {old[at].id for one in step.changes if one.kind != "added" for at in one.old}
        come = {new[at].id for one in step.changes if one.kind != "removed" for at in one.new}
        mine = (
            {old[at].id for at in change.old} if change.kind != "added" else {new[at].id for at in change.new}
        )
        units = [old[at] for at in change.old] if change.kind != "added" else [new[at] for at in change.new]
        return all(unit.role in ("tool", "function") for unit in units) and mine <= (gone & come)

    def place(self, change: Change, step: Step, corpus: Corpus) -> Place:
        """The first result that stands where another one stood."""
        old, new = corpus.turns.units[step.previous], corpus.turns.units[step.current]
        for before, after in zip(old, new, strict=False):
            if before.id != after.id:
                return unit_place(step.current, after)
        return unit_place(step.current, new[-1])

    def summary(self, breaks: list[Break]) -> str:
        """Says how often."""
        return f"results of parallel tool calls change places in {plural(len(breaks), 'step')}"


RULE = ResultOrder()
