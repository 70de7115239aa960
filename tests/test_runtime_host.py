"""The host program, the launch table and the executable: order, arguments, outputs, predicates, callbacks, errors."""

from __future__ import annotations

import ctypes
import dataclasses

import numpy as np
import pytest
from runtime_support import SIZE, build, chain_plan, chain_reference, ramp, scale_kernel, sum_kernel

from blutrain import config
from blutrain.errors import NovaError
from blutrain.nova.cpu import host
from blutrain.nova.kernel import GeneratedKernel, Phase
from blutrain.nova.plan import BufferRef, Callback, Check, InputSpec, Launch, OutputSpec, ProgramPlan

ARENA = BufferRef("arena", 0)


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory):
    with config.scope(NOVA_CACHE=str(tmp_path_factory.mktemp("cache") / "nova")):
        yield


def test_launches_run_in_order():
    x = ramp()
    executable = build(chain_plan(7))
    (y,) = executable.run([x.ctypes.data])
    assert np.array_equal(y, chain_reference(x, 7))


def test_phases_share_a_workspace_and_are_separated_by_a_barrier():
    x = np.random.default_rng(0).random(SIZE, dtype=np.float32)
    plan = ProgramPlan(
        (sum_kernel(),),
        (Launch(0, (BufferRef("input", 0), BufferRef("output", 0))),),
        0,
        (InputSpec((SIZE,), "f32"),),
        (OutputSpec((), "f32"),),
    )
    executable = build(plan)
    partials = [sum_in_order(part) for part in x.reshape(8, -1)]
    for _ in range(50):
        (y,) = executable.run([x.ctypes.data])
        assert y[()] == sum_in_order(partials)


def sum_in_order(values) -> np.float32:
    total = np.float32(0)
    for value in values:
        total += np.float32(value)
    return total


def test_results_of_a_step_survive_the_next():
    executable = build(chain_plan(3))
    first, second = ramp(1), ramp(100)
    (y1,) = executable.run([first.ctypes.data])
    (y2,) = executable.run([second.ctypes.data])
    executable.launch()  # its output is nobody's: neither result may change
    assert np.array_equal(y1, chain_reference(first, 3))
    assert np.array_equal(y2, chain_reference(second, 3))


def test_any_subset_of_the_outputs():
    plan = ProgramPlan(
        (scale_kernel(2.0), scale_kernel(3.0)),
        tuple(Launch(i, (BufferRef("input", 0), BufferRef("output", i))) for i in range(2)),
        0,
        (InputSpec((SIZE,), "f32"),),
        (OutputSpec((SIZE,), "f32"),) * 2,
    )
    x, executable = ramp(), build(plan)
    a, b = executable.run([x.ctypes.data])
    none, c = executable.run([x.ctypes.data], wanted=[1])
    assert none is None and np.array_equal(a, 2 * x) and np.array_equal(b, 3 * x) and np.array_equal(c, 3 * x)


def test_inputs_are_updated_in_place_at_an_offset():
    plan = ProgramPlan(
        (scale_kernel(2.0),),
        (Launch(0, (BufferRef("const", 0), BufferRef("input", 0, 4 * SIZE))),),
        0,
        (InputSpec((2, SIZE), "f32", "state"),),
        (),
        (ramp().tobytes(),),
    )
    state = np.ones((2, SIZE), np.float32)
    build(plan).run([state.ctypes.data])
    assert np.array_equal(state, np.stack([np.ones(SIZE, np.float32), 2 * ramp()]))


@pytest.mark.parametrize("flag, expected", [(0, 2.0), (1, 0.0), (-1, 0.0)])
def test_predicate_skips_a_launch(flag, expected):
    plan = ProgramPlan(
        (scale_kernel(2.0), scale_kernel(1.0)),
        (
            Launch(0, (BufferRef("input", 0), ARENA), BufferRef("input", 1, 4)),
            Launch(1, (ARENA, BufferRef("output", 0))),
        ),
        4 * SIZE,
        (InputSpec((SIZE,), "f32"), InputSpec((2,), "i32")),
        (OutputSpec((SIZE,), "f32"),),
    )
    executable = build(plan)
    executable.view(ARENA, (SIZE,), "f32")[:] = 0
    x, flags = np.ones(SIZE, np.float32), np.array([7, flag], np.int32)
    (y,) = executable.run([x.ctypes.data, flags.ctypes.data])
    assert np.array_equal(y, np.full(SIZE, expected, np.float32))


