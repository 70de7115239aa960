"""The nova dialect: what verify refuses, conversions there and back, the importer."""

from __future__ import annotations

import numpy
import pytest
from evaluate_ir import evaluate
from mlir import ir

from blutrain.nova.dialect import Graph, VerifyError, create_context, verify
from blutrain.nova.dialect.convert import attribute_of, aval_of, python_of, tensor_type, user_lines
from blutrain.nova.dialect.definition import STRUCTURAL, operation_names
from blutrain.nova.dialect.nova import OPERATIONS
from blutrain.nova.import_trace import import_trace
from blutrain.nova.trace import Constant, Input, Location, Node, Trace
from blutrain.tensor import dtype as dt
from blutrain.tensor.aval import Aval
from blutrain.tensor.device import cpu
from blutrain.tensor.primitive import TABLE

T = "tensor<4xf32>"
HEAD = f'func.func @step(%s: {T} {{nova.role = "state"}}, %x: {T}, %m: tensor<2x3xf32>)'


def kernel(argument=T, body="", value="%a", yielded=T, result=T, attrs='{anchor = "map"}') -> str:
    """A nova.kernel on %x whose block yields `value`."""
    block = f'^bb0(%a: {argument}):\n{body}\n"nova.yield"({value}) : ({yielded}) -> ()'
    return f'%k = "nova.kernel"(%x) ({{\n{block}\n}}) {attrs} : ({T}) -> {result}'


M = "tensor<2x3xf32>"
ASSIGN = f'"nova.assign"(%s, %x) : ({T}, {T}) -> ()'
EXP = f'"nova.exp"(%x) : ({T}) -> {T}'
FLAG = '%f = "nova.constant"() {value = 1 : i32} : () -> tensor<i32>'

REFUSED = {
    "shape": (f'%0 = "nova.exp"(%x) : ({T}) -> tensor<5xf32>', "gives f32[4], the operation has f32[5]"),
    "dtype": (f'%0 = "nova.lt"(%x, %x) : ({T}, {T}) -> {T}', "the shape rule gives i1[4]"),
    "operands": (f'%0 = "nova.matmul"(%m, %m) : ({M}, {M}) -> {M}', "inner dimensions"),
    "missing attribute": (f'%0 = "nova.transpose"(%x) : ({T}) -> {T}', "perm"),
    "unknown attribute": (f'%0 = "nova.exp"(%x) {{fast = true}} : ({T}) -> {T}', "fast"),
    "unknown operation": (f'%0 = "nova.nope"(%x) : ({T}) -> {T}', "has this name"),
    "foreign operation": ("%0 = arith.constant 1.0 : f32", "not an operation of a step"),
    "assign to an input": (f'"nova.assign"(%x, %x) : ({T}, {T}) -> ()', "nova.role"),
    "assign of another type": (f'"nova.assign"(%s, %m) : ({T}, {M}) -> ()', "does not fit"),
    "assign twice": (f"{ASSIGN}\n{ASSIGN}", "twice"),
    "behind an assign": (f"{ASSIGN}\n%0 = {EXP}", "assigns end"),
    "constant": ('%0 = "nova.constant"() {value = 1 : i64} : () -> tensor<f32>', "is not a f32"),
    "check": (f'"nova.check"(%x) {{index = 0, message = "m"}} : ({T}) -> ()', "tensor<i32>"),
    "check without message": (f'{FLAG}\n"nova.check"(%f) {{index = 0}} : (tensor<i32>) -> ()', "message"),
    "kernel from above": (kernel(body=f"%1 = {EXP}", value="%1"), "isolated"),
    "kernel arguments": (kernel(argument=M, yielded=M, result=M), "arguments differ"),
    "kernel results": (kernel(result=M), "yielded values differ"),
    "kernel without anchor": (kernel(attrs=""), "anchor"),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_verify_refuses(case):
    body, wanted = REFUSED[case]
    with create_context():
        module = ir.Module.parse(f"{HEAD} {{\n{body}\nreturn\n}}")
        with pytest.raises(VerifyError) as caught:
            verify(module)
    assert wanted in str(caught.value)


def test_verify_accepts_a_kernel():
    attrs = '{anchor = "map", lowering_config = #nova.lowering_config<{tile = [4, 8]}>}'
    body = kernel(body=f'%1 = "nova.exp"(%a) : ({T}) -> {T}', value="%1", attrs=attrs)
    with create_context():
        module = ir.Module.parse(f"{HEAD} {{\n{body}\n{ASSIGN}\nreturn\n}}")
        verify(module)
        verify(ir.Module.parse(str(module)))


def test_error_names_the_user_line():
    text = f'{HEAD} {{\n%0 = "nova.exp"(%x) : ({T}) -> tensor<5xf32> loc("train.py":42:0)\nreturn\n}}'
    with create_context(), pytest.raises(VerifyError, match=r"train\.py:42"):
        verify(ir.Module.parse(text))


def test_every_operation_has_a_class():
    with create_context():
        assert set(operation_names()) == set(OPERATIONS) == set(TABLE) | set(STRUCTURAL)
        module = ir.Module.parse(f'{HEAD} {{\n%0 = "nova.exp"(%x) : ({T}) -> {T}\nreturn\n}}')
        op = next(iter(Graph(module).block.operations))
        assert type(op) is OPERATIONS["exp"]


@pytest.mark.parametrize(
    "value",
    [None, True, 3, -1, 2.5, float("inf"), "mean", (1, 2), (), (True, False), ((0, 1), (2, 3)), (1, None), dt.bfloat16,
     dt.uint8, dt.bool_, slice(1, None, 2), (slice(None), 0)],
    ids=repr,
)  # fmt: skip
def test_attributes_there_and_back(value):
    with create_context(), ir.Location.unknown():
        back = python_of(attribute_of(value))
    assert back == value and type(back) is type(value)


@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 5)])
def test_types_there_and_back(dtype, shape):
    with create_context(), ir.Location.unknown():
        assert aval_of(tensor_type(shape, dtype)) == Aval(shape, dtype)


