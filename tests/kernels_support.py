"""Building steps by hand for the tests of the kernel passes, and running them through passes and the reference
evaluator.
"""

from __future__ import annotations

import collections
from typing import NamedTuple

import linalg_reference
import numpy as np
from mlir import ir

import blutrain
from blutrain.nova.dialect import create_context
from blutrain.nova.import_trace import import_trace
from blutrain.nova.interpret import interpret
from blutrain.nova.passes.driver import Settings, run_passes
from blutrain.nova.pipeline import GRAPH
from blutrain.nova.target import host_cpu
from blutrain.nova.trace import Constant, Input, Location, Node, Trace
from blutrain.tensor import dispatch
from blutrain.tensor.aval import Aval, scalar_aval
from blutrain.tensor.device import Device, cpu
from blutrain.tensor.dtype import SHORT, from_numpy_dtype
from blutrain.tensor.primitive import TABLE
from blutrain.tensor.tensor import Tensor

KERNELS = ("form_kernels", "lower_to_linalg", "order_launches", "plan_memory", "dedupe_kernels")


class V(NamedTuple):
    """A value of a step; numbers among operands are constants."""

    number: int


class Step:
    """A trace under construction."""

    def __init__(self):
        self.trace = Trace(device=cpu)
        self.bindings: dict[int, object] = {}
        self._random = np.random.default_rng(7)

    def input(self, shape, dtype: str = "f32", role: str = "input", value=None) -> V:
        """An argument with random content (integers 0..3), or `value`."""
        type_ = SHORT[dtype]
        if value is None:
            floats = self._random.standard_normal(shape)
            value = floats if type_.is_floating else self._random.integers(0, 4, shape)
        number = self._value(Aval(tuple(shape), type_))
        self.trace.inputs.append(Input(number, role, self.trace.avals[number]))
        self.bindings[number] = np.array(value).astype(type_.numpy)
        return V(number)

    def scalar(self, value: float) -> V:
        """A run-time Python number."""
        aval = scalar_aval(value)
        number = self._value(aval)
        self.trace.inputs.append(Input(number, "scalar", aval))
        self.bindings[number] = value
        return V(number)

    def output(self, *values: V) -> None:
        self.trace.outputs += [v.number for v in values]

    def assign(self, state: V, value: V) -> None:
        self.trace.updates[state.number] = value.number

    def op(self, name: str, *operands, **attrs):
        """Record a primitive; returns its result, or a tuple of them."""
        prim = TABLE[name]
        avals = [self.trace.avals[x.number] if isinstance(x, V) else scalar_aval(x) for x in operands]
        inferred = prim.infer(*avals, **attrs)
        inferred = (inferred,) if isinstance(inferred, Aval) else tuple(inferred)
        results = tuple(self._value(a) for a in inferred)
        numbers = tuple(x.number if isinstance(x, V) else Constant(x) for x in operands)
        self.trace.nodes.append(Node(prim, numbers, attrs, results, Location("train.py", len(self.trace.nodes) + 1)))
        found = tuple(V(r) for r in results)
        return found[0] if len(found) == 1 else found

    def _value(self, aval: Aval) -> int:
        self.trace.avals.append(aval)
        return len(self.trace.avals) - 1


class _Recorder:
    """Stands in dispatch.recorder and notes every primitive into a Step; nothing is computed."""

    recording = True

    def __init__(self, step: Step):
        self.step = step

    def primitive(self, prim, operands, attrs):
        if prim.name == "assign":
            return self.assign(*operands)
        numbers = [V(x._pending) if isinstance(x, Tensor) else x for x in operands]
        attrs = {k: str(v) if isinstance(v, Device) else v for k, v in attrs.items()}
        results = self.step.op(prim.name, *numbers, **attrs)
        made = tuple(self.pending(v) for v in ((results,) if isinstance(results, V) else results))
        return made[0] if prim.num_results == 1 and len(made) == 1 else made

    def assign(self, target: Tensor, value: Tensor) -> Tensor:
        """The tensor has another value from here on. (No case assigns to an argument.)"""
        target._pending = value._pending
        return target

    def write(self, tensor: Tensor) -> None:
        pass

    def pending(self, value: V) -> Tensor:
        return Tensor._make_pending(self.step.trace.avals[value.number], cpu, value.number)


def record(call, arrays: list[np.ndarray]) -> Step:
    """The step of `call` on tensors that hold `arrays`; its outputs are what `call` returns."""
    step = Step()
    recorder = _Recorder(step)
    tensors = [recorder.pending(step.input(a.shape, from_numpy_dtype(a.dtype).short, value=a)) for a in arrays]
    previous, dispatch.recorder = dispatch.recorder, recorder
    try:
        results = call(*tensors)
    finally:
        dispatch.recorder = previous
    results = results if isinstance(results, (tuple, list)) else (results,)
    step.output(*(V(r._pending) for r in results))
    return step


def run_step(step: Step, graph: tuple[str, ...] = GRAPH) -> ir.Module:
    """The module of the step behind the kernel passes; compares outputs and state with the interpreter."""
    context = create_context()
    module = import_trace(step.trace, context)
    run_passes(module, (*graph, *KERNELS), host_cpu(), Settings(verify=True))
    arrays = []
    for x in step.trace.inputs:
        value = step.bindings[x.value]
        arrays.append(
            np.array(value, np.float64 if x.aval.dtype.is_floating else np.int64)
            if x.role == "scalar"
            else np.array(value)
        )
    bindings = {
        x.value: (step.bindings[x.value] if x.role == "scalar" else np.array(step.bindings[x.value]))
        for x in step.trace.inputs
    }
    expected = interpret(step.trace, bindings)
    with context:
        outputs, _ = linalg_reference.run_plan(module, arrays)
    for value, output in zip(step.trace.outputs, outputs, strict=True):
        assert_close(output, expected[value])
    for x, array in zip(step.trace.inputs, arrays, strict=True):
        if x.role == "state":
            assert_close(array, bindings[x.value])
    return module


def assert_close(got: np.ndarray, wanted: np.ndarray) -> None:
    wanted = np.asarray(wanted)
    assert got.shape == wanted.shape and got.dtype == wanted.dtype, (got.shape, wanted.shape, got.dtype, wanted.dtype)
    if wanted.dtype.kind in "iub":
        np.testing.assert_array_equal(got, wanted)
        return
    tolerance = {8: 1e-12, 4: 2e-5, 2: 2e-2}[wanted.dtype.itemsize]
    np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=tolerance)


def kernels_of(module: ir.Module) -> list[ir.Operation]:
    with module.context:
        return [
            op.operation
            for op in module.body.operations[0].regions[0].blocks[0].operations
            if op.operation.name == "nova.kernel"
        ]


def anchors(module: ir.Module) -> collections.Counter:
    with module.context:
        return collections.Counter(ir.StringAttr(op.attributes["anchor"]).value for op in kernels_of(module))


__all__ = ["Step", "V", "anchors", "blutrain", "kernels_of", "run_step"]
