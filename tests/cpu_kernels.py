"""Builds `nova.kernel` ops from short texts and runs their generated CPU code, for the tests of the generators."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import ml_dtypes
import numpy as np
from mlir import ir

from blutrain.nova.cpu import generate as cpu
from blutrain.nova.cpu import lower, orc
from blutrain.nova.kernel import GeneratedKernel, read_kernel
from blutrain.nova.target import host_cpu

NUMPY = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8, "i1": np.bool_,
}  # fmt: skip
FACTS = host_cpu()
TWO_THREADS = replace(FACTS, threads=2)


@dataclass(frozen=True)
class Value:
    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def type(self) -> str:
        return f"tensor<{''.join(f'{s}x' for s in self.shape)}{self.dtype}>"


@dataclass
class Body:
    """A kernel's body, op by op. `map` and `reduce` take inputs as (value, "d0, d2") over the loops of `extents`."""

    anchor: str
    operands: list[Value] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)
    aliases: list[int] = field(default_factory=list)

    def operand(self, *shape: int, dtype: str = "f32") -> Value:
        self.operands.append(Value(f"%arg{len(self.operands)}", shape, dtype))
        return self.operands[-1]

    def name(self) -> str:
        return f"%n{len(self.lines)}"

    def empty(self, shape: tuple[int, ...], dtype: str) -> Value:
        value = Value(self.name(), shape, dtype)
        self.lines.append(f"{value.name} = tensor.empty() : {value.type}")
        return value

    def fill(self, shape: tuple[int, ...], dtype: str, literal: str) -> Value:
        scalar = self.name()
        suffix = "" if dtype == "i1" else f" : {dtype}"
        self.lines.append(f"{scalar} = arith.constant {literal}{suffix}")
        empty = self.empty(shape, dtype)
        value = Value(self.name(), shape, dtype)
        self.lines.append(
            f"{value.name} = linalg.fill ins({scalar} : {dtype}) outs({empty.name} : {empty.type}) -> {value.type}"
        )
        return value

    def generic(
        self,
        inputs: Sequence[tuple[Value, str]],
        outputs: Sequence[tuple[Value, str]],
        iterators: str,
        region: str,
    ) -> list[Value]:
        """`iterators` like "pr"; the region calls its arguments %i0.., %o0.. and ends with linalg.yield."""
        loops = ", ".join(f"d{d}" for d in range(len(iterators)))
        maps = ", ".join(f"affine_map<({loops}) -> ({m})>" for _, m in (*inputs, *outputs))
        kinds = ", ".join('"parallel"' if i == "p" else '"reduction"' for i in iterators)
        arguments = [f"%i{k}: {v.dtype}" for k, (v, _) in enumerate(inputs)]
        arguments += [f"%o{k}: {v.dtype}" for k, (v, _) in enumerate(outputs)]
        listed = lambda pairs: f"({', '.join(v.name for v, _ in pairs)} : {', '.join(v.type for v, _ in pairs)})"
        ins = f" ins{listed(inputs)}" if inputs else ""
        types = ", ".join(v.type for v, _ in outputs)
        name = self.name()
        self.lines.append(
            f"{name}:{len(outputs)} = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}}{ins} "
            f"outs{listed(outputs)} {{\n^bb0({', '.join(arguments)}):\n{region}\n}} -> ({types})"
        )
        return [Value(f"{name}#{k}", v.shape, v.dtype) for k, (v, _) in enumerate(outputs)]

    def map(
        self,
        inputs: Sequence[tuple[Value, str]],
        shape: tuple[int, ...],
        region: str,
        dtype: str = "f32",
        out: str = "",
    ) -> Value:
        """An element-wise op over `shape` whose last line yields one value."""
        loops = ", ".join(f"d{d}" for d in range(len(shape)))
        (value,) = self.generic(inputs, [(self.empty(shape, dtype), out or loops)], "p" * len(shape), region)
        return value

    def reduce(
        self,
        inputs: Sequence[tuple[Value, str]],
        out_shape: tuple[int, ...],
        out_map: str,
        iterators: str,
        region: str,
        neutral: str = "0.0",
        dtype: str = "f32",
        init: Value | None = None,
    ) -> Value:
        """A reduction; the region combines with %o0 last and yields."""
        target = init or self.fill(out_shape, dtype, neutral)
        (value,) = self.generic(inputs, [(target, out_map)], iterators, region)
        return value

    def op(self, name: str, inputs: Sequence[Value], shape: tuple[int, ...], dtype: str) -> Value:
        value = Value(self.name(), shape, dtype)
        types = ", ".join(v.type for v in inputs)
        names = ", ".join(v.name for v in inputs)
        self.lines.append(f'{value.name} = "{name}"({names}) : ({types}) -> {value.type}')
        return value

    def result(self, value: Value, alias: int = -1) -> None:
        self.results.append(value)
        self.aliases.append(alias)

    def text(self) -> str:
        arguments = ", ".join(f"{v.name}: {v.type}" for v in self.operands)
        types = ", ".join(v.type for v in self.operands)
        outer = ", ".join(f"%x{i}" for i in range(len(self.operands)))
        declared = ", ".join(f"%x{i}: {v.type}" for i, v in enumerate(self.operands))
        results = ", ".join(v.type for v in self.results)
        yields = ", ".join(v.name for v in self.results)
        aliases = f"array<i64{': ' if self.aliases else ''}{', '.join(map(str, self.aliases))}>"
        count = f":{len(self.results)}" if len(self.results) != 1 else ""
        body = "\n".join(self.lines)
        return (
            f'func.func @step({declared}) {{\n%r{count} = "nova.kernel"({outer}) <{{anchor = "{self.anchor}", '
            f"aliases = {aliases}}}> ({{\n^bb0({arguments}):\n{body}\n"
            f'"nova.yield"({yields}) : ({results}) -> ()\n}}) : ({types}) -> ({results})\nreturn\n}}'
        )


