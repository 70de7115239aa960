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


class _Words:
    """32-bit words, kept zero-extended in i64 lanes: a product of two is then exact."""

    def __init__(self, out: Emitter, lanes: int):
        self.out, self.lanes, self.type = out, lanes, lane_type("i64", lanes)

    def constant(self, value: int) -> str:
        return self.out.constant(str(value), self.type)

    def binary(self, op: str, a: str, b: str) -> str:
        return self.out.value(f"arith.{op} {a}, {b} : {self.type}")

    def low(self, x: str) -> str:
        return self.binary("andi", x, self.constant(0xFFFFFFFF))

    def high(self, x: str) -> str:
        return self.binary("shrui", x, self.constant(32))

    def equal(self, a: str, b: str) -> str:
        return self.out.value(f"arith.cmpi eq, {a}, {b} : {self.type}")

    def select(self, condition: str, yes: str, no: str) -> str:
        suffix = f"{lane_type('i1', self.lanes)}, {self.type}" if self.lanes else self.type
        return self.out.value(f"arith.select {condition}, {yes}, {no} : {suffix}")


def emit_random_bits(out: Emitter, seed: str, draw: str, index: str, lanes: int) -> str:
    """`seed`, `draw`, `index`: i64 lanes. Returns i32 lanes of uniformly distributed bits."""
    w = _Words(out, lanes)
    block = w.binary("shrui", index, w.constant(2))
    counter = [w.low(block), w.high(block), w.low(draw), w.high(draw)]
    key = [w.low(seed), w.high(seed)]
    for _ in range(_ROUNDS):
        first = w.binary("muli", counter[0], w.constant(_MULTIPLIERS[0]))
        second = w.binary("muli", counter[2], w.constant(_MULTIPLIERS[1]))
        counter = [
            w.binary("xori", w.binary("xori", w.high(second), counter[1]), key[0]),
            w.low(second),
            w.binary("xori", w.binary("xori", w.high(first), counter[3]), key[1]),
            w.low(first),
        ]
        key = [w.low(w.binary("addi", k, w.constant(weyl))) for k, weyl in zip(key, _WEYL, strict=True)]
    position = w.binary("andi", index, w.constant(3))
    word = counter[3]
    for i in range(3):
        word = w.select(w.equal(position, w.constant(i)), counter[i], word)
    return out.value(f"arith.trunci {word} : {w.type} to {lane_type('i32', lanes)}")
