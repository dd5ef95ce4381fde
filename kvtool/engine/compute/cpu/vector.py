"""Vector code of the CPU kernels in LLVM's language, for what numba's loops would leave in memory.

Lanes are outputs of a linear layer, or rows of attention (a token's query in one head); what is broadcast is
one number of a row, of a key or of a value, read where it lies. Sums stay in registers, and what was loaded
serves all of them. Addresses are int64, sizes and strides int64 in float32.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_FEATURES = binding.get_host_cpu_features()

LANES, MANY = (16, 8) if _FEATURES.get("avx512f") else (8, 4) if _FEATURES.get("avx2") else (4, 8)
"""Lanes of a vector, as wide as registers are, and how often VECTORS sums are kept in them: there are 32
registers, 16 with AVX2."""

VECTORS = 3
"""Vectors side by side at most."""

FUSED = bool(_FEATURES.get("fma", not _FEATURES.get("sse2")))
"""Whether the machine multiplies and adds at once; without it LLVM would call a function for each."""

POWERS = (1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1.0)
"""ln(2) ** k / k! from k = 6 down: 2 ** x for |x| <= 0.5."""

Generate = Callable[[Any, ir.IRBuilder, Any, Sequence[ir.Value]], ir.Value]

FLOAT, LONG, SHORT = ir.FloatType(), ir.IntType(64), ir.IntType(32)
VECTOR, INTEGERS = ir.VectorType(FLOAT, LANES), ir.VectorType(SHORT, LANES)


def _all(value: float) -> ir.Constant:
    return ir.Constant(VECTOR, [value] * LANES)


def _pointer(builder: ir.IRBuilder, base: ir.Value, index: ir.Value, kind: ir.Type) -> ir.Value:
    """To element `index` of the float32 at `base`."""
    return builder.inttoptr(builder.add(base, builder.shl(index, LONG(2))), kind.as_pointer())


def _row(builder: ir.IRBuilder, base: ir.Value, width: ir.Value, row: ir.Value, vector: int) -> ir.Value:
    """To a vector of a row of a matrix that is `width` wide."""
    return _pointer(builder, base, builder.add(builder.mul(width, row), LONG(vector * LANES)), VECTOR)


def _load(builder: ir.IRBuilder, place: ir.Value) -> ir.Value:
    return builder.load(place, align=4)


def _splat(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    one = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), value, SHORT(0))
    return builder.shuffle_vector(one, ir.Constant(VECTOR, ir.Undefined), ir.Constant(INTEGERS, [0] * LANES))


def _fma(builder: ir.IRBuilder, left: ir.Value, right: ir.Value, more: ir.Value) -> ir.Value:
    kind = ir.FunctionType(VECTOR, [VECTOR] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
    return builder.call(function, [left, right, more])


def _greater(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_ordered(">", left, right), left, right)


def _exp2(builder: ir.IRBuilder, power: ir.Value) -> ir.Value:
    """2 ** power for power < 127, within 2 units in the last place, 0 below -126.

    That of the nearest integer times that of the rest (Cody & Waite 1980).
    """
    rounding = _all(12582912.0)  # 1.5 * 2 ** 23: a sum with it has no bits behind the point
    least = _all(-126.0)
    normal = builder.fcmp_ordered(">=", power, least)
    power = builder.select(normal, power, least)
    shifted = builder.fadd(power, rounding)
    rest = builder.fsub(power, builder.fsub(shifted, rounding))
    value = _all(POWERS[0])
    for factor in POWERS[1:]:
        value = _fma(builder, value, rest, _all(factor))
    exponent = builder.shl(builder.bitcast(shifted, INTEGERS), ir.Constant(INTEGERS, [23] * LANES))
    value = builder.bitcast(builder.add(builder.bitcast(value, INTEGERS), exponent), VECTOR)
    return builder.select(normal, value, _all(0.0))


def _prefetch(builder: ir.IRBuilder, address: ir.Value) -> None:
    pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, SHORT, SHORT, SHORT])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [builder.inttoptr(address, pointer), SHORT(0), SHORT(3), SHORT(1)])


def _sigmoid(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """1 / (1 + exp(-value))."""
    power = builder.fmul(value, _all(-1.4426950408889634))
    power = builder.select(builder.fcmp_ordered("<", power, _all(126.0)), power, _all(126.0))
    return builder.fdiv(_all(1.0), builder.fadd(_all(1.0), _exp2(builder, power)))


def _gated(activation: Callable[[ir.IRBuilder, ir.Value], ir.Value]) -> Any:
    """A vector of float32 at `sums` is multiplied by activation(that at `gates`): (sums, gates)."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, given: Sequence[ir.Value]) -> ir.Value:
        sums, gates = (builder.inttoptr(each, VECTOR.as_pointer()) for each in given)
        factor = activation(builder, _load(builder, gates))
        builder.store(builder.fmul(_load(builder, sums), factor), sums, align=4)
        return context.get_dummy_value()

    def gated(context, sums, gates):  # type: ignore[no-untyped-def]
        return types.void(types.int64, types.int64), generate

    return intrinsic(gated)


