"""Attention over block tables on CPU cores: what each worker does, without the interpreter.

It stores its share of the new keys and values, computes its tasks, and merges its share of the rows. A task
is a tile of at most TILE lanes (rows times the query heads of one key-value head) over some keys of one block
table. Keys are read where they lie, KEYS at a time, under an online softmax (Milakov & Gimelshein 2018,
arXiv:1805.02867); what tasks find of a lane is merged by its greatest score and sum of weights. A lane's
result depends on where tasks cut its keys, and on nothing else.
"""

from functools import cache

import numpy as np
from numba import carray

from kvtool.compiling import c_function, njit
from kvtool.engine.compute.cpu import vector

TILE = vector.LANES * vector.VECTORS
"""Lanes of a tile at most."""

KEYS = 64
"""Keys whose scores are computed before their values are added up."""

LINE = 64
"""Bytes of a cache line."""

HIDDEN, UNSEEN = np.float32(-1e30), np.float32(-5e29)
"""Score of what a lane does not see, and the greatest score of a lane that has seen nothing: finite, so that
their differences are, and so far apart that what is hidden weighs nothing at all."""

LOG2E = np.float32(1.4426950408889634)

(
    WORKERS, NUMBER, CREW, BARRIER,
    TOKENS, HEADS, KV_HEADS, HEAD_FIRST, HEAD_LAST, WIDTH, BLOCK, WINDOW,
    QUERY, QUERY_HEAD, QUERY_ROW,
    KEY, KEY_HEAD, KEY_ROW,
    VALUE, VALUE_HEAD, VALUE_ROW,
    ARENA_KEYS, ARENA_VALUES, OUT, SUMS,
    WRITES, TASKS, TASK_COUNT, SHARES, ROWS, POSITIONS, TABLES,
    PARTS, PART_COUNT, LANE_PARTS, LANE_STARTS, SCRATCH, SCRATCH_SIZE, SCALE,
    FIELDS,
) = range(40)  # fmt: skip
"""Places in the array of arguments, int64: addresses; counts; strides in float32. Of KV_HEADS, [HEAD_FIRST,
HEAD_LAST) are computed. A window of 0 is none."""

FIRST, LAST, TABLE, LOW, HIGH, PART, COLUMNS = range(7)
"""Columns of a task: lanes [FIRST, LAST) of the list of rows, keys at positions [LOW, HIGH) of the table that
begins at TABLE, and the number of its first lane's part."""


def scratch_size(width: int) -> int:
    """float32 that a worker needs for a tile of heads of `width` channels."""
    return TILE * (2 * width + KEYS + 2)


@njit
def _scores(scores, lanes, width, keys, stride, count, depth):  # type: ignore[no-untyped-def]
    """scores [count, width] = keys [count, depth], `stride` apart, times lanes [depth, width]."""
    done = 0
    row, step = width * 4, stride * 4
    if width == vector.LANES:
        while count - done >= vector.MANY:
            vector.scores_1(scores + done * row, width, lanes, width, keys + done * step, stride, 1, depth)
            done += vector.MANY
        while done < count:
            vector.score_1(scores + done * row, width, lanes, width, keys + done * step, stride, 1, depth)
            done += 1
    elif width == 2 * vector.LANES:
        while count - done >= vector.MANY:
            vector.scores_2(scores + done * row, width, lanes, width, keys + done * step, stride, 1, depth)
            done += vector.MANY
        while done < count:
            vector.score_2(scores + done * row, width, lanes, width, keys + done * step, stride, 1, depth)
            done += 1
    else:
        while count - done >= vector.MANY:
            vector.scores_3(scores + done * row, width, lanes, width, keys + done * step, stride, 1, depth)
            done += vector.MANY
        while done < count:
            vector.score_3(scores + done * row, width, lanes, width, keys + done * step, stride, 1, depth)
            done += 1


@njit
def _outputs(sums, weights, width, values, stride, count, depth):  # type: ignore[no-untyped-def]
    """sums [depth, width] += values [count, depth], `stride` apart and transposed, times weights."""
    for at in range(0, depth, vector.MANY):
        here, there = sums + at * width * 4, values + at * 4
        if width == vector.LANES:
            vector.output_1(here, width, weights, width, there, 1, stride, count)
        elif width == 2 * vector.LANES:
            vector.output_2(here, width, weights, width, there, 1, stride, count)
        else:
            vector.output_3(here, width, weights, width, there, 1, stride, count)


