"""Allocation: which codec each block of a plan gets, so that a joint gate on held-back traffic holds.

In this order: protected blocks and the sink stay in 16 bits; errors of keys are steered (see `rounding`);
layers that the model's profile says suffer more get more of the bits; then the most sensitive blocks are
promoted until mean KL and greedy tool calls over all blocks together are within the gate. Errors do not add,
so nothing is concluded from the parts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from kvtool.analysis.plan import Plan
from kvtool.blocks import fingerprint
from kvtool.engine.compute.model import Model
from kvtool.engine.profile import layer_profile
from kvtool.engine.sensitivity import block_sensitivity
from kvtool.engine.storage.codec import BlockCodec, Mixed, block_bytes, is_exact, load_codec
from kvtool.engine.storage.codecs import AUTO
from kvtool.engine.storage.footprint import beside_block
from kvtool.engine.storage.identity import Identity
from kvtool.engine.storage.layout import BlockShape
from kvtool.engine.traffic import Traffic, read_traffic
from kvtool.engine.trials import Continuation, Trials
from kvtool.errors import KvtoolError
from kvtool.requests import Request

Stored = Mapping[int, tuple[str, BlockCodec]]
"""Rows of a plan that are stored already -> the codec that they have and keep, by the name it has there."""

Fit = Callable[["Allocation"], Plan]
"""Codecs of a plan's rows -> those of its blocks that a budget has room for, as a plan."""

MAX_KL = 0.0005
"""Nats per token: the default gate. Continuations that it does not know lose up to twice as much; 0.001 is
still below what tells two runs in different 16-bit formats apart."""

PROTECTED = "half"
"""The codec of protected blocks."""

CALLS_SHARE = 1 / 25
"""Of --max-kl, what `auto` lets greedy answers lose that are tool calls. Whether one of the gate's own calls
changes is luck, since most have a token that is nearly a tie; what they lose tells of the others too."""

FLOOR, MIDDLE, HIGH, TOP = "int4", "mixed", "int6", "int8"
"""The ladder of a block. In the middle layers have four, five or six bits, five on average."""

RUNGS = [(FLOOR, HIGH, share) for share in (0.0, 0.125, 0.25, 0.375)]
RUNGS += [(MIDDLE, TOP, share) for share in (0.0, 0.125, 0.25)]
RUNGS += [(HIGH, TOP, share) for share in (0.0, 0.25, 0.5)]
RUNGS += [(TOP, PROTECTED, share) for share in (0.0, 0.25, 0.5, 1.0)]
"""(codec of most blocks, codec of the promoted, share of the measured blocks promoted), by their bytes."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the gate found over held-back continuations: kl is the mean of their means, worst the largest.

    calls_kl: the mean over greedy answers that are tool calls, 0 if there are none.
    """

    kl: float
    worst: float
    calls: int
    calls_unchanged: int
    continuations: int
    max_kl: float
    calls_kl: float
    max_calls_kl: float

    @property
    def holds(self) -> bool:
        """Whether the codecs may be used."""
        within = self.kl <= self.max_kl and self.calls_kl <= self.max_calls_kl
        return within and self.calls_unchanged == self.calls


class GateFailed(KvtoolError):
    """Nothing was stored, since the model would answer too differently over it."""

    def __init__(self, verdict: Verdict) -> None:
        lost = f"mean KL {verdict.kl:.2g} where --max-kl is {verdict.max_kl:.2g}"
        if verdict.calls:
            changed = verdict.calls - verdict.calls_unchanged
            lost += f", {changed} of {verdict.calls} greedy tool calls change"
        super().__init__(
            f"the gate does not hold over {verdict.continuations} held-back continuations: {lost}",
            "choose a codec of more bits, or raise --max-kl; what --out holds already keeps its codec",
        )
        self.verdict = verdict


@dataclass(frozen=True)
class Allocation:
    """For each row of a plan the name of its codec, a key of `codecs`, and the nats it costs, NaN if unknown.

    A block's nats are its share, by sensitivity, of what the gate measured for all blocks together.
    verdict: None where no gate was asked for. tokens: computed for it. plan: the rows are this plan's, which
    a budget has room for; None where they are those of the plan that was asked about.
    """

    codecs: dict[str, BlockCodec]
    names: list[str]
    kl: NDArray[np.float64]
    verdict: Verdict | None = None
    tokens: int = 0
    plan: Plan | None = None

    def codec_of(self, row: int) -> BlockCodec:
        """The codec of a row."""
        return self.codecs[self.names[row]]

    def sizes(self, plan: Plan, shape: BlockShape) -> NDArray[np.int64]:
        """Stored bytes of each row, before compression."""
        return self._each(plan, lambda codec, first: block_bytes(codec, shape, first))

    def beside(self, plan: Plan, shape: BlockShape) -> NDArray[np.int64]:
        """Bytes that each row takes in its file's header and in the index."""
        return self._each(plan, lambda codec, first: beside_block(codec, shape, first))

    def _each(self, plan: Plan, size: Callable[[BlockCodec, bool], int]) -> NDArray[np.int64]:
        sizes = {
            (name, first): size(codec, first)
            for name, codec in self.codecs.items()
            for first in (False, True)
        }
        firsts = (plan.depth == 0).tolist()
        return np.array([sizes[key] for key in zip(self.names, firsts, strict=True)], np.int64)

    def within(self, plan: Plan, fitted: Plan) -> "Allocation":
        """Of rows of `plan` those that are `fitted`'s, in its order."""
        row_of = {node: row for row, node in enumerate(plan.node.tolist())}
        rows = [row_of[node] for node in fitted.node.tolist()]
        names = [self.names[row] for row in rows]
        codecs = {name: self.codecs[name] for name in sorted(set(names))}
        return replace(self, codecs=codecs, names=names, kl=self.kl[rows], plan=fitted)