def test_attribute_without_a_form():
    with create_context(), pytest.raises(TypeError, match="no MLIR attribute"):
        attribute_of(object())


def test_user_lines_of_locations():
    with create_context():
        a, b = ir.Location.file("a.py", 1, 0), ir.Location.file("b.py", 2, 0)
        assert user_lines(ir.Location.fused([a, b, a])) == ("a.py:1", "b.py:2")
        assert user_lines(ir.Location.name("layer", b)) == ("b.py:2",)
        assert user_lines(ir.Location.unknown()) == ()


def _trace() -> Trace:
    """y = linear(x, w) * lr + 2; w <- w - 0.5 w."""
    avals = [Aval((4, 8), dt.float32), Aval((2, 8), dt.float32), Aval((), dt.float64, True)]
    avals += [Aval((2, 4), dt.float32)] * 3 + [Aval((4, 8), dt.float32)] * 2
    here = [Location("train.py", n) for n in range(10)]
    nodes = [
        Node(TABLE["linear"], (1, 0), {}, (3,), here[3]),
        Node(TABLE["mul"], (3, 2), {}, (4,), here[4]),
        Node(TABLE["add"], (4, Constant(2)), {}, (5,), here[5]),
        Node(TABLE["mul"], (0, Constant(0.5)), {}, (6,), here[6]),
        Node(TABLE["sub"], (0, 6), {}, (7,), here[6]),
    ]
    inputs = [Input(0, "state", avals[0]), Input(1, "input", avals[1]), Input(2, "scalar", avals[2])]
    return Trace(cpu, inputs, avals, nodes, [5], {0: 7})


def test_import_trace():
    module = import_trace(_trace(), create_context())
    verify(module)
    with module.context:
        graph = Graph(module)
        assert graph.roles == ("state", "input", "scalar")
        names = [op.name.removeprefix("nova.") for op in graph.operations()]
        lines = [user_lines(op.location) for op in graph.operations()]
    assert names == "linear cast mul constant add constant mul sub assign func.return".split()
    assert lines[:4] == [("train.py:3",), ("train.py:4",), ("train.py:4",), ("train.py:5",)]
    w, x = numpy.random.default_rng(0).normal(size=(2, 4, 8)).astype("f4")
    outputs, updates, _ = evaluate(module, [w, x[:2], 0.1])
    numpy.testing.assert_allclose(outputs[0], x[:2] @ w.T * numpy.float32(0.1) + 2, rtol=1e-6)
    numpy.testing.assert_array_equal(updates[0], w - w * numpy.float32(0.5))


def test_import_names_node_and_line_of_a_fault():
    trace = _trace()
    trace.nodes[0].attrs = {"odd": object()}
    with pytest.raises(TypeError, match=r"linear: no MLIR attribute[\s\S]*train\.py:3"):
        import_trace(trace, create_context())
