"""A strict parser for JSON Lines of integers and one list of integers, compiled: a block-hash trace's rows.

It takes exactly the rows that Python's json would read the same way, and refuses a chunk at the first
byte that it is not sure of; the caller then reads that chunk row by row.
"""

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from kvtool.compiling import njit

KEYS = ("timestamp", "input_length", "output_length", "hash_ids", "chat_id", "parent_chat_id", "turn", "type")
TIMESTAMP, INPUT, OUTPUT, IDS, CHAT, PARENT = range(6)
ABSENT = -(2**62)
"""Stands for a field that the row does not have."""

_NAMES = np.zeros((len(KEYS), 16), np.uint8)
for _index, _key in enumerate(KEYS):
    _NAMES[_index, : len(_key)] = np.frombuffer(_key.encode(), np.uint8)
_SIZES = np.array([len(key) for key in KEYS], np.int64)


def parse(
    chunk: bytes, count: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None:
    """(times [r], fields [r, 6] in the order of the constants, offsets [r + 1], ids) of all `count` lines.

    None where some line is not an object of these keys, integers and one list of integers: the time may
    have decimals, `type` may be plain text. A field that is not there is ABSENT.
    """
    data = np.frombuffer(chunk, np.uint8)
    times = np.empty(count, np.float64)
    fields = np.full((count, 6), ABSENT, np.int64)
    offsets = np.zeros(count + 1, np.int64)
    ids = np.empty(len(data) // 2 + 1, np.int64)
    if _parse(data, _NAMES, _SIZES, times, fields, offsets, ids) != count:
        return None
    return times, fields, offsets, ids[: offsets[count]]


@njit(types.int64(types.Array(types.uint8, 1, "C", readonly=True), types.int64), cache=True)
def _past_white(data: Any, at: int) -> int:
    while at < data.size and (data[at] == 32 or data[at] == 9 or data[at] == 13):
        at += 1
    return at


@njit(
    types.UniTuple(types.int64, 2)(types.Array(types.uint8, 1, "C", readonly=True), types.int64), cache=True
)
def _integer(data: Any, at: int) -> tuple[int, int]:
    """(value, place behind it) of a JSON integer of at most 18 digits; place -1 for anything else."""
    negative = at < data.size and data[at] == 45
    if negative:
        at += 1
    first, value = at, 0
    while at < data.size and 48 <= data[at] <= 57:
        value = value * 10 + (data[at] - 48)
        at += 1
    digits = at - first
    if digits == 0 or digits > 18 or (digits > 1 and data[first] == 48):
        return 0, -1
    return (-value if negative else value), at


@njit(
    types.int64(
        types.Array(types.uint8, 1, "C", readonly=True),
        types.uint8[:, ::1],
        types.int64[::1],
        types.float64[::1],
        types.int64[:, ::1],
        types.int64[::1],
        types.int64[::1],
    ),
    cache=True,
    nogil=True,
)
def _parse(data: Any, names: Any, sizes: Any, times: Any, fields: Any, offsets: Any, ids: Any) -> int:
    """Rows parsed; fewer than there are lines means that one was refused."""
    at, row, used = 0, 0, 0
    while at < data.size:
        at = _past_white(data, at)
        if at >= data.size or data[at] != 123:  # {
            return row
        at = _past_white(data, at + 1)
        while True:
            if at >= data.size or data[at] != 34:  # "
                return row
            start = at + 1
            at = start
            while at < data.size and data[at] != 34:
                if data[at] == 92 or data[at] < 32:  # an escape: not one of our keys
                    return row
                at += 1
            key = -1
            for candidate in range(sizes.size):
                if sizes[candidate] == at - start:
                    same = True
                    for offset in range(sizes[candidate]):
                        if names[candidate, offset] != data[start + offset]:
                            same = False
                            break
                    if same:
                        key = candidate
                        break
            at = _past_white(data, at + 1)
            if key < 0 or at >= data.size or data[at] != 58:  # :
                return row
            at = _past_white(data, at + 1)
            if key < 6 and fields[row, key] != ABSENT:
                return row  # a key twice: Python keeps the last one
            if key == IDS:
                if at >= data.size or data[at] != 91:  # [
                    return row
                at = _past_white(data, at + 1)
                first = used
                if at < data.size and data[at] == 93:  # ]
                    at += 1
                else:
                    while True:
                        value, at = _integer(data, at)
                        if at < 0:
                            return row
                        ids[used] = value
                        used += 1
                        at = _past_white(data, at)
                        if at >= data.size:
                            return row
                        if data[at] == 93:
                            at += 1
                            break
                        if data[at] != 44:  # ,
                            return row
                        at = _past_white(data, at + 1)
                fields[row, IDS] = used - first
            elif key == 7:
                if at >= data.size or data[at] != 34:
                    return row
                at += 1
                while at < data.size and data[at] != 34:
                    if data[at] == 92 or data[at] < 32 or data[at] > 126:
                        return row
                    at += 1
                at += 1
            else:
                value, at = _integer(data, at)
                if at < 0:
                    return row
                if key < 6:
                    fields[row, key] = value
                if key == TIMESTAMP:
                    negative = data[at - 1] == 48 and value == 0 and at >= 2 and data[at - 2] == 45
                    time = float(value)
                    if at < data.size and data[at] == 46:  # .
                        if value < 0 or negative:
                            return row
                        scale = 1.0
                        digits = 0
                        at += 1
                        while at < data.size and 48 <= data[at] <= 57:
                            value = value * 10 + (data[at] - 48)
                            scale *= 10.0
                            digits += 1
                            at += 1
                            if value > 9007199254740992 or digits > 18:
                                return row
                        if digits == 0:
                            return row
                        time = value / scale  # both exact, so rounded once, as Python's float is
                    times[row] = time
            at = _past_white(data, at)
            if at >= data.size:
                return row
            if data[at] == 125:  # }
                at += 1
                break
            if data[at] != 44:
                return row
            at = _past_white(data, at + 1)
        at = _past_white(data, at)
        if at < data.size and data[at] != 10:
            return row
        at += 1
        row += 1
        offsets[row] = used
    return row