def _silu(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    return builder.fmul(value, _sigmoid(builder, value))


def _gelu_tanh(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """value * (1 + tanh(z)) / 2 with z = sqrt(2 / pi) * (value + 0.044715 * value ** 3), by 2 z's sigmoid."""
    square = builder.fmul(value, value)
    cubic = _fma(builder, square, _all(0.044715), _all(1.0))
    z = builder.fmul(builder.fmul(value, cubic), _all(2 * 0.7978845608028654))
    return builder.fmul(value, _sigmoid(builder, z))


def _products(vectors: int, many: int, *, add: bool, fetch: int = 0) -> Any:
    """sums[i, :] (+)= sum over n, in order, of factors[i * outer + n * inner] * rows[n, :], for i < many.

    (sums, apart, rows, width, factors, outer, inner, count): sums lie `apart`, rows `width` from each other.
    fetch: two more arguments, ahead and hop, in bytes: with each n the next `hop` bytes from `ahead` on, at
    most `fetch` cache lines, are asked for, so that memory is read at an even pace beside the products.
    """

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, given: Sequence[ir.Value]) -> ir.Value:
        sums, apart, rows, width, factors, outer, inner, count = given[:8]
        cells = [(i, v) for i in range(many) for v in range(vectors)]
        places = {(i, v): _row(builder, sums, apart, LONG(i), v) for i, v in cells}
        kept = {cell: cgutils.alloca_once(builder, VECTOR) for cell in cells}
        for cell in cells:
            builder.store(_all(0.0), kept[cell])
        with cgutils.for_range(builder, count, intp=LONG) as loop:
            lanes = [_load(builder, _row(builder, rows, width, loop.index, v)) for v in range(vectors)]
            start = builder.mul(loop.index, inner)
            if fetch:
                hop = given[9]
                line = builder.add(given[8], builder.mul(loop.index, hop))
                for part in range(fetch):
                    part = builder.sdiv(builder.mul(hop, LONG(part)), LONG(fetch))
                    _prefetch(builder, builder.add(line, part))
            for i in range(many):
                index = builder.add(start, builder.mul(outer, LONG(i)))
                factor = _splat(builder, _load(builder, _pointer(builder, factors, index, FLOAT)))
                for v in range(vectors):
                    more = _fma(builder, lanes[v], factor, builder.load(kept[i, v]))
                    builder.store(more, kept[i, v])
        for cell in cells:
            total = builder.load(kept[cell])
            if add:
                total = builder.fadd(_load(builder, places[cell]), total)
            builder.store(total, places[cell], align=4)
        return context.get_dummy_value()

    def products(context, sums, apart, rows, width, factors, outer, inner, count):  # type: ignore[no-untyped-def]
        return types.void(*(types.int64,) * 8), generate

    def fetching(context, sums, apart, rows, width, factors, outer, inner, count, ahead, hop):  # type: ignore[no-untyped-def]
        return types.void(*(types.int64,) * 10), generate

    return intrinsic(fetching if fetch else products)


def _softmax(vectors: int) -> Any:
    """A round of the online softmax of a tile, in place.

    (scores, width, state, sums, depth, count): scores [count, width] become 2 ** (score - greatest). state
    [2, width]: each lane's greatest score so far, and its sum of weights. sums [depth, width] shrink where
    the greatest has grown.
    """

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, given: Sequence[ir.Value]) -> ir.Value:
        scores, width, state, sums, depth, count = given
        greatest = [_row(builder, state, width, LONG(0), v) for v in range(vectors)]
        totals = [_row(builder, state, width, LONG(1), v) for v in range(vectors)]
        before = [_load(builder, place) for place in greatest]
        peaks = [cgutils.alloca_once_value(builder, value) for value in before]
        with cgutils.for_range(builder, count, intp=LONG) as loop:
            for v in range(vectors):
                score = _load(builder, _row(builder, scores, width, loop.index, v))
                builder.store(_greater(builder, score, builder.load(peaks[v])), peaks[v])
        peak = [builder.load(place) for place in peaks]
        grown = builder.fcmp_ordered(">", peak[0], before[0])
        for v in range(1, vectors):
            grown = builder.or_(grown, builder.fcmp_ordered(">", peak[v], before[v]))
        bits = ir.IntType(LANES)
        with builder.if_then(builder.icmp_unsigned("!=", builder.bitcast(grown, bits), bits(0))):
            factors = [_exp2(builder, builder.fsub(before[v], peak[v])) for v in range(vectors)]
            for v in range(vectors):
                builder.store(peak[v], greatest[v], align=4)
                builder.store(builder.fmul(_load(builder, totals[v]), factors[v]), totals[v], align=4)
            with cgutils.for_range(builder, depth, intp=LONG) as loop:
                for v in range(vectors):
                    place = _row(builder, sums, width, loop.index, v)
                    builder.store(builder.fmul(_load(builder, place), factors[v]), place, align=4)
        kept = [cgutils.alloca_once_value(builder, _load(builder, place)) for place in totals]
        with cgutils.for_range(builder, count, intp=LONG) as loop:
            for v in range(vectors):
                place = _row(builder, scores, width, loop.index, v)
                weight = _exp2(builder, builder.fsub(_load(builder, place), peak[v]))
                builder.store(weight, place, align=4)
                builder.store(builder.fadd(builder.load(kept[v]), weight), kept[v])
        for v in range(vectors):
            builder.store(builder.load(kept[v]), totals[v], align=4)
        return context.get_dummy_value()

    def softmax(context, scores, width, state, sums, depth, count):  # type: ignore[no-untyped-def]
        return types.void(*(types.int64,) * 6), generate

    return intrinsic(softmax)


