"""Findings of a log: name every cause that a rule knows, price each, report what costs something.

`find` is what analyze and lint call; `edits_of` and `normalized` turn findings into a normalizer and
into the hit rate that it reaches.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kvtool.analysis.hit_rates import HitRates
from kvtool.blocks import fingerprint
from kvtool.lint.corpus import Corpus, arrival_order, readable
from kvtool.lint.naming import candidates
from kvtool.lint.price import Pricer, replayed
from kvtool.lint.repair import Repair
from kvtool.lint.rule import Candidate
from kvtool.prompts.edits import Edit
from kvtool.prompts.normalizer import Normalizer
from kvtool.report import Finding, Location, Severity
from kvtool.requests import Request
from kvtool.tokens import PromptEncoder

ERROR, WARNING = 0.05, 0.005
"""Lost tokens over prompt tokens from which a finding is an error, a warning."""
NOISE = 0.0005
"""Below this share a finding is not reported: the cause is there and costs nothing."""
ROUNDING = 1.5
"""Blocks that each distinct value must cost: less is where the value's own tokens and the block grid fall."""


@dataclass(frozen=True, slots=True)
class Priced:
    """A finding with what is needed to act on it, and to show it where it was found."""

    finding: Finding
    edits: tuple[Edit, ...]
    candidate: Candidate
    corpus: Corpus


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
    priced = _price(found, Pricer(corpus, block_size))
    return sorted(
        priced, key=lambda one: (-one.finding.lost_tokens, one.finding.code, one.finding.fingerprint)
    )


def _price(found: Sequence[Candidate], pricer: Pricer) -> list[Priced]:
    """Each candidate's price alone, or what is still lost when all others are repaired: the larger one.

    The second counts what an earlier slot hides: alone, neither of two clocks is worth repairing.
    """
    known: dict[frozenset[int], HitRates] = {frozenset(): pricer.base}

    def repaired(numbers: Iterable[int]) -> HitRates:
        key = frozenset(numbers)
        if key not in known:
            known[key] = pricer.repaired(_together([found[number] for number in sorted(key)]))
        return known[key]

    every = range(len(found))
    alone = [repaired([number]) for number in every]
    best = repaired(every).saved_tokens
    gain = [
        max(
            alone[number].saved_tokens - pricer.base.saved_tokens,
            best - repaired(other for other in every if other != number).saved_tokens,
        )
        for number in every
    ]
    floor = NOISE * pricer.base.prompt_tokens
    least = [max(floor, ROUNDING * pricer.block_size * candidate.distinct) for candidate in found]
    return [
        Priced(
            _finding(candidate, gain[number], alone[number], pricer),
            tuple(candidate.edits),
            candidate,
            pricer.corpus,
        )
        for number, candidate in enumerate(found)
        if candidate.always or gain[number] >= least[number]
    ]


def _together(found: Sequence[Candidate]) -> Repair:
    repair = Repair()
    for candidate in found:
        repair.merge(candidate.repair)
    return repair


def _finding(candidate: Candidate, lost: int, rates: HitRates, pricer: Pricer) -> Finding:
    first, path, role, start, end = candidate.place
    request = pricer.corpus.requests[first]
    share = lost / max(pricer.base.prompt_tokens, 1)
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


def edits_of(priced: Iterable[Priced], unsafe: bool = False) -> list[Edit]:
    """The normalizing edits of findings: the safe ones, or all. Each once, in order."""
    edits = [edit for one in priced for edit in one.edits if edit.safe or unsafe]
    return list(dict.fromkeys(edits))


def normalized_requests(requests: Sequence[Request], normalizer: Normalizer) -> list[Request]:
    """`requests` as the model would see them behind `normalizer`."""
    result = []
    for request, row_shared in zip(requests, share_a_list(requests), strict=True):
        if not request.messages:
            result.append(request)
            continue
        messages, tools = normalizer.apply(request.messages, request.tools, row_shared=row_shared)
        result.append(replace(request, messages=messages, tools=tools))
    return result


def share_a_list(requests: Sequence[Request]) -> list[bool]:
    """For each request whether another one reads the same message list of the same row."""
    keys = [(one.source.file, one.source.row, one.source_path("messages")) for one in requests]
    counts = Counter(keys)
    return [counts[key] > 1 for key in keys]


def normalized(
    requests: Sequence[Request], encoder: PromptEncoder, block_size: int, unsafe: bool = False
) -> float:
    """Token hit rate of the log after all safe fixes (or all fixes)."""
    edits = edits_of(examine(requests, encoder, block_size), unsafe)
    fixed = normalized_requests([r for r in requests if readable(r)], Normalizer(edits))
    return replayed(fixed, arrival_order(fixed), encoder, block_size).tokens
