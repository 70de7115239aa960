"""lower_to_linalg: the bodies of kernels become linalg on tensors, as the kernel contract says.

Before:

    %0 = "nova.kernel"(%x, %w, %b) ({
    ^bb0(%i0: tensor<2x8xf32>, %i1: tensor<4x8xf32>, %i2: tensor<4xf32>):
      %1 = "nova.transpose"(%i1) {perm = array<i64: 1, 0>} ...
      %2 = "nova.matmul"(%i0, %1) ...
      %3 = "nova.add"(%2, %i2) ...
      "gpu.yield"(%3)
    }) {anchor = "contract"}

After:

    %0 = "nova.kernel"(%x, %w, %b) ({
    ^bb0(%i0: tensor<2x8xf32>, %i1: tensor<4x8xf32>, %i2: tensor<4xf32>):
      %1 = linalg.fill ins(%zero) outs(%empty)
      %2 = linalg.generic {(m, n, k) -> (m, k), (m, n, k) -> (n, k), (m, n, k) -> (m, n)} ins(%i0, %i1) outs(%1)
             attrs = {nova.anchor} { mulf, addf }
      %3 = linalg.generic {(m, n) -> (m, n), (m, n) -> (n), (m, n) -> (m, n)} ins(%2, %i2) outs(%empty) { addf }
      "gpu.yield"(%3)
    }) {anchor = "contract", aliases = array<i64: -1>}

Inside a kernel a dimension is an atom (form_kernels_axes): extents of 1 are gone, reshapes have become a finer nest.
Where that changes the shape of an operand or result, a `nova.reshape` of the same memory stands outside. Equal bodies
are lowered once.
"""

from __future__ import annotations

from mlir import ir

from ..dialect.definition import TERMINATOR
from ..dialect.graph import Graph
from ..kernel import kernel_text
from .form_kernels import replace_step
from .form_kernels_emit import UNKNOWN
from .form_kernels_graph import StepGraph
from .form_kernels_skip import KEEP, SKIP
from .lower_to_linalg_body import BodyWriter
from .lower_to_linalg_scalar import memory_text

NAME = "lower_to_linalg"


def run(module: ir.Module, facts) -> None:
    """See the module. Errors: PassFault for an operation that no region computes, with its line."""
    step = Graph(module)
    body = _StepRewriter(step).body()
    replace_step(module, step, body)


class _StepRewriter:
    """The text of the step with every kernel's body lowered."""

    def __init__(self, step: Graph):
        self.step = step
        self.lines: list[str] = []
        self.names: dict[ir.Value, str] = {a: f"%arg{i}" for i, a in enumerate(step.arguments)}
        self.types: dict[str, str] = {f"%arg{i}": str(a.type) for i, a in enumerate(step.arguments)}
        self.bases: dict[str, str] = {}
        self.views: dict[tuple[str, str], str] = {}
        self.lowered: dict[str, BodyWriter] = {}

    def body(self) -> str:
        for op in self.step.operations():
            if op.name == "nova.kernel":
                self._kernel(op)
            else:
                self._other(op)
        return "\n".join(self.lines)

    def _kernel(self, op: ir.Operation) -> None:
        text = kernel_text(op)
        lowered = self.lowered.get(text)
        if lowered is None:
            lowered = self.lowered[text] = BodyWriter(StepGraph(op.regions[0].blocks[0]))
        graph = lowered.graph
        argument_types = [
            memory_text(s, a.dtype) for s, a in zip(lowered.argument_shapes, graph.arguments, strict=True)
        ]
        result_types = [memory_text(s, v.dtype) for s, v in zip(lowered.result_shapes, graph.outputs, strict=True)]
        operands = [self._as(self.names[v], t) for v, t in zip(op.operands, argument_types, strict=True)]
        number = len(self.lines)
        names = [f"%k{number}_{i}" for i in range(len(result_types))]
        arguments = ", ".join(f"%i{i}: {t}" for i, t in enumerate(argument_types))
        types = ", ".join(result_types)
        aliases = ", ".join(["-1"] * len(names))
        self.lines.append(f'  {", ".join(names)} = "nova.kernel"({", ".join(operands)}) ({{')
        self.lines.append(f"  ^bb0({arguments}):" if arguments else "  ^bb0:")
        self.lines += lowered.lines
        self.lines.append(f'    "{TERMINATOR}"({", ".join(lowered.results)}) : ({types}) -> ()')
        held = "".join(f", {name} = {op.attributes[name]}" for name in (SKIP, KEEP) if name in op.attributes)
        self.lines.append(
            f"  }}) {{anchor = {op.attributes['anchor']}, aliases = array<i64: {aliases}>{held}}} : "
            f"({', '.join(argument_types)}) -> ({types}) {op.location}"
        )
        for name, type_, result in zip(names, result_types, op.results, strict=True):
            self.types[name] = type_
            self.names[result] = self._as(name, str(result.type))

    def _as(self, name: str, type_: str) -> str:
        """`name` under another shape or type of the same memory."""
        if self.types[name] == type_:
            return name
        base = self.bases.get(name, name)
        if self.types[base] == type_:
            return base
        view = self.views.get((base, type_))
        if view is None:
            view = self.views[base, type_] = f"%r{len(self.lines)}"
            types = f"({self.types[base]}) -> {type_}"
            if _element(type_) != _element(self.types[base]):
                self.lines.append(f'  {view} = "nova.bits"({base}) : {types} {UNKNOWN}')
            else:
                extents = ", ".join(type_.removeprefix("tensor<").split("x")[:-1])
                shape = f"array<i64: {extents}>" if extents else "array<i64>"
                self.lines.append(f'  {view} = "nova.reshape"({base}) {{shape = {shape}}} : {types} {UNKNOWN}')
            self.types[view] = type_
            self.bases[view] = base
        return view

    def _other(self, op: ir.Operation) -> None:
        if op.name == "nova.reshape":
            self.names[op.results[0]] = self._as(self.names[op.operands[0]], str(op.results[0].type))
            return
        operands = [self._as(self.names[v], str(v.type)) for v in op.operands]
        types = ", ".join(str(v.type) for v in op.operands)
        if op.name == "func.return":
            self.lines.append(f"  func.return {', '.join(operands)}{' : ' if operands else ''}{types} {UNKNOWN}")
            return
        held = op.attributes
        attributes = ", ".join(f'"{name}" = {held[name]}' for name in held)
        left = ""
        for result in op.results:
            name = self.names[result] = f"%m{len(self.lines)}"
            self.types[name], left = str(result.type), f"{name} = "
        results = ", ".join(str(result.type) for result in op.results)
        typed = f"{{{attributes}}} : ({types}) -> ({results}) {op.location}"
        self.lines.append(f'  {left}"{op.name}"({", ".join(operands)}) {typed}')


def _element(type_: str) -> str:
    """The element type of MLIR's text of a tensor type."""
    return type_.removeprefix("tensor<").removesuffix(">").split("x")[-1]
