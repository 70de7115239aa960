"""scan kernels: running sums along the middle of three dimensions, narrow floats carried in f32, without atomics.

A thread takes a piece of a line; neighbouring threads take neighbouring columns. Where lines are cut, a first phase
leaves the total of every piece in the workspace, and in the second each piece starts from the totals before it, added
in order.
"""

from __future__ import annotations

import math

from blutrain.nova.cpu.emit import Memory, Number, operand_pointer, result_pointer
from blutrain.nova.cpu.scan import neutral, scan_of, sum_dtype, supports
from blutrain.nova.emitter import Emitter
from blutrain.nova.gpu.configure_common import LAUNCH_US, power_of_two, time_us
from blutrain.nova.gpu.emit import (
    BLOCK,
    SMALL,
    THREAD,
    WORKSPACE,
    SimtIntegers,
    convert_scalar,
    phase_text,
)
from blutrain.nova.gpu.function import module_text
from blutrain.nova.gpu.kernel import GpuKernel, GpuPhase
from blutrain.nova.kernel import ITEM_BYTES, Kernel, Scan
from blutrain.nova.target_gpu import GpuFacts

__all__ = ["configure", "generate", "supports"]

BLOCK_THREADS = 256
THREADS_PER_SM = 1024  # that hide the latency of loads
MIN_PIECE = 32  # a cache line of f32


def configure(kernel: Kernel, facts: GpuFacts) -> dict[str, int]:
    """Pieces of `length` elements, blocks of `block` threads. A piece adds up to as many totals as there are before it,
    so neither the pieces nor their number are longer than about the root of a line.
    """
    lines, extent, columns = scan_of(kernel).type.shape
    block = min(BLOCK_THREADS, facts.max_threads_per_block)
    if lines * columns >= facts.sms * THREADS_PER_SM or extent <= 2 * MIN_PIECE:
        return {"length": max(1, extent), "block": block}
    return {"length": max(MIN_PIECE, power_of_two(math.isqrt(extent))), "block": block}


def generate(kernel: Kernel, facts: GpuFacts, config: dict[str, int]) -> GpuKernel:
    op, block = scan_of(kernel), config["block"]
    lines, extent, columns = op.type.shape
    pieces = math.ceil(extent / config["length"])
    threads = lines * pieces * columns
    blocks = math.ceil(threads / block)
    texts, phases = [], []
    for is_total in (True, False) if pieces > 1 else (False,):
        symbol = f"{kernel.symbol}_{len(phases)}"
        out = Emitter()
        _ScanPhase(kernel, op, out, config, pieces, is_total).emit()
        texts.append(phase_text(kernel, symbol, out, block))
        phases.append(GpuPhase(symbol, (blocks, 1, 1), block))
    num_bytes = kernel.bytes + (len(phases) - 1) * op.type.bytes
    return GpuKernel(
        text=module_text(texts),
        target=facts.arch,
        phases=tuple(phases),
        workspace_bytes=threads * ITEM_BYTES[sum_dtype(op)] if pieces > 1 else 0,
        bytes=num_bytes,
        flops=op.type.size * len(phases),
        predicted_us=LAUNCH_US * len(phases) + time_us(num_bytes, op.type.size, facts),
        schedule=f"scan, {pieces} pieces of {config['length']} a line, {blocks} blocks of {block}",
    )


class _ScanPhase:
    """One thread's view of a phase: the total of a piece, or its running sums."""

    def __init__(self, kernel: Kernel, op: Scan, out: Emitter, config: dict[str, int], pieces: int, is_total: bool):
        self.kernel, self.op, self.out, self.config = kernel, op, out, config
        self.memory, self.ints = Memory(out), SimtIntegers(out, op.type.size < SMALL)
        self.lines, self.extent, self.columns = op.type.shape
        self.pieces, self.is_total, self.dtype = pieces, is_total, sum_dtype(op)

    def emit(self) -> None:
        ints = self.ints
        number = ints.name(ints.add(ints.mul(BLOCK, self.config["block"]), THREAD))
        threads = self.lines * self.pieces * self.columns
        self.out.when(ints.less(number, threads), lambda: self._piece(number))

    def _piece(self, number: str) -> None:
        ints, length = self.ints, self.config["length"]
        column = ints.rem(number, self.columns)
        line, piece = self._parts(ints.div(number, self.columns))
        begin = ints.mul(piece, length)
        end = ints.minimum(ints.add(begin, length), self.extent) if self.pieces > 1 else self.extent
        base = ints.add(ints.mul(line, self.extent * self.columns), column)

        def step(index: str, carried: list[str]) -> list[str]:
            place = ints.name(ints.add(base, ints.mul(index, self.columns)))
            total = self._add(carried[0], self._load(place))
            if not self.is_total:
                narrow = convert_scalar(self.out, total, self.dtype, self.op.type.dtype)
                self.memory.store(narrow, result_pointer(self.kernel, 0), place, self.op.type.dtype, 0)
            return [total]

        carried = [(self._before(line, piece, column), self.dtype)]
        (total,) = self.out.loop(ints.name(begin), ints.name(end), ints.name(1), step, carried)
        if self.is_total:
            self.memory.store(total, WORKSPACE, number, self.dtype, 0)

    def _parts(self, number: Number) -> tuple[Number, Number]:
        """(line, piece of it)."""
        if self.pieces == 1:
            return number, 0
        return self.ints.div(number, self.pieces), self.ints.rem(number, self.pieces)

    def _before(self, line: Number, piece: Number, column: Number) -> str:
        """The sum of the totals of the pieces before, or nothing."""
        initial = self.out.constant(neutral(self.dtype), self.dtype)
        if self.is_total or self.pieces == 1:
            return initial
        ints = self.ints
        base = ints.add(ints.mul(line, self.pieces * self.columns), column)

        def add(index: str, carried: list[str]) -> list[str]:
            place = ints.name(ints.add(base, ints.mul(index, self.columns)))
            return [self._add(carried[0], self.memory.load(WORKSPACE, place, self.dtype, 0))]

        return self.out.loop(ints.name(0), ints.name(piece), ints.name(1), add, [(initial, self.dtype)])[0]

    def _load(self, place: str) -> str:
        source = self.op.type.dtype
        value = self.memory.load(operand_pointer(self.op.operand), place, source, 0)
        return convert_scalar(self.out, value, source, self.dtype)

    def _add(self, a: str, b: str) -> str:
        op = "addi" if self.dtype[0] == "i" else "addf"
        return self.out.value(f"arith.{op} {a}, {b} : {self.dtype}")
