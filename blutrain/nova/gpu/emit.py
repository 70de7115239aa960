"""A phase of a GPU kernel as text: parameters, the predicate, thread numbers, shared memory, and the evaluator.

The body of a phase is written to an `Emitter` by one thread's view: names `%thread` (in its block) and `%block` are
i64, `%a<i>` are the pointers of operands and results as in the CPU's kernels, `%workspace` the workspace. Values are
scalars; elements that lie side by side are loaded and stored as one vector (`emit_strip`). All pointers are generic:
LLVM finds out that those from parameters are global, and `llvm.readonly` makes loads of operands that nothing writes
non-coherent ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mlir import ir

from blutrain.nova.cpu.emit import POINTER, Integers
from blutrain.nova.cpu.emit_domain import Domain
from blutrain.nova.cpu.emit_nest import Evaluator, Point
from blutrain.nova.emitter import Emitter, memory_dtype
from blutrain.nova.gpu.emit_region import SimtCloner, convert
from blutrain.nova.gpu.function import function_text
from blutrain.nova.kernel import ITEM_BYTES, Access, Kernel

THREAD, BLOCK, WORKSPACE = "%thread", "%block", "%workspace"
SHARED_POINTER = "!llvm.ptr<3>"
MAX_STATIC_SHARED = 48 << 10  # bytes that every GPU gives a block without being asked
SMALL = 1 << 31  # i32 division is several times faster than i64 division


class SimtIntegers(Integers):
    """i64 arithmetic, with division in i32 where every dividend is known to be below 2^31."""

    def __init__(self, out: Emitter, is_small: bool):
        super().__init__(out)
        self.is_small = is_small

    def div(self, a: str | int, b: int) -> str | int:
        return self._divide("divui", a, b) if self.is_small and isinstance(a, str) and b != 1 else super().div(a, b)

    def rem(self, a: str | int, b: int) -> str | int:
        return self._divide("remui", a, b) if self.is_small and isinstance(a, str) and b != 1 else super().rem(a, b)

    def _divide(self, op: str, a: str, b: int) -> str:
        narrow = self.out.value(f"arith.trunci {a} : i64 to i32")
        result = self.out.value(f"arith.{op} {narrow}, {self.out.constant(str(b), 'i32')} : i32")
        return self.out.value(f"arith.extui {result} : i32 to i64")

    def less(self, a: str | int, b: str | int) -> str:
        """a < b, of numbers that are not negative."""
        return self.out.value(f"arith.cmpi ult, {self.name(a)}, {self.name(b)} : i64")

    def equal(self, a: str | int, b: str | int) -> str:
        return self.out.value(f"arith.cmpi eq, {self.name(a)}, {self.name(b)} : i64")

    def select(self, condition: str, a: str | int, b: str | int) -> str:
        return self.out.value(f"arith.select {condition}, {self.name(a)}, {self.name(b)} : i64")

    def both(self, *conditions: str | None) -> str | None:
        """The conjunction; None stands for true."""
        found: str | None = None
        for condition in conditions:
            if condition is not None:
                found = condition if found is None else self.out.value(f"arith.andi {found}, {condition} : i1")
        return found


class SimtEvaluator(Evaluator):
    """Values of a kernel at the points of one thread."""

    def __init__(self, kernel: Kernel, domain: Domain, out: Emitter):
        super().__init__(kernel, domain, out)
        self.integers = SimtIntegers(out, domain.size < SMALL)
        self.fast_exp = False
        self.has_small_indices = all(extent < SMALL for op in kernel.generics for extent in op.extents)
        # Operands that stand elsewhere by now: how a strip of them is loaded.
        self.staged: dict[Access, Callable[..., list[str]]] = {}

    def clone(self, block: ir.Block, arguments: Sequence[str], point: Point, coordinate, extract) -> list[str]:
        cloner = SimtCloner(self.out, 0, coordinate, extract)
        cloner.fast_exp, cloner.has_small_indices = self.fast_exp, self.has_small_indices
        return cloner.clone(block, arguments)

    def _load(self, key: object, point: Point) -> str:
        strip = getattr(point, "strip", None)
        if strip is not None and strip.load(key[1]):  # type: ignore[index]
            return point.memo[key]
        return super()._load(key, point)

    def _gather(self, placed, point: Point) -> str:
        strip = getattr(point, "strip", None)
        if strip is not None and strip.gather(placed):
            return point.memo[strip.gathered(placed)]
        return super()._gather(placed, point)


@dataclass
class Shared:
    """Static shared memory of a phase, handed out piece by piece."""

    symbol: str
    out: Emitter
    size: int = 0
    _base: dict[str, str] = field(default_factory=dict)

    def allocate(self, num_bytes: int) -> int:
        """Byte offset of a new piece, 16-byte aligned."""
        start = self.size
        self.size = (start + num_bytes + 15) // 16 * 16
        return start

    def address(self, start: int, index: str | int, dtype: str) -> str:
        """Element `index` of an array of `dtype` that begins at byte `start`."""
        out, ints = self.out, Integers(self.out)
        with out.scope(0):
            if "base" not in self._base:
                self._base["base"] = out.value(f"llvm.mlir.addressof @{self.symbol}_shared : {SHARED_POINTER}")
        offset = ints.name(ints.add(ints.mul(index, ITEM_BYTES[dtype]), start))
        return out.value(
            f"llvm.getelementptr inbounds {self._base['base']}[{offset}] : ({SHARED_POINTER}, i64) -> {SHARED_POINTER}, i8"
        )

    def load(self, start: int, index: str | int, dtype: str) -> str:
        address, bare = self.address(start, index, dtype), memory_dtype(dtype)
        value = self.out.value(f"llvm.load {address} {_align(dtype)} : {SHARED_POINTER} -> {bare}")
        return self.out.value(f"arith.trunci {value} : i8 to i1") if dtype == "i1" else value

    def store(self, value: str, start: int, index: str | int, dtype: str) -> None:
        address, bare = self.address(start, index, dtype), memory_dtype(dtype)
        if dtype == "i1":
            value = self.out.value(f"arith.extui {value} : i1 to i8")
        self.out.line(f"llvm.store {value}, {address} {_align(dtype)} : {bare}, {SHARED_POINTER}")

    def declaration(self) -> str:
        return (
            f"llvm.mlir.global internal @{self.symbol}_shared() {{addr_space = 3 : i32, alignment = 16 : i64}} : "
            f"!llvm.array<{self.size} x i8>"
        )


def _align(dtype: str) -> str:
    return f"{{alignment = {ITEM_BYTES[dtype]} : i64}}"


def barrier(out: Emitter) -> None:
    """All threads of the block meet; what they wrote to shared memory is visible behind it."""
    out.line("nvvm.barrier0")


def phase_text(kernel: Kernel, symbol: str, out: Emitter, block: int, shared: Shared | None = None) -> str:
    """The function of a phase whose body was written to `out`, and its shared memory."""
    count = len(kernel.operands) + len(kernel.results)
    written = {a for a in kernel.aliases if a >= 0}
    parameters = []
    for i in range(count):
        is_operand = i < len(kernel.operands)
        if i in written or (not is_operand and kernel.aliases[i - len(kernel.operands)] >= 0):
            attributes = ""
        else:
            attributes = " {llvm.noalias, llvm.readonly}" if is_operand else " {llvm.noalias}"
        parameters.append(f"%a{i}: {POINTER}{attributes}")
    parameters.append(f"{WORKSPACE}: {POINTER} {{llvm.noalias}}")
    body = "\n".join(
        (
            f"  %thread32 = nvvm.read.ptx.sreg.tid.x range <i32, 0, {block}> : i32",
            "  %block32 = nvvm.read.ptx.sreg.ctaid.x range <i32, 0, 2147483647> : i32",
            f"  {THREAD} = arith.extui %thread32 : i32 to i64",
            f"  {BLOCK} = arith.extui %block32 : i32 to i64",
            out.function_body(),
        )
    )
    function = function_text(symbol, parameters, (), block, body)
    return function if shared is None or not shared.size else f"{shared.declaration()}\n{function}"


def convert_scalar(out: Emitter, value: str, source: str, target: str) -> str:
    """See `emit_region.convert`; integers stay as they are."""
    return value if source == target or source[0] == "i" else convert(out, value, source, target)