def test_grades_of_binding():
    num_inputs = 20
    plan = ProgramPlan(
        (scale_kernel(2.0),),
        tuple(Launch(0, (BufferRef("input", i), BufferRef("arena", 0, 4 * SIZE * i))) for i in range(num_inputs)),
        4 * SIZE * num_inputs,
        (InputSpec((SIZE,), "f32"),) * num_inputs,
    )
    executable = build(plan)
    old, new = ([ramp(100 * k + i) for i in range(num_inputs)] for k in range(2))

    def check(arrays):
        executable.run([array.ctypes.data for array in arrays])
        result = executable.view(ARENA, (num_inputs, SIZE), "f32")
        assert np.array_equal(result, 2 * np.stack(arrays))
        return dataclasses.astuple(executable.bindings)

    assert check(old) == (1, 0, 0, 0)
    assert check(old) == (1, 0, 0, 1)
    assert check([new[0], *old[1:]]) == (1, 0, 1, 1)
    assert check([old[0], *new[1:]]) == (1, 1, 1, 1)
    executable.bind(3, old[3].ctypes.data)
    assert dataclasses.astuple(executable.bindings) == (1, 1, 2, 1)
    assert check([old[0], *new[1:3], old[3], *new[4:]]) == (1, 1, 2, 2)


def test_one_launch_at_a_time_and_profile():
    x, executable = ramp(), build(chain_plan(3))
    executable.bind(0, x.ctypes.data)
    executable.launch()
    first = executable.view(ARENA, (SIZE,), "f32")
    second = executable.view(BufferRef("arena", 0, 4 * SIZE), (SIZE,), "f32")
    first[:], second[:] = 0, 0
    executable.run_launch(1)
    assert not second.any() and not first.any()
    executable.run_launch(0)
    assert np.array_equal(first, 2 * x) and not second.any()
    executable.run_launch(1)
    assert np.array_equal(second, x)
    times = executable.profile()
    assert len(times) == 3 and all(time > 0 for time in times)
    with pytest.raises(IndexError, match="launch 3 of 3"):
        executable.run_launch(3)


def test_callbacks_stand_between_launches():
    out = BufferRef("output", 0)
    plan = ProgramPlan(
        (scale_kernel(2.0),),
        (Callback("ready", 7), Launch(0, (BufferRef("input", 0), out)), Callback("ready", 9), Callback("other", 1)),
        0,
        (InputSpec((SIZE,), "f32"),),
        (OutputSpec((SIZE,), "f32"),),
    )
    x, y = ramp(), np.zeros(SIZE, np.float32)
    executable = build(plan)
    executable.bind(0, x.ctypes.data)
    executable.bind_output(0, y.ctypes.data)
    with pytest.raises(NovaError, match="callbacks without a function: ready, other"):
        executable.launch()
    calls = []
    executable.set_callback("ready", lambda argument: calls.append((argument, float(y[0]))))
    other = ctypes.CFUNCTYPE(None, ctypes.c_int64)(lambda argument: calls.append(argument))
    executable.set_callback("other", ctypes.cast(other, ctypes.c_void_p).value)
    executable.launch()
    assert calls == [(7, 0.0), (9, 2.0), 1]
    with pytest.raises(ValueError, match="no callback 'nothing'"):
        executable.set_callback("nothing", 1)


def test_empty_programs_phases_and_buffers():
    build(ProgramPlan((), (), 0)).launch()
    idle = dataclasses.replace(scale_kernel(5.0), phases=(Phase("scale", 0),))
    plan = ProgramPlan((idle,), (Launch(0, (ARENA, ARENA)),), 0, (), (OutputSpec((0, 3), "f32"),))
    executable = build(plan)
    (y,) = executable.run([])
    assert y.shape == (0, 3) and executable.view(ARENA, (0, 7), "f32").shape == (0, 7)


def test_view_stays_alive_and_inside_its_buffer():
    executable = build(ProgramPlan((), (), 4 * SIZE, (InputSpec((2,), "bf16"),)))
    view = executable.view(ARENA, (SIZE,), "f32")
    view[:] = 5
    with pytest.raises(ValueError, match=r"f32\[65\] at .* lies outside its buffer of 256 bytes"):
        executable.view(ARENA, (SIZE + 1,), "f32")
    with pytest.raises(NovaError, match="not bound"):
        executable.view(BufferRef("input", 0), (2,), "bf16")
    del executable
    assert view.sum() == 5 * SIZE


