"""Precision: what `--codec`, `--max-kl` and `--protect` ask for, and a plan that fits its budget in it.

A budget holds more blocks the fewer bits each takes. What protected blocks take is known from the log; what
`auto` gives a block is known when it has been measured. So the first plan of `auto` has the least bits it
gives, and those of its blocks are stored that fit in what they turn out to need (see `allocation`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvtool.analysis.plan import Plan, PlanConfig
from kvtool.analysis.store import load_document
from kvtool.engine.allocation import FLOOR, MAX_KL, PROTECTED, Allocation, Stored, choose, uniform
from kvtool.engine.storage.codec import BlockCodec, load_codec
from kvtool.engine.storage.codecs import AUTO
from kvtool.engine.traffic import ROLES
from kvtool.engine.worth import Priced, Prices
from kvtool.errors import KvtoolError
from kvtool.logs.reader import Log, open_log
from kvtool.requests import Request


@dataclass(frozen=True)
class Precision:
    """codec: `auto` or one for all blocks that are not protected. max_kl: nats per token that the gate lets
    pass, None for no gate. protect: roles whose blocks stay in 16 bits. requests: reads the log once more.
    """

    codec: str
    max_kl: float | None
    protect: Sequence[str]
    requests: Callable[[], Iterable[Request]]

    @classmethod
    def asked(
        cls,
        codec: str,
        max_kl: float | None,
        protect: str | None,
        requests: Callable[[], Iterable[Request]],
    ) -> "Precision":
        """From the options, with the codec's defaults. k3v2 is never stored without a gate. KvtoolError for a
        role that is none."""
        gate = MAX_KL if max_kl is None and codec in (AUTO, "k3v2") else max_kl
        return cls(codec, gate, _roles(codec, protect), requests)

    @property
    def least(self) -> BlockCodec:
        """The codec of the fewest bits that a block may get."""
        return load_codec({"codec": FLOOR if self.codec == AUTO else self.codec})

    @property
    def names(self) -> set[str]:
        """What a block may be stored as, where nothing is measured."""
        return {self.codec, PROTECTED} if self.protect else {self.codec}


class PrecisePlan:
    """What to store of a log, while it is not known yet how many bytes each block takes, and after."""

    def __init__(self, asked: Precision, prices: Prices, limits: PlanConfig) -> None:
        """Without `auto` the plan is final: protected blocks are found by reading the log once more."""
        self._asked = asked
        self._prices = prices
        self._limits = limits
        self._budgeted = "disk" in limits.budgets or bool(limits.tenants)
        self._known: Allocation | None = None
        if asked.codec == AUTO or not asked.protect:
            self.priced = self._priced()
            if asked.codec != AUTO:
                self._known = uniform(asked.codec, self.priced.plan, prices.shape)
        else:
            every = prices.plan(PlanConfig(min_requests=limits.min_requests), asked.least).plan
            known = choose(every, prices.model, asked.codec, asked.requests, asked.protect, None)
            self.priced = self._priced(every, known)
            self._known = known.within(every, self.priced.plan)

    @property
    def is_final(self) -> bool:
        """Whether no block of `priced.plan` will be left out for what it turns out to need."""
        return self._known is not None or not self._budgeted

    def choose(self, stored: Stored) -> Allocation:
        """The codecs of the plan's rows, or of those that fit, held to the gate; `priced` is then what they
        cost. `stored`: rows that have their codec already. KvtoolError where loading them would be slower
        than computing, or where there is nothing to measure by."""
        asked, model, plan = self._asked, self._prices.model, self.priced.plan
        if self._known is not None and asked.max_kl is None:
            return self._known
        found = choose(
            plan,
            model,
            asked.codec,
            asked.requests,
            asked.protect,
            asked.max_kl,
            stored,
            None if self.is_final else lambda made: self._priced(plan, made).plan,
        )
        if self._known is None:
            self.priced = self._priced(found.plan or plan, found)
            if found.verdict is None or found.verdict.holds:
                self.priced.require_gain(asked.codec)
        return found

    def _priced(self, among: Plan | None = None, known: Allocation | None = None) -> Priced:
        """A plan, of rows of `among` in the codecs that are `known` if there are such."""
        if among is None or known is None:
            return self._prices.plan(self._limits, self._asked.least)
        shape = self._prices.shape
        sized = replace(among, bytes=known.sizes(among, shape))
        return self._prices.plan(self._limits, self._asked.least, sized, known.beside(among, shape))

    def protected(self) -> list[str]:
        """That blocks stay in 16 bits whatever the codec, where that is known beforehand."""
        asked, known = self._asked, self._known
        if known is None or not asked.protect or asked.codec == PROTECTED:
            return []
        kept = known.names.count(PROTECTED)
        roles = ",".join(asked.protect)
        whole = f"{kept:,} of {len(known.names):,} blocks"
        return [f"{whole} are protected and stay in 16 bits: --protect {roles}"] if kept else []

    def notes(self) -> list[str]:
        """What a dry run cannot know."""
        plan = self.priced.plan
        if self._known is not None or not len(plan):
            return []
        bits = 8 * int(plan.bytes.sum()) / (len(plan) * self._prices.shape.elements)
        note = f"sizes are those of {bits:.1f} bits a number, the least of --codec auto: a run measures"
        return [note + ("" if self.is_final else ", and --budget holds fewer blocks where they need more")]


def log_again(
    logs: Sequence[str], analysis: Path | None, format: str | None, mapping: Mapping[str, str]
) -> Log:
    """The log a second time, for what a workload does not keep: roles and the tokens behind blocks."""
    if analysis is None:
        if "-" in logs:
            raise KvtoolError(
                "--logs -: blocks are protected or measured by reading the log twice",
                "name a file, or give --protect none and no --max-kl",
            )
        return open_log(logs, format=format, mapping=mapping)
    source = load_document(analysis)["source"]
    for file in source["files"]:
        if not Path(file).is_file():
            raise KvtoolError(
                f"{analysis}: source: {file} is not there, and is read again to protect or measure",
                "prewarm from --logs, or give --protect none and no --max-kl",
            )
    return open_log(source["files"], format=source["format"], mapping=mapping)


def _roles(codec: str, given: str | None) -> list[str]:
    """Roles of `--protect`, or the default of the codec."""
    if given is None:  # provenance stands in for a measurement where there is none
        return [] if codec in (AUTO, "raw", "lossless", PROTECTED) else ["system", "tools"]
    names = [] if given == "none" else [name.strip() for name in given.split(",")]
    for name in names:
        if name not in ROLES:
            raise KvtoolError(
                f"--protect {given}: unknown role {name!r}", f"choose from {', '.join(ROLES)}, none"
            )
    return names
