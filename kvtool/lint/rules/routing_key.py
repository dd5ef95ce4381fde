"""KV601 routing-key: the model changes in the middle of a conversation."""

from collections import Counter
from collections.abc import Iterable

from kvtool.lint.corpus import Corpus
from kvtool.lint.repair import Repair
from kvtool.lint.rule import Candidate, Docs, Sample
from kvtool.lint.samples import AGENT, chat, history
from kvtool.report import Fix, plural


class RoutingKey:
    """Compares the model and tenant of a request with those of the request that it continues."""

    code = "KV601"
    name = "routing-key"
    docs = Docs(
        what="Finds conversations that go on under another model or tenant.",
        why="Caches of different models share nothing: the whole history is computed again.",
        instead="Keep a conversation on one model; switch at its start, or accept the price knowingly.",
        references=("OpenRouterTeam/ai-sdk-provider#499",),
    )
    valid = (
        Sample(
            "one model", [{**chat(AGENT, history(n), session="a", time=n), "model": "m"} for n in (1, 2, 3)]
        ),
    )
    invalid = (
        Sample(
            "to and fro",
            [
                {**chat(AGENT, history(n), session="a", time=n), "model": "large" if n == 3 else "small"}
                for n in (1, 2, 3, 4)
            ],
            path="model",
        ),
    )

    def candidates(self, corpus: Corpus) -> Iterable[Candidate]:
        """One for all switches. Repaired, a conversation that switches stays on its agent's usual model."""
        repair = Repair()
        switched: list[int] = []
        names: dict[str, None] = {}
        torn: set[tuple[int, int]] = set()
        for step in corpus.steps:
            before, after = corpus.requests[step.previous], corpus.requests[step.current]
            known = after.model is not None and before.model is not None
            if known and (after.model, after.tenant) != (before.model, before.tenant):
                switched.append(step.current)
                names[f"{before.model} -> {after.model}"] = None
                torn.add((corpus.agent[step.current], corpus.conversation[step.current]))
        spaces = [(request.model, request.tenant) for request in corpus.requests]
        usual = {
            agent: Counter(spaces[index] for index in members).most_common(1)[0][0]
            for agent, members in corpus.members.items()
        }
        for index in range(len(spaces)):
            agent = corpus.agent[index]
            if (agent, corpus.conversation[index]) in torn and spaces[index] != usual[agent]:
                repair.spaces[index] = usual[agent]
        if switched:
            yield Candidate(
                code=self.code,
                name=self.name,
                place=(corpus.first(switched), "model", None, 0, 0),
                template="{routing-key}",
                key="model",
                message=f"the model changes in {plural(len(switched), 'step')} of running conversations",
                examples=list(names)[:3],
                requests=sorted(switched),
                distinct=len(switched),
                fix=Fix("report", safe=False),
                repair=repair,
            )


RULE = RoutingKey()
