"""Findings of a log: name every cause that a rule knows, price each, report what costs something.

`find` is what analyze and lint call; `edits_of` and `normalized` turn findings into a normalizer and
into the hit rate that it reaches.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvtool.analysis.hit_rates import HitRates
from kvtool.blocks import fingerprint
from kvtool.lint.corpus import Corpus, arrival_order, readable
from kvtool.lint.naming import candidates
from kvtool.lint.price import Pricer, Rates, lost_tokens, replayed
from kvtool.lint.rule import Candidate
from kvtool.prompts.edits import Edit
from kvtool.prompts.normalizer import Normalizer, matched
from kvtool.report import Finding, Location, Severity
from kvtool.requests import Message, Request
from kvtool.tokens import PromptEncoder

Saved = NDArray[np.int64]
ERROR, WARNING = 0.05, 0.005
"""Lost tokens over prompt tokens from which a finding is an error, a warning."""
NOISE = 0.0005
"""Below this share a finding is not reported: the cause is there and costs nothing."""
ROUNDING = 1.5
"""Blocks that each distinct value must cost: less is where the value's own tokens and the block grid fall."""


@dataclass(frozen=True, slots=True)
class Priced:
    """A finding with what is needed to act on it, and to show it where it was found.

    before, after: reusable tokens of each request, int64 [r], in the two replays between which its lost
    tokens lie.
    """

    finding: Finding
    edits: tuple[Edit, ...]
    candidate: Candidate
    corpus: Corpus
    before: Saved
    after: Saved


def find(requests: Sequence[Request], encoder: PromptEncoder, block_size: int) -> list[Finding]:
    """Findings of `requests`, most lost tokens first. Prompts without text are passed over."""
    return [priced.finding for priced in examine(requests, encoder, block_size)]


def examine(requests: Sequence[Request], encoder: PromptEncoder, block_size: int) -> list[Priced]:
    """Findings with their edits, most lost tokens first. Incomplete requests are not judged."""
    visible = [request for request in requests if readable(request) and request.incomplete is None]
    if len(visible) < 2:
        return []
    corpus = Corpus(visible, encoder, block_size)
    found = candidates(corpus)
    if not found:
        return []
    return _price(found, Pricer(corpus, block_size, [candidate.repair for candidate in found]))


def _price(found: Sequence[Candidate], pricer: Pricer) -> list[Priced]:
    """Each candidate's price alone, or what is still lost when all others are repaired: the larger one.

    The second counts what an earlier slot hides: alone, neither of two clocks is worth repairing. A repair
    that costs tokens alone, as where a log only branched, is not made beside others.
    """
    floor = NOISE * pricer.base.rates.prompt_tokens
    every = range(len(found))
    alone = [pricer.repaired([number]) for number in every]
    helping = {number for number in every if lost_tokens(pricer.base, alone[number]) >= -floor}
    best = pricer.repaired(helping)
    ways: list[tuple[int, Saved, Saved]] = []
    for number in every:
        others = pricer.repaired(helping - {number}, like=best)
        both = best if number in helping else pricer.repaired(helping | {number}, like=best)
        pairs = [(pricer.base, alone[number]), (others, both)]
        ways.append(
            max(
                ((lost_tokens(*pair), pair[0].saved, pair[1].saved) for pair in pairs), key=lambda way: way[0]
            )
        )
    kept = [
        (_finding(candidate, lost, alone[number].rates, pricer), number)
        for number, (candidate, (lost, _, _)) in enumerate(zip(found, ways, strict=True))
        if candidate.always or lost >= max(floor, ROUNDING * pricer.block_size * candidate.distinct)
    ]
    kept.sort(key=lambda one: (-one[0].lost_tokens, one[0].code, one[0].fingerprint))
    priced = []
    made = pricer.base
    for finding, number in kept:
        then = pricer.repaired([*made.numbers, number], like=made)
        finding = replace(finding, marginal_gain=round(then.rates.tokens - made.rates.tokens, 6))
        made = then
        candidate, (_, before, after) = found[number], ways[number]
        if finding.fix.safe and not _helps(candidate, pricer.corpus.requests):
            finding = replace(finding, fix=replace(finding.fix, safe=False))
        priced.append(Priced(finding, tuple(candidate.edits), candidate, pricer.corpus, before, after))
    return priced


