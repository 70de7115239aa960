"""Text of one MLIR function body: fresh names, hoisted constants, loops, and insertion before the loops that are open.

Lines go to a stack of blocks. A loop's block is added to its parent only when the loop is closed, so writing to an
outer block while a loop is open places the line in front of that loop: `with out.scope(depth)` hoists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

_POINTER_NUMBERS = range(-(1 << 28), 1 << 28)  # what llvm.getelementptr holds of a number that stands in its text

Integer = str | int  # the name of a value, or a number known now


def lane_type(dtype: str, lanes: int) -> str:
    """The MLIR type of a scalar (`lanes` 0) or of a vector of `lanes` elements.

    >>> lane_type("f32", 16), lane_type("i1", 0)
    ('vector<16xf32>', 'i1')
    """
    return f"vector<{lanes}x{dtype}>" if lanes else dtype


def memory_dtype(dtype: str) -> str:
    """The type of one element in memory: i1 takes a byte."""
    return "i8" if dtype == "i1" else dtype


def zero(dtype: str) -> str:
    if dtype == "i1":
        return "false"
    return "0.0" if dtype.startswith(("f", "bf")) else "0"


def float_literal(value: float) -> str:
    """MLIR spells floats with a point: 1e-05 is `1.0e-05`. Infinities and NaN have no spelling: ValueError."""
    text = repr(float(value))
    if "n" in text:
        raise ValueError(f"float_literal: {text} has no decimal spelling")
    mantissa, e, exponent = text.partition("e")
    return mantissa + ("" if "." in mantissa else ".0") + e + exponent


class FoldedIntegers:
    """Arithmetic on integers that are names or numbers known now: what is known is computed here, and leaves no code."""

    def _binary(self, op: str, a: Integer, b: Integer) -> str:
        """The instruction `arith.op` on two integers."""
        raise NotImplementedError

    def add(self, a: Integer, b: Integer) -> Integer:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if a == 0 or b == 0:
            return b if a == 0 else a
        return self._binary("addi", a, b)

    def sub(self, a: Integer, b: Integer) -> Integer:
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if b == 0 else self._binary("subi", a, b)

    def mul(self, a: Integer, b: Integer) -> Integer:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if a == 0 or b == 0:
            return 0
        if a == 1 or b == 1:
            return b if a == 1 else a
        return self._binary("muli", a, b)

    def div(self, a: Integer, b: int) -> Integer:
        """Quotient of a number that is not negative."""
        if isinstance(a, int):
            return a // b
        return a if b == 1 else self._binary("divui", a, b)

    def rem(self, a: Integer, b: Integer) -> Integer:
        if isinstance(a, int) and isinstance(b, int):
            return a % b
        return 0 if b == 1 else self._binary("remui", a, b)

    def minimum(self, a: Integer, b: Integer) -> Integer:
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self._binary("minsi", a, b)

    def maximum(self, a: Integer, b: Integer) -> Integer:
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return self._binary("maxsi", a, b)


class Emitter:
    """Collects the lines of one function; `declarations` are module-level functions that it calls."""

    def __init__(self, prefix: str = "v"):
        self.prefix = prefix
        self.blocks: list[list[str]] = [[]]
        self.depth = 0
        self._aside: list[list[list[str]]] = []
        self.declarations: dict[str, str] = {}
        self._count = 0
        self._constants: dict[tuple[str, str], str] = {}

    def line(self, text: str) -> None:
        self.blocks[self.depth].append("  " * (self.depth + 1) + text)

    def fresh(self) -> str:
        self._count += 1
        return f"%{self.prefix}{self._count}"

    def value(self, text: str) -> str:
        """Append `%new = text` and return the name."""
        name = self.fresh()
        self.line(f"{name} = {text}")
        return name

    def constant(self, literal: str, type_: str) -> str:
        """A constant at the top of the function: a scalar, or a splat where `type_` is a vector."""
        if (literal, type_) not in self._constants:
            self._constants[literal, type_] = f"%{self.prefix}c{len(self._constants)}"
        return self._constants[literal, type_]

    def integer(self, value: int) -> str:
        return self.constant(str(value), "i64")

    def pointer(self, base: str, offset: str | int, dtype: str) -> str:
        """`base` plus `offset` elements, an i64's name or a number."""
        if offset == 0:
            return base
        if isinstance(offset, int) and offset not in _POINTER_NUMBERS:
            offset = self.integer(offset)
        types = "(!llvm.ptr)" if isinstance(offset, int) else "(!llvm.ptr, i64)"
        return self.value(f"llvm.getelementptr {base}[{offset}] : {types} -> !llvm.ptr, {memory_dtype(dtype)}")

    @contextmanager
    def scope(self, depth: int) -> Iterator[None]:
        """Write into the open block `depth` (0: the function's body) instead of the innermost one."""
        saved, self.depth = self.depth, min(depth, self.depth)
        try:
            yield
        finally:
            self.depth = saved

    @property
    def innermost(self) -> int:
        return len(self.blocks) - 1

    def loop(
        self,
        lower: str,
        upper: str,
        step: str,
        body: Callable[[str, list[str]], Sequence[str]],
        carried: Sequence[tuple[str, str]] = (),
        type_: str = "i64",
    ) -> list[str]:
        """`scf.for` over a type: `body(index, carried)` returns the next carried values; `carried` is (initial, type)."""
        index = self.fresh()
        names = [self.fresh() for _ in carried]
        self._open()
        values = list(body(index, names))
        lines = self._close()
        head = f"scf.for {index} = {lower} to {upper} step {step}"
        if not carried:
            self.line(f"{head} : {type_} {{")
            results: list[str] = []
        else:
            result = self.fresh()
            types = ", ".join(t for _, t in carried)
            inits = ", ".join(f"{n} = {v}" for n, (v, _) in zip(names, carried, strict=True))
            self.line(f"{result}:{len(carried)} = {head} iter_args({inits}) -> ({types}) : {type_} {{")
            lines.append("  " * (self.depth + 2) + f"scf.yield {', '.join(values)} : {types}")
            results = [f"{result}#{i}" for i in range(len(carried))]
        self.blocks[self.depth] += lines
        self.line("}")
        return results

    def when(self, condition: str | None, body: Callable[[], None]) -> None:
        """`scf.if` without a result; a condition that is None always holds."""
        if condition is None:
            body()
            return
        self._open()
        body()
        lines = self._close()
        self.line(f"scf.if {condition} {{")
        self.blocks[self.depth] += lines
        self.line("}")

    def _open(self) -> None:
        """A new block inside the one that is written to; where that is an outer one, what is open in it waits aside."""
        self._aside.append(self.blocks[self.depth + 1 :])
        self.blocks[self.depth + 1 :] = [[]]
        self.depth += 1

    def _close(self) -> list[str]:
        self.depth -= 1
        lines = self.blocks.pop()
        self.blocks += self._aside.pop()
        return lines

    def function_body(self) -> str:
        """Everything emitted, constants first."""
        lines = []
        for (literal, type_), name in self._constants.items():
            if type_.startswith("vector"):
                value = f"dense<{literal}> : {type_}"
            else:
                value = literal if type_ == "i1" else f"{literal} : {type_}"  # `true` and `false` carry their type
            lines.append(f"  {name} = arith.constant {value}")
        return "\n".join(lines + self.blocks[0])
