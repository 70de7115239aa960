"""Builds `nova.kernel` text for tests and benchmarks, and runs generated CPU kernels as programs of one launch."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass, field

import numpy as np
from mlir import ir

from blutrain.nova.cpu import contract
from blutrain.nova.cpu.executable import Executable, build_executable
from blutrain.nova.kernel import GeneratedKernel, Kernel, read_kernel
from blutrain.nova.plan import BufferRef, InputSpec, Launch, OutputSpec, ProgramPlan
from blutrain.nova.target import CpuFacts, host_cpu

DTYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "i64": np.int64, "i32": np.int32, "i1": np.bool_}


def tensor(shape: tuple[int, ...], dtype: str) -> str:
    return f"tensor<{''.join(f'{s}x' for s in shape)}{dtype}>"


@dataclass
class Value:
    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def type(self) -> str:
        return tensor(self.shape, self.dtype)


@dataclass
class KernelText:
    """Text of one kernel, written op by op. Maps are MLIR's, over dimensions d0, d1, ...: `(d0, d2)`."""

    anchor: str = "contract"
    operands: list[Value] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    names: itertools.count = field(default_factory=itertools.count)

    def operand(self, *shape: int, dtype: str = "f32") -> Value:
        self.operands.append(Value(f"%arg{len(self.operands)}", shape, dtype))
        return self.operands[-1]

    def fill(self, shape: tuple[int, ...], dtype: str, literal: str = "0.0") -> Value:
        n = next(self.names)
        t = tensor(shape, dtype)
        self.lines += [
            f"%e{n} = tensor.empty() : {t}",
            f"%s{n} = arith.constant {literal} : {dtype}",
            f"%f{n} = linalg.fill ins(%s{n} : {dtype}) outs(%e{n} : {t}) -> {t}",
        ]
        return Value(f"%f{n}", shape, dtype)

    def generic(self, inputs, out: Value, out_map: str, iterators: str, region: str, anchor: bool = False) -> Value:
        """`inputs` are (value, map).

        `iterators` like "ppr"; `region` uses %a, %b, %c... and %o, and ends in its yield's operand.
        """
        n = next(self.names)
        dims = ", ".join(f"d{i}" for i in range(len(iterators)))
        maps = ", ".join(f"affine_map<({dims}) -> {m}>" for m in [*(m for _, m in inputs), out_map])
        kinds = ", ".join('"parallel"' if i == "p" else '"reduction"' for i in iterators)
        letters = "abcdefgh"[: len(inputs)]
        names = [f"%{x}: {v.dtype}" for x, (v, _) in zip(letters, inputs, strict=True)] + [f"%o: {out.dtype}"]
        *body, last = [line.strip() for line in region.strip().splitlines()]
        extra = " attrs = {nova.anchor}" if anchor else ""
        ins = f"ins({', '.join(v.name for v, _ in inputs)} : {', '.join(v.type for v, _ in inputs)}) " if inputs else ""
        self.lines += [
            f"%g{n} = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}} {ins}"
            f"outs({out.name} : {out.type}){extra} {{",
            f"^bb0({', '.join(names)}):",
            *body,
            f"linalg.yield {last} : {out.dtype}",
            f"}} -> {out.type}",
        ]
        return Value(f"%g{n}", out.shape, out.dtype)

    def map(self, inputs, shape: tuple[int, ...], dtype: str, region: str, out_map: str | None = None) -> Value:
        n = next(self.names)
        self.lines.append(f"%e{n} = tensor.empty() : {tensor(shape, dtype)}")
        out_map = out_map or f"({', '.join(f'd{i}' for i in range(len(shape)))})"
        return self.generic(inputs, Value(f"%e{n}", shape, dtype), out_map, "p" * len(shape), region)

    def finish(self, *results: Value, aliases: tuple[int, ...] | None = None) -> str:
        arguments = ", ".join(f"{v.name}: {v.type}" for v in self.operands)
        outer = ", ".join(f"%x{i}" for i in range(len(self.operands)))
        types = f"({', '.join(v.type for v in self.operands)}) -> ({', '.join(v.type for v in results)})"
        aliases = aliases or (-1,) * len(results)
        signature = ", ".join(f"%x{i}: {v.type}" for i, v in enumerate(self.operands))
        yielded = f"{', '.join(v.name for v in results)}) : ({', '.join(v.type for v in results)}) -> ()"
        body = "\n".join(self.lines)
        return (
            f"func.func @f({signature}) {{\n"
            f'%r:{len(results)} = "nova.kernel"({outer}) ({{\n^bb0({arguments}):\n{body}\n'
            f'"nova.yield"({yielded}\n}}) {{anchor = "{self.anchor}", '
            f"aliases = array<i64: {', '.join(map(str, aliases))}>}} : {types}\nreturn\n}}\n"
        )


