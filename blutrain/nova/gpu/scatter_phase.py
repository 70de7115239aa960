"""What the two phases of a scatter kernel share: the lists in the workspace, warps and lanes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from blutrain.nova.cpu.emit import POINTER, Number
from blutrain.nova.cpu.emit_domain import Domain
from blutrain.nova.emitter import Emitter
from blutrain.nova.gpu.emit import WORKSPACE, Shared, SimtEvaluator
from blutrain.nova.gpu.emit_block import WARP
from blutrain.nova.kernel import Kernel, ScatterAdd

ALIGNMENT = 256


def table_of(op: ScatterAdd) -> tuple[int, int]:
    """(rows, elements of a row)."""
    shape = op.types[0].shape
    return shape[0], math.prod(shape[1:])


class Lists:
    """Arrays of i32 in the workspace: start [rows + 1], order [ids], and for the sort found and its rows [ids]."""

    def __init__(self, op: ScatterAdd):
        rows, _ = table_of(op)
        self.starts, size = {}, 0
        for name, count in (
            ("start", rows + 1),
            ("order", op.ids_type.size),
            ("found", op.ids_type.size),
            ("row", op.ids_type.size),
        ):
            self.starts[name] = size
            size += (count * 4 + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        self.bytes = size


class ScatterPhase:
    """What both phases need: the workspace's arrays, warps and lanes."""

    def __init__(self, kernel: Kernel, domain: Domain, symbol: str, config: dict[str, int]):
        op = kernel.ops[0]
        assert isinstance(op, ScatterAdd)
        self.kernel, self.domain, self.op, self.config, self.out = kernel, domain, op, config, Emitter()
        self.shared, self.lists = Shared(symbol, self.out), Lists(op)
        self.evaluator = SimtEvaluator(kernel, domain, self.out)
        self.ints, self.memory = self.evaluator.integers, self.evaluator.memory
        self.ints.is_small = False
        self.rows, self.columns = table_of(op)
        self.count = op.ids_type.size
        self.warp, self.lane = self._narrow("divui"), self._narrow("remui")

    def _narrow(self, op: str) -> str:
        """Warp or lane number, from the 32-bit thread number."""
        value = self.out.value(f"arith.{op} %thread32, {self.out.constant(str(WARP), 'i32')} : i32")
        return self.out.value(f"arith.extui {value} : i32 to i64")

    def array(self, name: str) -> str:
        start = self.out.integer(self.lists.starts[name])
        with self.out.scope(0):
            return self.out.value(
                f"llvm.getelementptr inbounds {WORKSPACE}[{start}] : ({POINTER}, i64) -> {POINTER}, i8"
            )

    def minus(self, a: str, b: str) -> str:
        return self.out.value(f"arith.subi {a}, {b} : i64")

    def read(self, name: str, index: Number) -> str:
        """An element of an array of the workspace, as i64."""
        value = self.memory.load(self.array(name), self.ints.name(index), "i32", 0)
        return self.out.value(f"arith.extsi {value} : i32 to i64")

    def write(self, name: str, index: Number, value: Number) -> None:
        narrow = self.out.value(f"arith.trunci {self.ints.name(value)} : i64 to i32")
        self.memory.store(narrow, self.array(name), self.ints.name(index), "i32", 0)

    def loop(self, lower: Number, upper: Number, step: Number, body: Callable, carried: Sequence = ()) -> list[str]:
        ints = self.ints
        return self.out.loop(ints.name(lower), ints.name(upper), ints.name(step), body, carried)
