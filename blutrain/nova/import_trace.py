"""From the trace of a step to the nova dialect: one function `step`, one operation per node, the user's line on each.

The trace

    inputs: %0: f32[4,8] state, %1: f32[2,8] input, %2: float scalar
    %3: f32[2,4] = linear(%1, %0)  # train.py:3
    %4: f32[2,4] = mul(%3, %2)  # train.py:4
    outputs: %4

becomes

    func.func @step(%arg0: tensor<4x8xf32> {nova.role = "state"}, %arg1: tensor<2x8xf32> {nova.role = "input"},
                    %arg2: tensor<f64> {nova.role = "scalar"}) -> tensor<2x4xf32> {
      %0 = "nova.linear"(%arg1, %arg0) : ...
      %1 = "nova.cast"(%arg2) {dtype = f32} : (tensor<f64>) -> tensor<f32>
      %2 = "nova.mul"(%0, %1) : ...
      return %2
    }

Python numbers keep float64 (integers int64) until they meet a tensor: a composite gets them as they are, an
elementwise operation gets them cast to its common dtype. Updates of state become `nova.assign`s at the end; checks
keep their place.
"""

from __future__ import annotations

from mlir import ir
from mlir.dialects import func

from ..tensor.aval import Aval
from ..tensor.dtype import BOOL, INTEGER, bool_, float64, int64
from .dialect.convert import location_of, tensor_type
from .dialect.graph import ROLE, Graph
from .trace import Constant, Location, Node, Trace


def import_trace(trace: Trace, context: ir.Context) -> ir.Module:
    """The module of `trace`, in `context`. Errors: TypeError for an attribute that MLIR cannot hold, naming node and
    line.
    """
    with context, ir.Location.unknown():
        module = ir.Module.create()
        graph = _declare(module, trace)
        with ir.InsertionPoint(graph.block):
            _Importer(graph, trace).run()
    return module


def _declare(module: ir.Module, trace: Trace) -> Graph:
    """The function with its arguments, its block still empty."""
    inputs = [_strong(x.aval) for x in trace.inputs]
    types = [tensor_type(a.shape, a.dtype) for a in inputs]
    results = [tensor_type(a.shape, a.dtype) for a in (trace.avals[v] for v in trace.outputs)]
    with ir.InsertionPoint(module.body):
        step = func.FuncOp("step", (types, results))
        step.add_entry_block()
        step.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get({ROLE: ir.StringAttr.get(x.role)}) for x in trace.inputs])
    return Graph(module)


def _strong(aval: Aval) -> Aval:
    """What holds a Python number at run time: float64 or int64."""
    if not aval.weak:
        return aval
    return Aval((), {BOOL: bool_, INTEGER: int64}.get(aval.dtype.category, float64))


class _Importer:
    """Creates the operations of one trace at the current insertion point."""

    def __init__(self, graph: Graph, trace: Trace):
        self.graph, self.trace = graph, trace
        self.values: dict[int, ir.Value] = {x.value: a for x, a in zip(trace.inputs, graph.arguments, strict=True)}
        self.locations: dict[tuple[str, int], ir.Location] = {}

    def run(self) -> None:
        for node in self.trace.nodes:
            with self._location(node.location):
                try:
                    self._node(node)
                except TypeError as fault:
                    raise TypeError(f"{node.prim.name}: {fault}\n  at {node.location}") from None
        for state, value in self.trace.updates.items():
            self.graph.create("assign", [self.values[state], self.values[value]], [])
        func.ReturnOp([self.values[v] for v in self.trace.outputs])
        self.graph.number_checks()

    def _node(self, node: Node) -> None:
        operands = [x.value if isinstance(x, Constant) else self.values[x] for x in node.operands]
        operands = self.graph.as_operands(node.prim, operands)
        results = [_strong(self.trace.avals[r]) for r in node.results]
        attrs = {**node.attrs, "index": 0} if node.prim.name == "check" else node.attrs
        op = self.graph.create(node.prim.name, operands, results, attrs)
        self.values.update(zip(node.results, op.results, strict=True))

    def _location(self, location: Location) -> ir.Location:
        found = self.locations.get(location)
        if found is None:
            found = self.locations[location] = location_of(location.file, location.line)
        return found