@njit
def _softmax(scores, width, state, sums, depth, count):  # type: ignore[no-untyped-def]
    if width == vector.LANES:
        vector.softmax_1(scores, width, state, sums, depth, count)
    elif width == 2 * vector.LANES:
        vector.softmax_2(scores, width, state, sums, depth, count)
    else:
        vector.softmax_3(scores, width, state, sums, depth, count)


@njit
def _prefetch(address, stride, count, depth):  # type: ignore[no-untyped-def]
    """`count` rows of `depth` numbers, `stride` apart."""
    for row in range(count):
        for at in range(0, depth * 4, LINE):
            vector.prefetch(address + row * stride * 4 + at)


@njit
def _store(given, worker):  # type: ignore[no-untyped-def]
    """New keys and values of this worker's share of the rows into their slots."""
    tokens, heads, width = given[TOKENS], given[KV_HEADS], given[WIDTH]
    writes = carray(vector.longs(given[WRITES]), tokens)
    for row in range(tokens * worker // given[WORKERS], tokens * (worker + 1) // given[WORKERS]):
        for head in range(given[HEAD_FIRST], given[HEAD_LAST]):
            place = (writes[row] * heads + head) * width * 4
            key_at = given[KEY] + 4 * (head * given[KEY_HEAD] + row * given[KEY_ROW])
            value_at = given[VALUE] + 4 * (head * given[VALUE_HEAD] + row * given[VALUE_ROW])
            key, value = carray(vector.floats(key_at), width), carray(vector.floats(value_at), width)
            to_key = carray(vector.floats(given[ARENA_KEYS] + place), width)
            to_value = carray(vector.floats(given[ARENA_VALUES] + place), width)
            for at in range(width):
                to_key[at] = key[at]
                to_value[at] = value[at]


@njit
def _attend(given, head, task, scratch):  # type: ignore[no-untyped-def]
    """One task for one key-value head: of each lane the weighted sum, the greatest score, the sum of
    weights."""
    first, last, table, low, high = task[FIRST], task[LAST], task[TABLE], task[LOW], task[HIGH]
    depth, window, block = given[WIDTH], given[WINDOW], given[BLOCK]
    group = given[HEADS] // given[KV_HEADS]
    stride = given[KV_HEADS] * depth
    rows = carray(vector.longs(given[ROWS]), 1)
    positions = carray(vector.longs(given[POSITIONS]), 1)
    slots = carray(vector.longs(given[TABLES]), 1)
    all_keys = given[ARENA_KEYS] + head * depth * 4
    all_values = given[ARENA_VALUES] + head * depth * 4
    scale = carray(vector.floats(given[SCALE]), 1)[0] * LOG2E

    used = last - first
    width = (used + vector.LANES - 1) // vector.LANES * vector.LANES
    queries_at = scratch
    scores_at = queries_at + depth * width * 4
    sums_at = scores_at + KEYS * width * 4
    state_at = sums_at + depth * width * 4
    queries = carray(vector.floats(queries_at), depth * width)
    scores = carray(vector.floats(scores_at), KEYS * width)
    sums = carray(vector.floats(sums_at), depth * width)
    state = carray(vector.floats(state_at), 2 * width)
    earliest = positions[rows[first // group]]
    latest = earliest
    for lane in range(width):
        state[lane] = UNSEEN
        state[width + lane] = 0.0
        if lane >= used:
            for at in range(depth):
                queries[at * width + lane] = 0.0
            continue
        row = rows[(first + lane) // group]
        earliest, latest = min(earliest, positions[row]), max(latest, positions[row])
        place = (head * group + (first + lane) % group) * given[QUERY_HEAD] + row * given[QUERY_ROW]
        query = carray(vector.floats(given[QUERY] + 4 * place), depth)
        for at in range(depth):
            queries[at * width + lane] = query[at] * scale
    for at in range(depth * width):
        sums[at] = 0.0

    for start in range(low, high, KEYS):
        end = min(start + KEYS, high)
        at = start
        while at < end:
            stop = min((at // block + 1) * block, end)
            place = (slots[table + at // block] * block + at % block) * stride * 4
            _prefetch(all_values + place, stride, stop - at, depth)
            here = scores_at + (at - start) * width * 4
            _scores(here, queries_at, width, all_keys + place, stride, stop - at, depth)
            at = stop
        if end - 1 > earliest or (window and start <= latest - window):
            for lane in range(used):
                seen = positions[rows[(first + lane) // group]]
                for at in range(start, end):
                    if at > seen or (window and at <= seen - window):
                        scores[(at - start) * width + lane] = HIDDEN
        _softmax(scores_at, width, state_at, sums_at, depth, end - start)
        at = start
        while at < end:
            stop = min((at // block + 1) * block, end)
            if at + KEYS < high:
                after = slots[table + (at + KEYS) // block] * block + (at + KEYS) % block
                _prefetch(all_keys + after * stride * 4, stride, stop - at, depth)
            place = (slots[table + at // block] * block + at % block) * stride * 4
            here = scores_at + (at - start) * width * 4
            _outputs(sums_at, here, width, all_values + place, stride, stop - at, depth)
            at = stop

    size = depth + 2
    part = given[PARTS] + 4 * size * ((head - given[HEAD_FIRST]) * given[PART_COUNT] + task[PART])
    for lane in range(used):
        out = carray(vector.floats(part + 4 * size * lane), size)
        for at in range(depth):
            out[at] = sums[at * width + lane]
        out[depth] = state[lane]
        out[depth + 1] = state[width + lane]


@njit(error_model="numpy")
def _merge(given, worker):  # type: ignore[no-untyped-def]
    """This worker's share of the rows: the output and the log-sum-exp, from all parts of their lanes."""
    tokens, heads, depth = given[TOKENS], given[HEADS], given[WIDTH]
    group, size = heads // given[KV_HEADS], depth + 2
    starts = carray(vector.longs(given[LANE_STARTS]), tokens * group + 1)
    numbers = carray(vector.longs(given[LANE_PARTS]), 1)
    sums = carray(vector.floats(given[SUMS]), tokens * heads)
    for row in range(tokens * worker // given[WORKERS], tokens * (worker + 1) // given[WORKERS]):
        for head in range(given[HEAD_FIRST] * group, given[HEAD_LAST] * group):
            lane = row * group + head % group
            first, last = starts[lane], starts[lane + 1]
            base = given[PARTS] + 4 * size * (head // group - given[HEAD_FIRST]) * given[PART_COUNT]
            greatest, total = UNSEEN, np.float32(0.0)
            for at in range(first, last):
                part = carray(vector.floats(base + 4 * size * numbers[at]), size)
                greatest = max(greatest, part[depth])
            for at in range(first, last):
                part = carray(vector.floats(base + 4 * size * numbers[at]), size)
                total += part[depth + 1] * np.exp2(part[depth] - greatest)
            out = carray(vector.floats(given[OUT] + 4 * (row * heads + head) * depth), depth)
            out[:] = 0.0
            for at in range(first, last):
                part = carray(vector.floats(base + 4 * size * numbers[at]), size)
                share = np.exp2(part[depth] - greatest) / total
                for channel in range(depth):
                    out[channel] += part[channel] * share
            sums[row * heads + head] = (greatest + np.log2(total)) / LOG2E


def _work(data):  # type: ignore[no-untyped-def]
    """`data`: the array of arguments. Where fewer threads came than were asked for, each does several
    shares."""
    given = carray(data, FIELDS, np.int64)
    number, crew = vector.call(given[NUMBER]), vector.call(given[CREW])
    for worker in range(number, given[WORKERS], crew):
        _store(given, worker)
    vector.call(given[BARRIER])
    count = given[TASK_COUNT]
    tasks = carray(vector.longs(given[TASKS]), (count, COLUMNS))
    shares = carray(vector.longs(given[SHARES]), given[WORKERS] + 1)
    scratch = given[SCRATCH] + 4 * given[SCRATCH_SIZE] * number
    for worker in range(number, given[WORKERS], crew):
        for at in range(shares[worker], shares[worker + 1]):
            _attend(given, given[HEAD_FIRST] + at // count, tasks[at % count], scratch)
    vector.call(given[BARRIER])
    for worker in range(number, given[WORKERS], crew):
        _merge(given, worker)


@cache
def work() -> int:
    """Address of `_work`, compiled."""
    return c_function(_work)