def test_unbound_inputs_are_refused():
    executable = build(chain_plan(2))
    with pytest.raises(NovaError, match=r"inputs \[0\] are not bound"):
        executable.launch()
    with pytest.raises(ValueError, match="wrong number of inputs"):
        executable.run([])


@pytest.mark.parametrize(
    "launch, rule",
    [
        (Launch(1, ()), "kernel 1 does not exist"),
        (Launch(0, (BufferRef("heap", 0),)), "unknown space 'heap'"),
        (Launch(0, (BufferRef("input", 2),)), "does not exist"),
        (Launch(0, (BufferRef("arena", 0, -4),)), "lies outside its buffer of 64 bytes"),
        (Launch(0, (), BufferRef("arena", 0, 62)), "lies outside its buffer of 64 bytes"),
    ],
)
def test_faulty_plans_are_refused(launch, rule):
    launch = dataclasses.replace(launch, locations=("train.py:5",), label="gelu")
    plan = ProgramPlan((scale_kernel(1.0),), (launch,), 64, (InputSpec((1,), "f32"),))
    with pytest.raises(NovaError, match=rule) as caught:
        build(plan)
    assert caught.value.op == "gelu" and caught.value.location == "train.py:5"


def test_faulty_checks_are_refused():
    with pytest.raises(NovaError, match="outside its buffer"):
        build(ProgramPlan((), (), 4, checks=(Check(BufferRef("arena", 0, 4), "targets in range"),)))


def test_a_missing_function_is_an_error_and_never_a_null_call():
    scale = scale_kernel(1.25)
    absent = dataclasses.replace(scale, phases=(Phase("scales", 4),))
    with pytest.raises(NovaError, match="scales") as caught:
        build(ProgramPlan((absent,), (Launch(0, (ARENA, ARENA)),), 4 * SIZE))
    assert caught.value.stage == "load"
    text = scale.text.replace("return", "func.call @nova_nowhere() : () -> ()\nreturn")
    calls = dataclasses.replace(scale, text=text + "func.func private @nova_nowhere()")
    with pytest.raises(NovaError, match="nova_nowhere"):
        build(ProgramPlan((calls,), (Launch(0, (ARENA, ARENA)),), 4 * SIZE))


def test_kernels_may_use_the_same_names_and_the_math_library():
    text = """
    func.func @scale(%operands: !llvm.ptr, %workspace: !llvm.ptr, %task: i64, %worker: i64) {
      %x = llvm.load %operands : !llvm.ptr -> !llvm.ptr
      %value = llvm.load %x : !llvm.ptr -> f64
      %result = math.erf %value : f64
      llvm.store %result, %x : f64, !llvm.ptr
      return
    }
    """
    erf = GeneratedKernel(text, (Phase("scale", 1),), 0, 16, 1, 0.1)
    launches = (Launch(0, (BufferRef("input", 0),)), Launch(1, (BufferRef("input", 1), BufferRef("output", 0))))
    inputs = (InputSpec((), "f64", "state"), InputSpec((SIZE,), "f32"))
    x, y = np.array(0.5), ramp()
    (z,) = build(ProgramPlan((erf, scale_kernel(4.0)), launches, 0, inputs, (OutputSpec((SIZE,), "f32"),))).run(
        [x.ctypes.data, y.ctypes.data]
    )
    assert abs(x[()] - 0.5204998778130465) < 1e-15 and np.array_equal(z, 4 * y)


def test_the_text_of_a_host_program_depends_on_structure_only():
    plan = chain_plan(5)
    moved = tuple(dataclasses.replace(launch, locations=("other.py:1",), label="x") for launch in plan.launches)
    assert host.host_text(plan) == host.host_text(dataclasses.replace(plan, launches=moved, arena_bytes=1 << 20))
    assert "train.py" not in host.host_text(plan)


def test_debug_level_1_tells_what_was_compiled(capsys):
    plan = chain_plan(11, (1.125, 2.125))  # a structure that no other test has compiled
    with config.scope(NOVA_DEBUG=1):
        build(plan)
        build(plan)
    first, second = capsys.readouterr().err.splitlines()
    assert "3 objects compiled and 1 from the cache" in first
    assert "0 objects compiled and 4 from the cache" in second
