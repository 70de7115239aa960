"""Reading `nova.kernel` ops: accesses as strides, views of operands, names that do not matter, loops that merge."""

import numpy as np
import pytest
from cpu_kernels import Body, Value, parsed, random, region, run
from mlir import ir

from blutrain.nova.kernel import Operand, Produced, Splat, Unsupported, collapse, kernel_text, read_kernel

NEGATE = region("%a = arith.negf %i0 : f32", "%a : f32")
ADD = region("%s = arith.addf %i0, %o0 : f32", "%s : f32")


def read(body: Body):
    with parsed(body) as op:
        kernel = read_kernel(op)
        return kernel, [(g.extents, g.iterators, g.inputs, g.outputs) for g in kernel.generics]


def test_strides_of_slices_flips_and_broadcasts():
    body = Body("map")
    x, y = body.operand(9, 80), body.operand(35)
    text = region("%a = arith.addf %i0, %i1 : f32", "%a : f32")
    body.result(body.map([(x, "d0 + 2, 77 - d1 * 2"), (y, "d1")], (6, 35), text), alias=-1)
    kernel, [(extents, iterators, inputs, _)] = read(body)
    assert extents == (6, 35) and iterators == ("parallel", "parallel")
    assert inputs[0].source == Operand(0) and inputs[0].strides == (80, -2) and inputs[0].offset == 2 * 80 + 77
    assert inputs[1].strides == (0, 1) and kernel.yields == (Produced(0, 0),) and kernel.aliases == (-1,)


def test_reduction_and_its_neutral_element():
    body = Body("row")
    x = body.operand(4, 7)
    body.result(body.reduce([(x, "d0, d1")], (4,), "d0", "pr", ADD))
    kernel, [(_, iterators, _, outputs)] = read(body)
    assert iterators == ("parallel", "reduction")
    assert outputs[0].source == Splat("0.000000e+00", "f32") and outputs[0].strides == (1, 0)
    assert kernel.bytes == (28 + 4) * 4 and kernel.flops == 28


def test_names_outside_do_not_change_the_text():
    """Twelve equal layers are one kernel: the text forgets which values the op was applied to."""
    texts = []
    for names in (("%p", "%q"), ("%q", "%p")):
        source = f"""
        func.func @step(%p: tensor<4xf32>, %q: tensor<4xf32>) {{
          %r = "nova.kernel"({names[0]}, {names[1]}) <{{anchor = "map", aliases = array<i64: -1>}}> ({{
          ^bb0(%{names[1][1]}x: tensor<4xf32>, %b: tensor<4xf32>):
            "nova.yield"(%b) : (tensor<4xf32>) -> ()
          }}) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32> loc("user{names[0][1]}.py":3:1)
          return
        }}"""
        context = ir.Context()
        context.allow_unregistered_dialects = True
        with context:
            module = ir.Module.parse(source)
            texts.append(kernel_text(module.body.operations[0].regions[0].blocks[0].operations[0]))
    assert texts[0] == texts[1] and "user" not in texts[0]


def test_slice_and_reshape_of_an_operand():
    body = Body("map")
    x = body.operand(6, 40)
    body.lines.append(
        f"%cut = tensor.extract_slice {x.name}[1, 3] [4, 30] [1, 1] : {x.type} to tensor<4x30xf32>\n"
        f"%flat = tensor.collapse_shape {x.name} [[0, 1]] : {x.type} into tensor<240xf32>"
    )
    body.result(body.map([(Value("%cut", (4, 30), "f32"), "d0, d1")], (4, 30), NEGATE))
    a = random(np.random.default_rng(0), (6, 40), "f32")
    np.testing.assert_array_equal(run(body, a)[0], -a[1:5, 3:33])
    body.results.clear()
    body.aliases.clear()
    body.lines = body.lines[:1]
    body.result(body.map([(Value("%flat", (240,), "f32"), "d0")], (240,), NEGATE))
    np.testing.assert_array_equal(run(body, a)[0], -a.reshape(-1))


def test_an_index_of_two_loops_is_refused():
    body = Body("map")
    x, y = body.operand(9), body.operand(4, 6)
    text = region("%a = arith.addf %i0, %i1 : f32", "%a : f32")
    body.result(body.map([(x, "d0 + d1"), (y, "d0, d1")], (4, 6), text))
    with pytest.raises(Unsupported, match="adds two loop dimensions"):
        read(body)


@pytest.mark.parametrize(
    "extents, strides, keep, groups",
    [
        ((2, 3, 4), [(12, 4, 1)], (), [[0, 1, 2]]),
        ((2, 3, 4), [(12, 4, 1), (0, 4, 1)], (), [[0], [1, 2]]),
        ((2, 3, 4), [(12, 4, 1), (0, 0, 1)], (), [[0, 1], [2]]),
        ((2, 1, 4), [(4, 4, 1)], (), [[0, 2]]),
        ((2, 3), [(3, 1)], (1,), [[0], [1]]),
        ((2, 3), [(1, 2)], (), [[0], [1]]),
        ((1, 1), [(1, 1)], (), []),
    ],
)
def test_collapse(extents, strides, keep, groups):
    assert collapse(extents, strides, frozenset(keep)) == groups