def _helps(candidate: Candidate, requests: Sequence[Request]) -> bool:
    """Whether the candidate's safe edits change a request: a prompt that is one text has no place for it."""
    normalizer = Normalizer([edit for edit in candidate.edits if edit.safe])
    for one in requests if normalizer.edits else ():
        if one.messages is not None and editable(one):
            made = normalizer.apply(one.messages, one.tools)
            if repr(made) != repr((one.messages, one.tools)):  # == does not see the order of keys
                return True
    return False


def _finding(candidate: Candidate, lost: int, rates: HitRates, pricer: Pricer) -> Finding:
    first, path, role, start, end = candidate.place
    request = pricer.corpus.requests[first]
    share = lost / max(pricer.base.rates.prompt_tokens, 1)
    severity: Severity = "error" if share >= ERROR else "warning" if share >= WARNING else "info"
    parts = (candidate.code, candidate.key, candidate.template)
    return Finding(
        code=candidate.code,
        name=candidate.name,
        severity=severity,
        message=candidate.message,
        fingerprint=fingerprint(*(part.encode() for part in parts)),
        location=Location(
            request.source.file, request.source.row, request.source_path(path), role, start, end
        ),
        slot=candidate.template,
        examples=candidate.examples,
        requests=len(candidate.requests),
        sessions=pricer.corpus.sessions(candidate.requests),
        distinct_values=candidate.distinct,
        lost_tokens=max(lost, 0),
        hit_rate_if_fixed=rates.tokens,
        fix=candidate.fix,
    )


def charged(priced: Iterable[Priced], rates: Rates) -> list[Finding]:
    """The findings with their price in dollars and seconds, where `rates` know them."""
    return [
        replace(
            one.finding,
            lost_usd=rates.dollars(one.finding.lost_tokens),
            lost_gpu_seconds=rates.seconds(one.before, one.after),
        )
        for one in priced
    ]


def edits_of(priced: Iterable[Priced], unsafe: bool = False) -> list[Edit]:
    """The normalizing edits of findings: the safe ones, or all. Each once, in order."""
    edits = [edit for one in priced for edit in one.edits if edit.safe or unsafe]
    return list(dict.fromkeys(edits))


def normalized_requests(requests: Sequence[Request], normalizer: Normalizer) -> list[Request]:
    """`requests` as a log of them holds them behind `normalizer`: a message that an earlier row brought is
    what became of it there."""
    result = []
    became: dict[int, list[Message]] = {}
    for request, row_shared in zip(requests, share_a_list(requests), strict=True):
        if request.messages is None or not editable(request):
            result.append(request)
            continue
        messages, tools = normalizer.apply(request.messages, request.tools, row_shared=row_shared)
        own = zip(request.messages, matched(request.messages, messages), strict=True)
        new = [message for old, now in own for message in became.setdefault(id(old), now)]
        result.append(replace(request, messages=new, tools=tools))
    return result


def editable(request: Request) -> bool:
    """Whether the request's row has messages that can be edited, the last one at least."""
    return bool(request.messages) and request.holds(f"messages[{len(request.messages or ()) - 1}]")


def share_a_list(requests: Sequence[Request]) -> list[bool]:
    """For each request whether another one reads the same message list of the same row."""
    keys = [(one.source.file, one.source.row, one.source_path("messages[0].content")) for one in requests]
    counts = Counter(keys)
    return [counts[key] > 1 for key in keys]


def normalized(
    requests: Sequence[Request], encoder: PromptEncoder, block_size: int, unsafe: bool = False
) -> float:
    """Token hit rate of the log after all safe fixes (or all fixes)."""
    edits = edits_of(examine(requests, encoder, block_size), unsafe)
    fixed = normalized_requests([r for r in requests if readable(r)], Normalizer(edits))
    return replayed(fixed, arrival_order(fixed), encoder, block_size).tokens