@contextmanager
def parsed(body: Body) -> Iterator[ir.Operation]:
    """The kernel op, inside a context of its own."""
    ctx = ir.Context()
    ctx.allow_unregistered_dialects = True
    with ctx, ir.Location.unknown():
        module = ir.Module.parse(body.text())
        yield module.body.operations[0].regions[0].blocks[0].operations[0].operation


def generate(body: Body, facts=TWO_THREADS) -> GeneratedKernel:
    with parsed(body) as op:
        return cpu.generate(op, facts)


def supports(body: Body) -> str | None:
    with parsed(body) as op:
        return cpu.supports(op)


class CompiledOp:
    """The generated code of a `nova.kernel` op in executable memory; `run` calls its phases task by task."""

    def __init__(self, op: ir.Operation, facts=TWO_THREADS):
        self.kernel, self.generated = read_kernel(op), cpu.generate(op, facts)
        data = lower.compile_text(self.generated.text, *facts.codegen_key(), str(orc.library_path()))
        self.loaded = orc.load_object(data, [p.symbol for p in self.generated.phases])
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self.calls = [(kind(self.loaded.addresses[p.symbol]), p.tasks) for p in self.generated.phases]
        self.workspace = aligned(self.generated.workspace_bytes + 256, np.uint8)

    def bind(self, arrays: Sequence[np.ndarray]) -> tuple[list[np.ndarray], ctypes.Array]:
        """(results, operand pointers). Aliased results are the operand's own array."""
        outputs = []
        for value, alias in zip(self.kernel.results, self.kernel.aliases, strict=True):
            outputs.append(arrays[alias] if alias >= 0 else poisoned(value.shape, value.dtype))
        for array, value in zip(arrays, self.kernel.operands, strict=True):
            assert array.shape == value.shape and array.dtype == NUMPY[value.dtype] and array.flags.c_contiguous
        pointers = [a.ctypes.data for a in (*arrays, *outputs)]
        return outputs, (ctypes.c_void_p * len(pointers))(*pointers)

    def launch(self, pointers: ctypes.Array) -> None:
        base = self.workspace.ctypes.data
        for call, tasks in self.calls:
            for task in range(tasks):
                call(ctypes.addressof(pointers), base, task, task % 2)

    def run(self, *arrays: np.ndarray) -> list[np.ndarray]:
        self.workspace[:] = 0xAB  # nothing may depend on what the workspace held, nor write past its end
        outputs, pointers = self.bind(arrays)
        self.launch(pointers)
        assert (self.workspace[self.generated.workspace_bytes :] == 0xAB).all(), "wrote past the workspace"
        return outputs


class Compiled(CompiledOp):
    """The code of a `Body`."""

    def __init__(self, body: Body, facts=TWO_THREADS):
        with parsed(body) as op:
            super().__init__(op, facts)


def run(body: Body, *arrays: np.ndarray, facts=TWO_THREADS) -> list[np.ndarray]:
    """Compile, run twice on copies of aliased operands, check that both runs agree bit for bit."""
    compiled = Compiled(body, facts)
    runs = []
    for _ in range(2):
        copies = [a.copy() for a in arrays]
        runs.append([r.copy() for r in compiled.run(*copies)])
        for i, (copy, array) in enumerate(zip(copies, arrays, strict=True)):
            assert i in body.aliases or copy.tobytes() == array.tobytes(), f"operand {i} was written"
    assert [a.tobytes() for a in runs[0]] == [a.tobytes() for a in runs[1]], "two runs differ"
    return runs[0]


def aligned(shape, dtype) -> np.ndarray:
    """An uninitialised array at a 64-byte boundary."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape))
    raw = np.empty(count * dtype.itemsize + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count * dtype.itemsize].view(dtype).reshape(shape)


def poisoned(shape, dtype: str) -> np.ndarray:
    """An array full of a value that no kernel computes, so that an element left out shows."""
    array = aligned(shape, NUMPY[dtype])
    array.reshape(-1).view(np.uint8)[:] = 0x5B if dtype != "i1" else 0
    return array


def random(rng: np.random.Generator, shape, dtype: str) -> np.ndarray:
    if dtype == "i1":
        return np.array(rng.random(shape) < 0.5)
    if dtype.startswith("i"):
        return np.array(rng.integers(-50, 50, shape), NUMPY[dtype])
    return np.array(rng.standard_normal(shape), NUMPY[dtype])


def region(*lines: str) -> str:
    """Lines like "%a = arith.addf %i0, %i1 : f32"; the last one names what is yielded, "%a : f32"."""
    return "\n".join([*lines[:-1], f"linalg.yield {lines[-1]}"])


def in_dtype(text: str, dtype: str) -> str:
    """A region written for T, at `dtype`."""
    return re.sub(r"\bT\b", dtype, text)
