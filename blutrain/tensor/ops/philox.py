"""Philox4x32-10 on arrays (Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

key = (seed low, seed high); counter = (index / 4 low, high, draw low, draw high); element `index` takes word index %
4 of the output.
"""

from __future__ import annotations

import numpy

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
# Counters of a block: the six uint64 arrays of a round, 192 KB, stay in the second-level cache.
BLOCK = 1 << 12
_LOW = 0xFFFFFFFF
_SHIFT = numpy.uint64(32)
_MASK = numpy.uint64(_LOW)


def philox_blocks(seed: int, draw: int, size: int):
    """Yield (start, uint32 words of the elements start, start + 1, ...) until `size` elements are covered;

    the array is reused.
    """
    num_counters = -(-size // 4)
    words = numpy.empty((min(BLOCK, num_counters), 4), numpy.uint32)
    for first in range(0, num_counters, BLOCK):
        count = min(BLOCK, num_counters - first)
        block = words[:count]
        index = numpy.arange(first, first + count, dtype=numpy.uint64)
        low, high = (numpy.full(count, word, numpy.uint64) for word in split(draw))
        for lane, word in enumerate(philox(index & _MASK, index >> _SHIFT, low, high, split(seed))):
            block[:, lane] = word
        yield first * 4, block.reshape(-1)[: size - first * 4]


def split(number: int) -> tuple[int, int]:
    """The two 32-bit words of a 64-bit number, low first."""
    return number & _LOW, (number >> 32) & _LOW


def philox(x0, x1, x2, x3, key: tuple[int, int]):
    """The four output words for counters (x0, x1, x2, x3): uint64 arrays that hold 32-bit words, overwritten."""
    k0, k1 = key
    m0, m1 = map(numpy.uint64, MULTIPLIERS)
    p0, p1 = numpy.empty_like(x0), numpy.empty_like(x0)
    for _ in range(ROUNDS):
        numpy.multiply(x0, m0, out=p0)
        numpy.multiply(x2, m1, out=p1)
        numpy.right_shift(p1, _SHIFT, out=x0)
        x0 ^= x1
        x0 ^= numpy.uint64(k0)
        numpy.right_shift(p0, _SHIFT, out=x2)
        x2 ^= x3
        x2 ^= numpy.uint64(k1)
        numpy.bitwise_and(p1, _MASK, out=x1)
        numpy.bitwise_and(p0, _MASK, out=x3)
        k0, k1 = (k0 + KEY_STEPS[0]) & _LOW, (k1 + KEY_STEPS[1]) & _LOW
    return x0, x1, x2, x3
