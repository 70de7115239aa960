"""Philox4x32-10, the counter-based generator behind `nova.random_bits`.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. One call gives one 32-bit word: word
`index & 3` of the block with counter (index >> 2 low, index >> 2 high, draw low, draw high) under the key (seed
low, seed high).
"""

from __future__ import annotations

from blutrain.nova.emitter import Emitter, lane_type

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


class _Wide:
    """32-bit words, kept zero-extended in i64 lanes: a product of two is then exact. What CPUs have instructions for."""

    def __init__(self, out: Emitter, lanes: int):
        self.out, self.lanes, self.type = out, lanes, lane_type("i64", lanes)

    def constant(self, value: int) -> str:
        return self.out.constant(str(value), self.type)

    def binary(self, op: str, a: str, b: str) -> str:
        return self.out.value(f"arith.{op} {a}, {b} : {self.type}")

    def halves(self, x: str) -> list[str]:
        """The low and the high word of an i64."""
        return [self.binary("andi", x, self.constant(0xFFFFFFFF)), self.binary("shrui", x, self.constant(32))]

    def product(self, a: str, b: int) -> list[str]:
        return self.halves(self.binary("muli", a, self.constant(b)))

    def sum(self, a: str, b: int) -> str:
        return self.halves(self.binary("addi", a, self.constant(b)))[0]

    def word(self, x: str) -> str:
        """As i32."""
        return self.out.value(f"arith.trunci {x} : {self.type} to {lane_type('i32', self.lanes)}")


class _Narrow:
    """The words as they are, in i32: what GPUs have, with a product in two halves."""

    def __init__(self, out: Emitter, lanes: int):
        self.out, self.lanes, self.type, self.wide = out, lanes, lane_type("i32", lanes), lane_type("i64", lanes)

    def constant(self, value: int) -> str:
        return self.out.constant(str(value - (1 << 32) if value >= 1 << 31 else value), self.type)

    def binary(self, op: str, a: str, b: str) -> str:
        return self.out.value(f"arith.{op} {a}, {b} : {self.type}")

    def halves(self, x: str) -> list[str]:
        high = self.out.value(f"arith.shrui {x}, {self.out.constant('32', self.wide)} : {self.wide}")
        return [self.out.value(f"arith.trunci {v} : {self.wide} to {self.type}") for v in (x, high)]

    def product(self, a: str, b: int) -> list[str]:
        name = self.out.fresh()
        self.out.line(f"{name}:2 = arith.mului_extended {a}, {self.constant(b)} : {self.type}")
        return [f"{name}#0", f"{name}#1"]

    def sum(self, a: str, b: int) -> str:
        return self.binary("addi", a, self.constant(b))

    def word(self, x: str) -> str:
        return x


def emit_random_bits(out: Emitter, seed: str, draw: str, index: str, lanes: int, narrow: bool = False) -> str:
    """`seed`, `draw`, `index`: i64 lanes. Returns i32 lanes of uniformly distributed bits; `narrow`: by i32 arithmetic."""
    w = _Narrow(out, lanes) if narrow else _Wide(out, lanes)
    i64 = lane_type("i64", lanes)
    block = out.value(f"arith.shrui {index}, {out.constant('2', i64)} : {i64}")
    counter = [*w.halves(block), *w.halves(draw)]
    key = w.halves(seed)
    for _ in range(_ROUNDS):
        (low0, high0), (low1, high1) = w.product(counter[0], _MULTIPLIERS[0]), w.product(counter[2], _MULTIPLIERS[1])
        counter = [
            w.binary("xori", w.binary("xori", high1, counter[1]), key[0]),
            low1,
            w.binary("xori", w.binary("xori", high0, counter[3]), key[1]),
            low0,
        ]
        key = [w.sum(k, weyl) for k, weyl in zip(key, _WEYL, strict=True)]
    position = out.value(f"arith.andi {index}, {out.constant('3', i64)} : {i64}")
    word = counter[3]
    suffix = f"{lane_type('i1', lanes)}, {w.type}" if lanes else w.type
    for i in range(3):
        is_it = out.value(f"arith.cmpi eq, {position}, {out.constant(str(i), i64)} : {i64}")
        word = out.value(f"arith.select {is_it}, {counter[i]}, {word} : {suffix}")
    return w.word(word)
