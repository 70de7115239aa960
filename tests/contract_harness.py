"""Builds `nova.kernel` text for tests and benchmarks, and runs generated CPU kernels without the host program."""

from __future__ import annotations

import ctypes
import itertools
import threading
from dataclasses import dataclass, field

import numpy as np
from mlir import ir
from mlir.execution_engine import ExecutionEngine
from mlir.passmanager import PassManager

from blutrain.nova.cpu.lower import pipeline
from blutrain.nova.kernel import GeneratedKernel, Kernel, read_kernel
from blutrain.nova.target import host_cpu

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
        """`inputs` are (value, map); `iterators` like "ppr"; `region` uses %a, %b, %c... and %o, and ends in its yield's operand."""
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
            f'func.func @f({signature}) {{\n%r:{len(results)} = "nova.kernel"({outer}) ({{\n^bb0({arguments}):\n{body}\n'
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


class Runner:
    """A generated kernel, compiled here and now; `threads` Python threads claim tasks."""

    def __init__(self, kernel: Kernel, generated: GeneratedKernel, threads: int = 1):
        self.kernel, self.generated, self.threads = kernel, generated, threads
        phases = [_wrapper(p.symbol) for p in generated.phases]
        facts = host_cpu()
        with ir.Context(), ir.Location.unknown():
            module = ir.Module.parse(generated.text + "".join(phases))
            PassManager.parse(pipeline(generated.text, facts.triple)).run(module.operation)
            self.engine = ExecutionEngine(module, opt_level=3)
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        looped = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int64)
        self.phases = []
        for phase in generated.phases:
            address = self.engine.raw_lookup(phase.symbol)
            assert address, phase.symbol
            self.phases.append((signature(address), phase.tasks))
        self.loops = [looped(self.engine.raw_lookup(f"all_{p.symbol}")) for p in generated.phases]
        self.workspace = aligned(generated.workspace_bytes, np.uint8)
        self.workspace[:] = 0xFF  # NaN in every float format: reads of what nobody wrote show

    def run(self, operands: list[np.ndarray], results: list[np.ndarray]) -> None:
        pointers = (ctypes.c_void_p * (len(operands) + len(results)))(*[a.ctypes.data for a in [*operands, *results]])
        self.launch(ctypes.addressof(pointers))

    def launch(self, operands: int) -> None:
        space = self.workspace.ctypes.data
        for (function, tasks), loop in zip(self.phases, self.loops, strict=True):
            if self.threads == 1:
                for task in range(tasks):
                    function(operands, space, task, 0)
            else:
                self._fork_join(loop, operands, space, tasks)

    def _fork_join(self, loop, operands: int, space: int, tasks: int) -> None:
        counter = np.zeros(1, np.int64)

        def work(worker: int) -> None:
            loop(operands, space, counter.ctypes.data, tasks, worker)

        others = [threading.Thread(target=work, args=(w,)) for w in range(1, self.threads)]
        for thread in others:
            thread.start()
        work(0)
        for thread in others:
            thread.join()


def _wrapper(symbol: str) -> str:
    """Names the engine finds: the phase itself, and a loop in which a thread claims tasks of it."""
    return f"""
llvm.func @_mlir_{symbol}(%o: !llvm.ptr, %w: !llvm.ptr, %t: i64, %n: i64) {{
  func.call @{symbol}(%o, %w, %t, %n) : (!llvm.ptr, !llvm.ptr, i64, i64) -> ()
  llvm.return
}}
llvm.func @_mlir_all_{symbol}(%o: !llvm.ptr, %w: !llvm.ptr, %next: !llvm.ptr, %tasks: i64, %worker: i64) {{
  %one = llvm.mlir.constant(1 : i64) : i64
  llvm.br ^claim
^claim:
  %t = llvm.atomicrmw add %next, %one acq_rel : !llvm.ptr, i64
  %more = llvm.icmp "slt" %t, %tasks : i64
  llvm.cond_br %more, ^work, ^end
^work:
  func.call @{symbol}(%o, %w, %t, %worker) : (!llvm.ptr, !llvm.ptr, i64, i64) -> ()
  llvm.br ^claim
^end:
  llvm.return
}}
"""


def aligned(size: int, dtype) -> np.ndarray:
    """An uninitialised array at a 64-byte boundary."""
    item = np.dtype(dtype).itemsize
    raw = np.empty(size * item + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size * item].view(dtype)
