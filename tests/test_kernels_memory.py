"""Windows and joins: rows cut from a tensor, and tensors put together, without kernels (form_kernels_memory)."""

from __future__ import annotations

from kernels_support import Step, anchors, run_step
from mlir import ir

from blutrain.nova.passes.step_launches import StepLaunches


def rows(step: Step, x, start: int, count: int):
    shape = step.trace.avals[x.number].shape
    rest = shape[1:]
    return step.op(
        "slice", x, starts=(start, *(0 for _ in rest)), sizes=(count, *rest), steps=tuple(1 for _ in shape)
    )  # fmt: skip


def places(module: ir.Module) -> list[list[str]]:
    with module.context:
        held = StepLaunches(module).graph.func.attributes
        return [[place.value for place in row] for row in held["nova.memory"]]


def distinct(module: ir.Module) -> int:
    with module.context:
        numbers = tuple(ir.DenseI64ArrayAttr(StepLaunches(module).graph.func.attributes["nova.kernels"]))
        return len(set(numbers))


def test_equal_windows_of_an_argument_share_a_kernel_and_read_it_where_it_lies():
    step = Step()
    x, w = step.input((12, 16)), step.input((5, 16))
    step.output(*(step.op("linear", rows(step, x, at, 4), w) for at in (0, 4, 8)))
    module = run_step(step)
    assert anchors(module) == {"contract": 3} and distinct(module) == 1
    assert [row[1] for row in places(module)] == ["input:0", "input:0+256", "input:0+512"]


def test_blocks_of_a_computed_tensor_are_windows_and_their_results_one_buffer():
    step = Step()
    x, w = step.input((8, 16)), step.input((16, 16))
    h = step.op("exp", x)
    parts = [step.op("linear", rows(step, h, at, 4), w) for at in (0, 4)]
    whole = step.op("concat", *parts, dim=0)
    step.output(step.op("matmul", whole, w))
    module = run_step(step)
    assert anchors(module) == {"map": 1, "contract": 3} and distinct(module) == 3
    first, second, third = places(module)[1:]
    assert int(second[-1].partition(":")[2]) == int(first[-1].partition(":")[2]) + 256
    assert third[0] == first[-1] or third[1] == first[-1]


def test_windows_of_windows_and_single_rows():
    step = Step()
    x = step.input((4, 6, 16))
    inner = rows(step, step.op("reshape", rows(step, x, 2, 1), shape=(6, 16)), 4, 2)
    step.output(step.op("exp", inner))
    module = run_step(step)
    assert places(module)[0][0] == f"input:0+{(2 * 6 + 4) * 64}"


def test_rows_at_odd_addresses_and_columns_are_read_by_kernels():
    step = Step()
    x = step.input((6, 9))
    columns = step.op("slice", x, starts=(0, 3), sizes=(6, 4), steps=(1, 1))
    step.output(step.op("exp", rows(step, x, 1, 3)), step.op("exp", columns))
    assert {row[0] for row in places(run_step(step))} == {"input:0"}


def test_parts_that_leave_the_step_are_copied():
    step = Step()
    x, w = step.input((4, 16)), step.input((16, 16))
    parts = [step.op("linear", x, w), step.op("exp", x)]
    step.output(step.op("concat", *parts, dim=0), parts[0], rows(step, x, 1, 2))
    module = run_step(step)
    assert anchors(module)["map"] >= 2


def test_a_state_is_not_written_where_a_window_of_its_old_value_is_read():
    step = Step()
    state, w = step.input((8, 16), role="state"), step.input((16, 16))
    doubled = step.op("add", state, step.op("concat", rows(step, state, 4, 4), rows(step, state, 0, 4), dim=0))
    step.assign(state, doubled)
    step.output(step.op("matmul", rows(step, state, 2, 3), w))
    run_step(step)


def test_a_joined_part_may_be_read_alone_too():
    step = Step()
    x, w = step.input((4, 16)), step.input((16, 16))
    a, b = step.op("matmul", x, w), step.op("matmul", step.op("exp", x), w)
    whole = step.op("concat", a, b, dim=0)
    step.output(step.op("matmul", whole, w), step.op("sum", a, dims=(1,), keepdim=False))
    run_step(step)