def choose(
    plan: Plan,
    model: Model,
    codec: str,
    requests: Callable[[], Iterable[Request]],
    protect: Sequence[str],
    max_kl: float | None,
    stored: Stored = MappingProxyType({}),
    fit: Fit | None = None,
) -> Allocation:
    """The codecs of a plan for `--codec`: `auto`, or one for all that are not protected.

    requests: the log once more, read only where blocks are protected or measured. max_kl: None for no gate,
    or for `auto` its default. The gate judges `stored` rows as they are stored. fit: for `auto`, which sizes
    blocks by what they need, leaves out those that the budget then has no room for. KvtoolError where there
    is nothing to judge by.
    """
    shape = Identity.of_model(model, plan.block_size).shape
    plain = uniform(codec, plan, shape) if codec != AUTO else None
    if plain is not None and not protect and max_kl is None:
        return plain
    traffic = read_traffic(plan, requests(), model.encoder, protect, model.config.max_positions)
    if plain is not None:
        plain = _protecting(plain, traffic, shape)
        if max_kl is None:
            return plain
    max_kl = MAX_KL if max_kl is None else max_kl
    if not traffic.gates:
        raise KvtoolError(
            "no prompt of the log goes on behind planned blocks before the model's last positions: there is "
            "nothing to measure a codec by",
            "choose a --codec without --max-kl",
        )
    trials = Trials(model, plan, [*traffic.probes, *traffic.gates])
    if plain is None:
        return allocate(plan, traffic, trials, layer_profile(model, FLOOR), max_kl, stored, fit)
    plain = _as_stored(plain, stored)
    verdict = judge(trials, traffic.gates, plain.codec_of, max_kl, max_kl)
    return _with_verdict(plain, verdict, plan, traffic, trials)


def uniform(name: str, plan: Plan, shape: BlockShape) -> Allocation:
    """One codec for all, unmeasured unless it is exact."""
    codec = load_codec({"codec": name})
    kl = np.full(len(plan), 0.0 if is_exact(codec, shape) else np.nan)
    return Allocation({name: codec}, [name] * len(plan), kl)


def _protecting(plain: Allocation, traffic: Traffic, shape: BlockShape) -> Allocation:
    """Protected blocks in 16 bits; codecs that keep as much keep them."""
    (name,) = plain.codecs
    if name in (PROTECTED, "raw", "lossless"):
        return plain
    names = [PROTECTED if kept else name for kept in traffic.protected.tolist()]
    half = load_codec({"codec": PROTECTED})
    kl = np.where(traffic.protected & is_exact(half, shape), 0.0, plain.kl)
    return Allocation({**plain.codecs, PROTECTED: half}, names, kl)


def _as_stored(chosen: Allocation, stored: Stored) -> Allocation:
    """The same with the codecs that stored rows have; `chosen` itself where those are what it says."""
    names = [stored[row][0] if row in stored else name for row, name in enumerate(chosen.names)]
    if names == chosen.names:
        return chosen
    return replace(chosen, codecs={**chosen.codecs, **dict(stored.values())}, names=names)


