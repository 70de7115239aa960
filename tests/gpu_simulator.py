"""Runs the text of GPU kernels on the CPU: every thread of a block at once, as NumPy arrays.

For tests of generators without a GPU. It covers what the sm_80 contraction family emits: arith, math, scf, llvm, a
little of nvvm, and the inline PTX of cp.async, ldmatrix, ld.shared, mma.sync and cvt. Copies of cp.async land when
they are waited for, and not before. Loads and stores outside an allocation raise; shared memory starts as NaN. Factors
of mma.sync in TF32 lose their low bits, as in the hardware. Not modelled: races between threads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from mlir import ir

from blutrain.nova.gpu.kernel import GpuKernel, GpuPhase

WARP = 32
FLOATS = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
INTEGERS = {"i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8, "i1": np.bool_, "index": np.int64}
DTYPES = {**FLOATS, **INTEGERS}


class SimulationError(AssertionError):
    """A kernel that does what a GPU must not: a wild access, a divergent barrier, an unknown operation."""


@dataclass
class Memory:
    """Global memory: one array of bytes, allocations between guard zones that nobody may touch."""

    bytes: np.ndarray = field(default_factory=lambda: np.zeros(4096, np.uint8))
    allowed: np.ndarray = field(default_factory=lambda: np.zeros(4096, np.bool_))

    def allocate(self, content: np.ndarray) -> int:
        start = len(self.bytes)
        size = -(-content.nbytes // 256) * 256 + 256
        self.bytes = np.concatenate([self.bytes, np.full(size, 0xFF, np.uint8)])
        self.allowed = np.concatenate([self.allowed, np.zeros(size, np.bool_)])
        self.bytes[start : start + content.nbytes] = content.reshape(-1).view(np.uint8)
        self.allowed[start : start + content.nbytes] = True
        return start

    def read(self, start: int, like: np.ndarray) -> np.ndarray:
        return self.bytes[start : start + like.nbytes].view(like.dtype).reshape(like.shape).copy()


def simulate(
    kernel: GpuKernel,
    operands: list[np.ndarray],
    results: list[np.ndarray],
    predicate: int | None = None,
    workspace: np.ndarray | None = None,
):
    """Runs every phase; fills `results` in place, and `workspace` where one is given. Results that alias operands are given
    as the operand's own array.

    Returns the shared-memory accesses: {(kind, wavefronts): count}, where `wavefronts` of 1 is free of conflicts.
    """
    memory = Memory()
    places: dict[int, int] = {}
    addresses = []
    for array in [*operands, *results]:
        if id(array) not in places:
            places[id(array)] = memory.allocate(array)
        addresses.append(places[id(array)])
    scratch = np.full(kernel.workspace_bytes, 0xFF, np.uint8) if workspace is None else workspace
    scratch_at = memory.allocate(scratch)
    flag = 0 if predicate is None else memory.allocate(np.array([predicate], np.int32))
    wavefronts: dict[tuple[str, int], int] = {}
    context = ir.Context()
    context.allow_unregistered_dialects = True
    with context, ir.Location.unknown():
        module = ir.Module.parse(kernel.text)
        functions = {}
        for op in module.body.operations[0].regions[0].blocks[0].operations:
            if op.operation.name == "llvm.func":
                functions[ir.StringAttr(op.attributes["sym_name"]).value] = op
        for phase in kernel.phases:
            for block in range(phase.grid[0]):
                _Block(functions[phase.symbol], phase, block, memory, wavefronts).run([*addresses, scratch_at, flag])
    for array in results:
        array[...] = memory.read(places[id(array)], array)
    scratch[...] = memory.read(scratch_at, scratch)
    return wavefronts


class _Block:
    def __init__(self, function, phase: GpuPhase, block: int, memory: Memory, wavefronts: dict):
        self.function, self.block, self.memory, self.wavefronts = function, block, memory, wavefronts
        self.threads = phase.block
        self.shared = np.full(max(phase.shared_bytes, 1), 0xFF, np.uint8)
        self.values: dict[ir.Value, Any] = {}
        self.mask = np.ones(self.threads, np.bool_)
        self.copies: list = []  # of the group that is open
        self.groups: list[list] = []

    def run(self, arguments: list[int]) -> None:
        region = self.function.regions[0]
        block = region.blocks[0]
        for value, address in zip(block.arguments, arguments, strict=True):
            self.values[value] = np.full(self.threads, address, np.int64)
        while block is not None:
            block = self._run_block(block)
        if self.copies or any(self.groups):
            raise SimulationError("copies are on their way when the kernel ends")

    def _run_block(self, block) -> Any:
        for op in block.operations:
            op = op.operation
            if op.name in ("llvm.br", "llvm.cond_br"):
                taken = 0
                if op.name == "llvm.cond_br":
                    taken = 0 if self._uniform(self._in(op)[0]) else 1
                return op.successors[taken]
            if op.name == "llvm.return":
                return None
            self._run(op)
        return None

    def _uniform(self, value: np.ndarray) -> Any:
        active = np.asarray(value)[self.mask]
        if len(active) and not (active == active[0]).all():
            raise SimulationError("threads of a block disagree about where to go")
        return active[0] if len(active) else value[0]

    def _in(self, op) -> list:
        return [self.values[v] for v in op.operands]

    def _run(self, op) -> None:
        if op.name in _OPS:
            result = _OPS[op.name](self, op, *self._in(op))
            if len(op.results) and op.name != "scf.for":
                self.values[op.results[0]] = result
        elif op.name in _ELEMENTWISE:
            with np.errstate(all="ignore"):
                result = _ELEMENTWISE[op.name](*self._in(op))
            self.values[op.results[0]] = np.asarray(result).astype(_dtype(op.results[0].type), copy=False)
        else:
            raise SimulationError(f"unknown operation {op.name}")

    # --- control

    def scf_for(self, op, lower, upper, step, *initial):
        """Threads may run for different lengths; those that are done wait, masked."""
        body, saved, carried = op.regions[0].blocks[0], self.mask, list(initial)
        index = lower.copy()
        while (active := saved & (index < upper)).any():
            self.mask = active
            self.values[body.arguments[0]] = index
            self.values.update(zip(list(body.arguments)[1:], carried, strict=True))
            following = carried
            for inner in body.operations:
                if inner.operation.name == "scf.yield":
                    following = self._in(inner.operation)
                else:
                    self._run(inner.operation)
            carried = [_select(self, op, active, new, old) for new, old in zip(following, carried, strict=True)]
            index = index + step
        self.mask = saved
        for result, value in zip(op.results, carried, strict=True):
            self.values[result] = value

    def scf_if(self, op, condition):
        saved = self.mask
        for region, chosen in zip(op.regions, (condition, ~condition), strict=True):
            if len(region.blocks) == 0:
                continue
            self.mask = saved & chosen
            if self.mask.any():
                for inner in region.blocks[0].operations:
                    if inner.operation.name != "scf.yield":
                        self._run(inner.operation)
        self.mask = saved

    def barrier(self, op):
        if not self.mask.all():
            raise SimulationError("a barrier that not every thread reaches")

    # --- memory

    def _space(self, pointer: ir.Value) -> tuple[np.ndarray, np.ndarray | None]:
        if "ptr<3>" in str(pointer.type):
            return self.shared, None
        return self.memory.bytes, self.memory.allowed

    def _spans(self, pointer: ir.Value, addresses: np.ndarray, size: int, alignment: int) -> np.ndarray:
        """Byte numbers of each active thread's access."""
        data, allowed = self._space(pointer)
        active = addresses[self.mask]
        if (active % alignment).any():
            raise SimulationError(f"an address that is not a multiple of {alignment}")
        spans = active[:, None] + np.arange(size)
        if spans.size and (spans.min() < 0 or spans.max() >= len(data)):
            raise SimulationError("an address outside memory")
        if allowed is not None and not allowed[spans].all():
            raise SimulationError("an access outside every allocation")
        return spans

    def load(self, op, address):
        shape, dtype = _shape(op.results[0].type)
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        data, _ = self._space(op.operands[0])
        spans = self._spans(op.operands[0], address, size, _alignment(op))
        result = np.zeros((self.threads, *shape), dtype)
        result[self.mask] = data[spans].view(dtype).reshape(-1, *shape)
        return result

    def store(self, op, value, address):
        shape, dtype = _shape(op.operands[0].type)
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        data, _ = self._space(op.operands[1])
        spans = self._spans(op.operands[1], address, size, _alignment(op))
        bytes_ = np.ascontiguousarray(value[self.mask]).view(np.uint8).reshape(spans.shape)
        if len(np.unique(spans)) != spans.size:
            raise SimulationError("two threads write the same bytes")
        data[spans] = bytes_
        if data is self.shared and size == 16:
            self._count("store", address[self.mask], size)

    def pointer(self, op, base, *dynamic):
        constants = list(ir.DenseI32ArrayAttr(op.attributes["rawConstantIndices"]))
        element = str(ir.TypeAttr(op.attributes["elem_type"]).value)
        item = np.dtype(DTYPES[element]).itemsize
        index = dynamic[0].astype(np.int64) if dynamic else constants[0]
        return base + index * item

    def _count(self, kind: str, addresses: np.ndarray, size: int) -> None:
        """Wavefronts of a warp's access to shared memory: 128 bytes at a time, one 4-byte word a bank."""
        lanes = max(1, 128 // size)
        worst = 1
        for start in range(0, len(addresses), lanes):
            words = np.unique((addresses[start : start + lanes, None] // 4 + np.arange(size // 4)).reshape(-1))
            worst = max(worst, int(np.bincount(words % 32).max()))
        self.wavefronts[kind, worst] = self.wavefronts.get((kind, worst), 0) + 1

    # --- inline PTX

    def asm(self, op, *arguments):
        text = ir.StringAttr(op.attributes["asm_string"]).value
        outputs = ir.StringAttr(op.attributes["constraints"]).value.count("=")
        for pattern, method in _PTX:
            if match := re.search(pattern, text):
                return method(self, match, text, outputs, arguments)
        raise SimulationError(f"unknown PTX: {text}")

    def copy(self, match, text, outputs, arguments):
        to, source, size = int(match[1]), int(match[2]), int(match[3])
        active = self.mask.copy()
        for number, limit in re.findall(r"setp\.lt(?:\.and)?\.s32 p, \$(\d+), (-?\d+)", text):
            active &= arguments[int(number)] < int(limit)
        taken = np.full(self.threads, size)
        if given := re.search(rf"{size}, \$(\d+);", text):
            taken = arguments[int(given[1])]
            if ((taken < 0) | (taken > size))[active].any():
                raise SimulationError("cp.async: a size out of range")
        target, origin = arguments[0] + to, arguments[1] + source
        if (target[active] % size).any() or (origin[active] % size).any():
            raise SimulationError("cp.async: an address that is not aligned")
        for thread in np.flatnonzero(active):
            span = slice(origin[thread], origin[thread] + taken[thread])
            if not self.memory.allowed[span].all():
                raise SimulationError("cp.async reads outside every allocation")
            content = np.zeros(size, np.uint8)
            content[: taken[thread]] = self.memory.bytes[span]
            self.copies.append((target[thread], content))

    def load_if(self, match, text, outputs, arguments):
        vector, bits, offset = int(match[1] or 1), int(match[2]), int(match[3])
        size = vector * bits // 8
        addresses, active = arguments[0] + offset, self.mask & (arguments[1] != 0)
        if (addresses[active] % size).any():
            raise SimulationError("ld.global: an address that is not aligned")
        spans = addresses[active][:, None] + np.arange(size)
        if spans.size and not self.memory.allowed[np.clip(spans, 0, len(self.memory.allowed) - 1)].all():
            raise SimulationError("ld.global outside every allocation")
        data = np.zeros((self.threads, vector * max(bits, 16) // 8), np.uint8)
        data[np.flatnonzero(active)[:, None], np.arange(size)] = self.memory.bytes[spans]
        words = data.view({8: np.int16, 16: np.int16, 32: np.int32, 64: np.int64}[bits])
        return words[:, 0].copy() if vector == 1 else list(words.T.copy())

    def commit(self, match, text, outputs, arguments):
        self.groups.append(self.copies)
        self.copies = []

    def wait(self, match, text, outputs, arguments):
        while len(self.groups) > int(match[1]):
            for target, content in self.groups.pop(0):
                self.shared[target : target + len(content)] = content

    def matrices(self, match, text, outputs, arguments):
        addresses = arguments[0] + int(match[2])
        words = np.zeros((4, self.threads), np.int32)
        for warp in range(0, self.threads, WARP):
            for number in range(4):
                rows = addresses[warp + 8 * number : warp + 8 * number + 8]
                self._count("ldmatrix", rows, 16)
                halves = self.shared[rows[:, None] + np.arange(16)].view(np.uint16)
                halves = halves.T.copy() if match[1] else halves
                words[number, warp : warp + WARP] = halves.reshape(32, 2).copy().view(np.int32)[:, 0]
        return list(words)

    def shared_load(self, match, text, outputs, arguments):
        item = 8 if "f64" in text else 4
        size = item * outputs
        addresses = arguments[0] + int(match[1])
        if (addresses % size).any():
            raise SimulationError("ld.shared: an address that is not aligned")
        for warp in range(0, self.threads, WARP):
            self._count("ld.shared", addresses[warp : warp + WARP], size)
        data = self.shared[addresses[:, None] + np.arange(size)]
        if item == 8:
            return data.view(np.float64)[:, 0]
        words = data.view(np.float32 if ".f32" in text else np.int32)
        return words[:, 0] if outputs == 1 else list(words.T)

    def shared_store(self, match, text, outputs, arguments):
        spans = (arguments[0] + int(match[1]))[self.mask, None] + np.arange(4)
        if len(np.unique(spans)) != spans.size:
            raise SimulationError("two threads write the same bytes")
        self.shared[spans] = arguments[1][self.mask].view(np.uint8).reshape(spans.shape)

    def multiply(self, match, text, outputs, arguments):
        k, dtype = int(match[1]), match[2]
        rows, column, sums = arguments[:4], arguments[4:6], arguments[6:]
        result = [np.empty(self.threads, np.float32) for _ in range(4)]
        for warp in range(0, self.threads, WARP):
            part = slice(warp, warp + WARP)
            a, b, c = np.zeros((16, k)), np.zeros((k, 8)), np.zeros((16, 8))
            lanes = np.arange(WARP)
            g, t = lanes // 4, lanes % 4
            for i, words in enumerate(rows):
                for e, values in enumerate(_unpacked(words[part], dtype)):
                    a[g + 8 * (i % 2), (t * k // 8 + e) + k // 2 * (i // 2)] = values
            for i, words in enumerate(column):
                for e, values in enumerate(_unpacked(words[part], dtype)):
                    b[(t * k // 8 + e) + k // 2 * i, g] = values
            for i, values in enumerate(sums):
                c[g + 8 * (i // 2), 2 * t + i % 2] = values[part]
            with np.errstate(all="ignore"):
                c = (c + a @ b).astype(np.float32)
            for i in range(4):
                result[i][part] = c[g + 8 * (i // 2), 2 * t + i % 2]
        return result

    def round_tf32(self, match, text, outputs, arguments):
        bits = arguments[0].view(np.uint32).copy()
        finite = (bits & 0x7F800000) != 0x7F800000
        bits[finite] += 0x1000
        bits[finite] &= 0xFFFFE000
        return bits.view(np.int32)

    def approximate(self, match, text, outputs, arguments):
        function = {"tanh": np.tanh, "ex2": np.exp2, "lg2": np.log2, "div": np.divide}[match[1]]
        with np.errstate(all="ignore"):
            return function(*(x.astype(np.float64) for x in arguments)).astype(np.float32)

    def shuffle(self, op, mask, value, offset, clamp):
        kind = str(op.attributes["kind"])
        lanes = np.arange(self.threads)
        by = int(self._uniform(offset))
        source = lanes ^ by if "bfly" in kind else lanes // WARP * WARP + by
        return value[source]


def _unpacked(words: np.ndarray, dtype: str) -> list[np.ndarray]:
    """The one or two numbers of a register, as the tensor cores see them."""
    if dtype == "tf32":
        return [(words.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64)]
    halves = words.copy().view(FLOATS[dtype]).reshape(-1, 2)
    return [halves[:, 0].astype(np.float64), halves[:, 1].astype(np.float64)]


_PTX: list[tuple[str, Callable]] = [
    (r"cp\.async\.c[ag]\.\S+ \[\$0\+(-?\d+)\], \[\$1\+(-?\d+)\], (\d+)", _Block.copy),
    (r"@p ld\.global(?:\.nc)?(?:\.v(\d))?\.b(\d+) .*\[\$\d+\+(-?\d+)\]", _Block.load_if),
    (r"\.pragma", lambda *_: None),
    (r"cp\.async\.commit_group", _Block.commit),
    (r"cp\.async\.wait_group (\d+)", _Block.wait),
    (r"ldmatrix\.sync\.aligned\.m8n8\.x4(\.trans)?\.shared\.b16 .*\[\$4\+(\d+)\]", _Block.matrices),
    (r"ld\.shared\.\S+ .*\[\$\d+\+(\d+)\]", _Block.shared_load),
    (r"st\.shared\.f32 \[\$0\+(\d+)\], \$1;", _Block.shared_store),
    (r"mma\.sync\.aligned\.m16n8k(\d+)\.row\.col\.f32\.(\w+)", _Block.multiply),
    (r"cvt\.rna\.tf32\.f32", _Block.round_tf32),
    (r"(tanh|ex2|lg2|div)\.", _Block.approximate),
]


def _shape(type_: ir.Type) -> tuple[tuple[int, ...], Any]:
    text = str(type_)
    if match := re.fullmatch(r"vector<(\d+)x(\w+)>", text):
        return (int(match[1]),), DTYPES[match[2]]
    return (), np.int64 if text.startswith("!llvm.ptr") else DTYPES[text]


def _alignment(op) -> int:
    return ir.IntegerAttr(op.attributes["alignment"]).value if "alignment" in op.attributes else 1


def _dtype(type_: ir.Type) -> Any:
    return _shape(type_)[1]


def _constant(block: _Block, op):
    attribute, type_ = op.attributes["value"], op.results[0].type
    shape, dtype = _shape(type_)
    if isinstance(attribute, ir.DenseElementsAttr):
        attribute = ir.DenseElementsAttr(attribute).get_splat_value()
    text = str(attribute).split(" : ")[0]
    if text.startswith("0x"):
        item = np.dtype(dtype).itemsize
        value = np.frombuffer(int(text, 16).to_bytes(item, "little"), dtype)[0]
    else:
        value = (
            {"true": True, "false": False}[text]
            if text in ("true", "false")
            else dtype(float(text))
            if (dtype in FLOATS.values())
            else int(text)
        )
    return np.full((block.threads, *shape), value, dtype)


def _compare_integers(block, op, a, b):
    names = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
    name = names[ir.IntegerAttr(op.attributes["predicate"]).value]
    if name[0] == "u":
        unsigned = np.dtype(f"u{a.dtype.name}")
        a, b = a.view(unsigned), b.view(unsigned)
    return _COMPARISONS[name[-2:]](a, b)


def _compare_floats(block, op, a, b):
    names = (
        "false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "une", "uno",
    )  # fmt: skip
    name = names[ir.IntegerAttr(op.attributes["predicate"]).value]
    unordered = np.isnan(a) | np.isnan(b)
    if name in ("ord", "uno"):
        return unordered if name == "uno" else ~unordered
    result = _COMPARISONS[name[1:]](a, b)
    return result | unordered if name[0] == "u" else result & ~unordered


_COMPARISONS = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def _select(block, op, condition, a, b):
    return np.where(condition if condition.ndim == a.ndim else condition[:, None], a, b)


def _bitcast(block, op, x):
    shape, dtype = _shape(op.results[0].type)
    return np.ascontiguousarray(x).view(dtype).reshape(block.threads, *shape)


def _converted(block, op, x):
    source = x
    if op.name == "arith.extui" and x.dtype != np.bool_:
        source = x.view(np.dtype(f"u{x.dtype.name}"))
    if op.name == "arith.trunci" and _dtype(op.results[0].type) is np.bool_:
        source = x & 1
    with np.errstate(all="ignore"):
        return source.astype(_dtype(op.results[0].type))


def _insert(block, op, vector, value, at):
    result = vector.copy()
    result[:, int(at[0])] = value
    return result


def _unsigned(function):
    def apply(a, b):
        unsigned = np.dtype(f"u{a.dtype.name}")
        return function(a.view(unsigned), b.view(unsigned)).view(a.dtype)

    return apply


_ELEMENTWISE: dict[str, Callable] = {
    "arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply,
    "arith.divui": _unsigned(np.floor_divide), "arith.remui": _unsigned(np.remainder),
    "arith.minsi": np.minimum, "arith.maxsi": np.maximum, "arith.andi": np.bitwise_and, "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor, "arith.shli": np.left_shift, "arith.shrui": _unsigned(np.right_shift),
    "arith.shrsi": np.right_shift,
    "arith.addf": np.add, "arith.subf": np.subtract, "arith.mulf": np.multiply, "arith.divf": np.divide,
    "arith.negf": np.negative, "arith.maximumf": np.maximum, "arith.minimumf": np.minimum,
    "math.absf": np.abs, "math.copysign": np.copysign, "math.sqrt": np.sqrt, "math.floor": np.floor,
    "math.fma": lambda a, b, c: (a.astype(np.longdouble) * b + c),
}  # fmt: skip


def _extended_product(block, op, a, b):
    """Both halves of an unsigned product of 32-bit numbers."""
    product = a.view(np.uint32).astype(np.uint64) * b.view(np.uint32)
    block.values[op.results[1]] = (product >> np.uint64(32)).astype(np.uint32).view(np.int32)
    return product.astype(np.uint32).view(np.int32)


_CONVERSIONS = ("extui", "extsi", "trunci", "extf", "truncf", "sitofp", "uitofp", "fptosi", "index_cast")
_OPS: dict[str, Callable] = {
    "arith.constant": _constant,
    "llvm.mlir.constant": _constant,
    "arith.mului_extended": _extended_product,
    "arith.cmpi": _compare_integers,
    "llvm.icmp": _compare_integers,
    "arith.cmpf": _compare_floats,
    "arith.select": _select,
    "llvm.select": _select,
    "arith.bitcast": _bitcast,
    "llvm.bitcast": _bitcast,
    **{f"arith.{name}": _converted for name in _CONVERSIONS},
    "scf.for": _Block.scf_for,
    "scf.if": _Block.scf_if,
    "nvvm.barrier0": _Block.barrier,
    "nvvm.barrier": _Block.barrier,
    "nvvm.shfl.sync": _Block.shuffle,
    "nvvm.read.ptx.sreg.tid.x": lambda b, op: np.arange(b.threads, dtype=np.int32),
    "nvvm.read.ptx.sreg.ctaid.x": lambda b, op: np.full(b.threads, b.block, np.int32),
    "llvm.load": _Block.load,
    "llvm.store": _Block.store,
    "llvm.getelementptr": _Block.pointer,
    "llvm.inttoptr": lambda b, op, x: x.astype(np.int64),
    "llvm.ptrtoint": lambda b, op, x: x.astype(np.int32),
    "llvm.mlir.addressof": lambda b, op: np.zeros(b.threads, np.int64),
    "llvm.mlir.zero": lambda b, op: np.zeros(b.threads, np.int64),
    "llvm.mlir.undef": lambda b, op: np.zeros((b.threads, *_shape(op.results[0].type)[0]), _dtype(op.results[0].type)),
    "llvm.insertelement": _insert,
    "llvm.extractelement": lambda b, op, vector, at: vector[:, int(at[0])],
    "llvm.extractvalue": lambda b, op, struct: struct[ir.DenseI64ArrayAttr(op.attributes["position"])[0]],
    "llvm.inline_asm": _Block.asm,
}