def context() -> ir.Context:
    result = ir.Context()
    result.allow_unregistered_dialects = True
    return result


def parse_kernel(text: str) -> tuple[Kernel, ir.Module]:
    """The kernel and the module that keeps its regions alive; call inside a context."""
    module = ir.Module.parse(text)
    function = module.body.operations[0]
    op = next(o for o in function.regions[0].blocks[0].operations if o.operation.name == "nova.kernel")
    return read_kernel(op), module


def compiled(kernel: Kernel, generated: GeneratedKernel, facts: CpuFacts | None = None) -> Executable:
    """A program of one launch.

    The kernel's operands are inputs, its results outputs (aliased ones too: bind the same memory).
    """
    places = [BufferRef("input", i) for i in range(len(kernel.operands))]
    places += [BufferRef("output", i) for i in range(len(kernel.results))]
    plan = ProgramPlan(
        kernels=(generated,),
        launches=(Launch(0, tuple(places), label=kernel.anchor),),
        arena_bytes=0,
        inputs=tuple(InputSpec(t.shape, t.dtype) for t in kernel.operands),
        outputs=tuple(OutputSpec(t.shape, t.dtype) for t in kernel.results),
    )
    executable = build_executable(plan, facts or host_cpu())
    executable._workspace.fill(0xFF)  # NaN in every float format: a read of what nobody wrote shows
    return executable


def run(executable: Executable, operands: list[np.ndarray], results: list[np.ndarray]) -> None:
    """Launch on these arrays."""
    for i, array in enumerate(operands):
        executable.bind(i, array.ctypes.data)
    for i, array in enumerate(results):
        executable.bind_output(i, array.ctypes.data)
    executable.launch()


TOLERANCE = {"f32": 3e-6, "f64": 1e-14}  # relative to the largest sum of magnitudes
WIDTHS = {"avx512": (64, 32), "avx2": (32, 16), "neon": (16, 32)}


def facts_like(width: str, threads: int = 2):
    vector_bytes, registers = WIDTHS[width]
    return dataclasses.replace(host_cpu(), vector_bytes=vector_bytes, num_vector_registers=registers, threads=threads)


def multiply(k: KernelText, a, b, maps, shape, iterators="ppr", out_map="(d0, d1)", dtype="f32", init=None):
    region = f"%m = arith.mulf %a, %b : {dtype}\n%s = arith.addf %o, %m : {dtype}\n%s"
    return k.generic(
        list(zip((a, b), maps, strict=True)), init or k.fill(shape, dtype), out_map, iterators, region, anchor=True
    )


def product(layout: str, m: int, n: int, k: int, dtype: str) -> str:
    text = KernelText()
    a = text.operand(*((m, k) if layout[0] == "N" else (k, m)), dtype=dtype)
    b = text.operand(*((k, n) if layout[1] == "N" else (n, k)), dtype=dtype)
    maps = ("(d0, d2)" if layout[0] == "N" else "(d2, d0)", "(d2, d1)" if layout[1] == "N" else "(d1, d2)")
    return text.finish(multiply(text, a, b, maps, (m, n), dtype=dtype))


def build(text: str, facts=None, **schedule):
    """A program of the kernel; `schedule` overrides parts of the configurator's."""
    facts = facts or host_cpu()
    with context(), ir.Location.unknown():
        kernel, _module = parse_kernel(text)
        assert contract.supports(kernel) is None
        config = {**contract.configure(kernel, facts), **schedule}
        generated = contract.generate(kernel, facts, config)
    return compiled(kernel, generated, facts)


def randoms(seed: int, dtype: str, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in shapes]


def check(got: np.ndarray, want: np.ndarray, scale: float, dtype: str) -> None:
    assert got.shape == want.shape
    assert np.abs(got - want).max(initial=0.0) <= TOLERANCE[dtype] * max(scale, 1.0)