# numba looks functions up by name.
scores_1, scores_2, scores_3 = (_products(vectors, MANY, add=False) for vectors in (1, 2, 3))
score_1, score_2, score_3 = (_products(vectors, 1, add=False) for vectors in (1, 2, 3))
output_1, output_2, output_3 = (_products(vectors, MANY, add=True) for vectors in (1, 2, 3))
panel_many_3, panel_4_3, panel_2_3, panel_1_3 = (
    _products(3, many, add=True, fetch=VECTORS) for many in (MANY, 4, 2, 1)
)
panel_many_1, panel_1_1 = (_products(1, many, add=True, fetch=VECTORS) for many in (MANY, 1))
gated_silu, gated_gelu_tanh = _gated(_silu), _gated(_gelu_tanh)
softmax_1, softmax_2, softmax_3 = (_softmax(vectors) for vectors in (1, 2, 3))


@intrinsic
def prefetch(context, address):  # type: ignore[no-untyped-def]
    """Ask for the cache line at an address."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, given: Sequence[ir.Value]) -> ir.Value:
        _prefetch(builder, given[0])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def call(context, address):  # type: ignore[no-untyped-def]
    """Call the C function `int (void)` at an address."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, given: Sequence[ir.Value]) -> ir.Value:
        kind = ir.FunctionType(SHORT, [])
        return builder.call(builder.inttoptr(given[0], kind.as_pointer()), [])

    return types.int32(types.int64), generate


def _at(kind: Any) -> Any:
    def at(context, address):  # type: ignore[no-untyped-def]
        def generate(
            context: Any, builder: ir.IRBuilder, signature: Any, given: Sequence[ir.Value]
        ) -> ir.Value:
            return builder.inttoptr(given[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), generate

    return intrinsic(at)


floats, longs = _at(types.float32), _at(types.int64)
"""An address as numba's pointer, for `carray`."""