def allocate(
    plan: Plan,
    traffic: Traffic,
    trials: Trials,
    profile: NDArray[np.float64],
    max_kl: float,
    stored: Stored = MappingProxyType({}),
    fit: Fit | None = None,
) -> Allocation:
    """Choose codecs for `plan`: a rung whose gate holds where that of the rung below does not.

    If none holds, the last with its verdict. profile: damage of each layer's keys and values in FLOOR,
    [layers, 2]. Blocks that no probe reached take the codec of the promoted as soon as one block is promoted.
    A rung is first judged as if nothing were stored, so that a run that resumes chooses what the first one
    chose; then with `stored` rows as they are. With `fit` a rung is judged over the blocks that fit in it.
    """
    layers = [f"int{bits}" for bits in layer_bits(profile)]
    codecs = {name: load_codec({"codec": name}) for name in (FLOOR, HIGH, TOP, PROTECTED)}
    codecs[MIDDLE] = load_codec({"codec": MIDDLE, "layers": layers})
    sensitivity = measure(plan, traffic.probes, trials, lambda row: codecs[FLOOR])
    open_rows = np.flatnonzero(~traffic.protected)
    ranked = open_rows[np.argsort(-np.nan_to_num(sensitivity[open_rows], nan=np.inf), kind="stable")]
    unknown = int(np.isnan(sensitivity[open_rows]).sum())

    def tried(number: int) -> _Rung | None:
        base, lift, share = RUNGS[number]
        promoted = unknown + round(share * (len(ranked) - unknown)) if share else 0
        kinds = np.full(len(plan), base, object)
        kinds[ranked[:promoted]] = lift
        kinds[traffic.protected] = PROTECTED
        made = _named(kinds.tolist(), codecs)
        found = judged(made)
        if found is not None and found.verdict.holds and (kept := _as_stored(made, stored)) is not made:
            found = judged(kept)
        return found

    def judged(made: Allocation) -> _Rung | None:
        fitted, seen = None, traffic
        if fit is not None:
            fitted = fit(made)
            seen = traffic.behind(plan, np.isin(plan.node, fitted.node))
        if not seen.gates:
            return None
        verdict = judge(trials, seen.gates, made.codec_of, max_kl, max_kl * CALLS_SHARE)
        return _Rung(made, fitted, seen, verdict)

    below, above = -1, len(RUNGS) - 1
    chosen = None
    while above - below > 1:  # bisected: that every rung loses less than the one below is usual, not certain
        middle = (below + above) // 2
        found = tried(middle)
        if found is None:  # no room for a block that is asked for, less so with more bits
            above = middle
        elif found.verdict.holds:
            above, chosen = middle, found
        else:
            below = middle
    chosen = chosen or tried(above)
    if chosen is None:
        raise KvtoolError(
            "no prompt of the log goes on behind the blocks that fit --budget: there is nothing to measure "
            "codecs by",
            "raise --budget, or choose a --codec without --max-kl",
        )
    made = _with_verdict(chosen.made, chosen.verdict, plan, chosen.traffic, trials)
    return made if chosen.fitted is None else made.within(plan, chosen.fitted)


@dataclass(frozen=True, slots=True)
class _Rung:
    """A rung that was tried: codecs of the plan's rows, which blocks fit in them, what judged those."""

    made: Allocation
    fitted: Plan | None
    traffic: Traffic
    verdict: Verdict


def layer_bits(profile: NDArray[np.float64]) -> list[int]:
    """Four, five or six bits for each layer, five on average: a bit goes where most damage is left.

    A bit divides a layer's damage by four.
    """
    damage = profile.sum(1)
    bits = np.full(len(damage), 4)
    for _ in range(len(damage)):
        left = np.where(bits < 6, damage * 4.0 ** (4 - bits), -1.0)
        bits[left.argmax()] += 1
    return [int(count) for count in bits]


def judge(
    trials: Trials,
    gates: Sequence[Continuation],
    codec_of: Callable[[int], BlockCodec],
    max_kl: float,
    max_calls_kl: float,
) -> Verdict:
    """All held-back continuations over blocks that are all in their codecs at once."""
    found = [trials.damage(one, codec_of) for one in gates]
    calls = [one for asked, one in zip(gates, found, strict=True) if asked.call]
    kls = [one.kl for one in found]
    return Verdict(
        kl=float(np.mean(kls)),
        worst=max(kls),
        calls=len(calls),
        calls_unchanged=sum(one.same_answer for one in calls),
        continuations=len(found),
        max_kl=max_kl,
        calls_kl=float(np.mean([one.answer_kl for one in calls])) if calls else 0.0,
        max_calls_kl=max_calls_kl,
    )


def measure(
    plan: Plan, probes: Sequence[Continuation], trials: Trials, codec_of: Callable[[int], BlockCodec]
) -> NDArray[np.float64]:
    """Sensitivity of each row in its codec: the largest over the probes that reach it, NaN without one."""
    found = np.full(len(plan), np.nan)
    for asked in probes:
        rows = list(asked.rows)
        found[rows] = np.fmax(found[rows], block_sensitivity(trials, asked, codec_of))
    return found


def _named(kinds: list[str], codecs: dict[str, BlockCodec]) -> Allocation:
    """Names for the index: a mixed codec's says what is in it, so that two never meet under one name."""
    names = {}
    for kind in sorted(set(kinds)):
        codec = codecs[kind]
        names[kind] = kind
        if isinstance(codec, Mixed):
            names[kind] = f"mixed-{fingerprint(','.join(codec.layers).encode())[:8]}"
    found = {names[kind]: codecs[kind] for kind in names}
    return Allocation(found, [names[kind] for kind in kinds], np.full(len(kinds), np.nan))


def _with_verdict(
    chosen: Allocation, verdict: Verdict, plan: Plan, traffic: Traffic, trials: Trials
) -> Allocation:
    """The gate's nats apportioned to blocks, so that on average those of a gate's chain add up to them."""
    sensitivity = measure(plan, [*traffic.probes, *traffic.gates], trials, chosen.codec_of)
    whole = float(np.mean([sensitivity[list(one.rows)].sum() for one in traffic.gates]))
    kl = verdict.kl * sensitivity / whole if whole else np.where(np.isnan(sensitivity), np.nan, 0.0)
    exact = [is_exact(chosen.codec_of(row), trials.shape) for row in range(len(plan))]
    return replace(chosen, kl=np.where(exact, 0.0, kl), verdict=verdict, tokens=trials.tokens)
