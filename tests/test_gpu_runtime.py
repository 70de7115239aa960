"""The GPU runtime on a fake device: arguments, graphs and rebinding, slots, scalars, late checks, outputs, errors."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
from gpu_emulator import Emulated
from gpu_fake import Arguments, FakeDriver, FakeKernel, FakeMemory, Stream, array_at, build, gpu_kernel, phase
from interrupts import Interrupt

from blutrain import config
from blutrain.errors import NovaError
from blutrain.nova.gpu import launch_courier, launch_fault
from blutrain.nova.gpu.kernel import WORKSPACE, GpuKernel, TensorMap
from blutrain.nova.gpu.launch_courier import Itinerary
from blutrain.nova.gpu.launch_ring import SLOTS, StepRing
from blutrain.nova.plan import BufferRef, Callback, Check, InputSpec, Launch, OutputSpec, ProgramPlan

SIZE = 64
LARGE = 1 << 19  # elements: more than a slot holds
STATE = InputSpec((SIZE,), "f32", "state")


def arena(offset: int = 0) -> BufferRef:
    return BufferRef("arena", 0, offset)


def given(index: int) -> BufferRef:
    return BufferRef("input", index)


def result(index: int) -> BufferRef:
    return BufferRef("output", index)


def doubling(arguments: Arguments) -> None:
    x, y, *_ = arguments.pointers
    array_at(y, SIZE)[:] = 2 * array_at(x, SIZE)


def scaling(arguments: Arguments) -> None:
    """y = x * factor, the factor a 0-d f64."""
    x, factor, y, *_ = arguments.pointers
    array_at(y, SIZE)[:] = array_at(x, SIZE) * np.float32(array_at(factor, 1, np.float64)[0])


def negative_flag(arguments: Arguments) -> None:
    """flag = 7 where any x is negative."""
    x, flag, *_ = arguments.pointers
    array_at(flag, 1, np.int32)[0] = 7 if (array_at(x, SIZE) < 0).any() else 0


KERNELS = {
    "double": FakeKernel(doubling, 0, 4),
    "scale": FakeKernel(scaling, 0, 5),
    "flag": FakeKernel(negative_flag, 0, 4),
}


def fake(**settings) -> FakeDriver:
    return FakeDriver(dict(KERNELS), **settings)


def chain_plan(length: int, spec: InputSpec = STATE) -> ProgramPlan:
    """An input doubled `length` times, to an output."""
    places = [given(0), *(arena(256 * i) for i in range(length - 1)), result(0)]
    launches = tuple(
        Launch(0, (places[i], places[i + 1]), None, (f"train.py:{i + 1}",), f"map {i}") for i in range(length)
    )
    output = OutputSpec((SIZE,), "f32")
    return ProgramPlan((gpu_kernel(phase("double")),), launches, 256 * length, (spec,), (output,))


def ramp(start: float = 1.0, size: int = SIZE) -> np.ndarray:
    return np.arange(start, start + size, dtype=np.float32)


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def test_launches_run_in_order_and_the_graph_is_captured_once():
    driver = fake()
    executable = build(chain_plan(5), driver)
    x = ramp()
    for _ in range(3):
        (y,) = executable.run([address(x)])
        assert np.array_equal(y, 32 * x)
    assert (executable.bindings.captures, driver.calls["instantiate"], driver.calls["launch_graph"]) == (1, 1, 3)
    assert driver.calls["launch"] == 5  # all while capturing


def test_arguments_are_maps_then_operands_workspace_and_predicate():
    seen: list[Arguments] = []
    one = TensorMap(1, 64, "f32", (32, 2), (128,), (32, 2), 128)
    two = TensorMap(WORKSPACE, 16, "bf16", (64,), (), (64,))
    driver = FakeDriver({"k": FakeKernel(seen.append, 2, 5), "l": FakeKernel(seen.append, 0, 5)})
    kernel = gpu_kernel(phase("k", one, two), phase("l"), phase("never", grid=(4, 0, 1)), workspace_bytes=512)
    operands = given(0), arena(256), result(0)
    launches = Launch(0, operands, arena(128)), Launch(0, operands)
    plan = ProgramPlan((kernel,), launches, 1024, (STATE,), (OutputSpec((SIZE,), "f32"),))
    driver.kernels["never"] = FakeKernel(seen.append, 0, 0)
    memory = FakeMemory()
    executable = build(plan, driver, memory)
    x = ramp()
    executable.view(arena(128), (), "i32")[...] = 0
    (y,) = executable.run([address(x)])
    first, second, third, fourth = seen
    base = executable.view(arena(), (1,), "i8").ctypes.data
    workspace = first.pointers[3]
    assert first.pointers == (address(x), base + 256, address(y), workspace, base + 128)
    assert second.pointers == first.pointers and not second.maps
    assert third.pointers == (*first.pointers[:4], 0) == fourth.pointers
    assert [place for place, _ in first.maps] == [base + 256 + 64, workspace + 16]
    assert [driver.specs[number] for _, number in first.maps] == [one, two]


def test_a_moved_argument_changes_the_nodes_that_use_it():
    driver = fake()
    executable = build(chain_plan(8), driver)
    a, b = ramp(), ramp(100)
    executable.bind(0, address(a))
    y = executable.new_output(0)
    executable.launch()
    executable.bind(0, address(b))
    executable.launch()
    assert np.array_equal(y, 256 * b)
    assert (executable.bindings.captures, executable.bindings.updates, executable.bindings.nodes) == (1, 1, 1)
    executable.bind(0, address(b))
    executable.launch()
    assert (executable.bindings.updates, executable.bindings.reuse) == (1, 1)
    z = executable.new_output(0)
    executable.launch()
    assert executable.bindings.nodes == 2 and np.array_equal(z, y)


def test_a_graph_is_captured_again_where_most_nodes_change():
    driver = fake()
    launches = tuple(Launch(0, (given(0), result(i))) for i in range(4))
    plan = ProgramPlan((gpu_kernel(phase("double")),), launches, 0, (STATE,), (OutputSpec((SIZE,), "f32"),) * 4)
    executable = build(plan, driver)
    a, b = ramp(), ramp(9)
    executable.bind(0, address(a))
    executable.launch()
    outputs = [executable.new_output(i) for i in range(4)]
    executable.bind(0, address(b))
    executable.launch()
    assert executable.bindings.captures == 2 and "update_node" not in driver.calls
    assert all(np.array_equal(y, 2 * b) for y in outputs)


def test_tensor_maps_follow_their_operand():
    seen: list[Arguments] = []
    driver = FakeDriver({"k": FakeKernel(seen.append, 1, 4), **KERNELS})
    spec = TensorMap(0, 0, "f32", (SIZE,), (), (SIZE,))
    kernels = gpu_kernel(phase("k", spec)), gpu_kernel(phase("double"))
    launches = Launch(0, (given(0), arena())), Launch(1, (arena(), arena(256)))
    executable = build(ProgramPlan(kernels, launches, 512, (STATE,)), driver)
    a, b = ramp(), ramp()
    for x in (a, a, b):
        executable.bind(0, address(x))
        executable.launch()
    assert [arguments.maps[0][0] for arguments in seen] == [address(a), address(a), address(b)]
    assert driver.calls["encode_tensor_map"] == 2 and executable.bindings.captures == 1


def test_small_inputs_are_copied_and_large_ones_read_where_they_are():
    driver = fake()
    executable = build(chain_plan(3, InputSpec((SIZE,), "f32", "input")), driver)
    a, b = ramp(), ramp(50)
    for x in (a, b, a):
        (y,) = executable.run([address(x)])
        assert np.array_equal(y, 8 * x)
    a[:] = 3
    (y,) = executable.run([address(a)])  # at the address of before, other contents
    assert (y == 24).all()
    assert executable.view(given(0), (SIZE,), "f32").ctypes.data != address(a)
    large = build(chain_plan(3, InputSpec((LARGE,), "f32", "input")), fake())
    x = ramp(size=LARGE)
    large.bind(0, address(x))
    assert large.view(given(0), (LARGE,), "f32").ctypes.data == address(x)


def scaled_plan() -> ProgramPlan:
    inputs = STATE, InputSpec((), "f64", "scalar")
    launch = Launch(0, (given(0), given(1), result(0)))
    return ProgramPlan((gpu_kernel(phase("scale")),), (launch,), 0, inputs, (OutputSpec((SIZE,), "f32"),))


def test_a_lagging_device_reads_the_scalars_of_each_step():
    driver = fake(is_held=True)
    executable = build(scaled_plan(), driver)
    write = executable.scalar_block([1], "d")
    x = ramp()
    executable.bind(0, address(x))
    executable.result_block([0])
    results = []
    for step in range(3 * SLOTS + 5):
        write(step)
        executable.launch()
        results += executable.take_results()
    driver.drain()
    assert driver.calls["wait_for_event"] >= 3
    for step, y in enumerate(results):
        assert np.array_equal(y, x * np.float32(step))


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("before, stride", [(0, 7), (1, 1)])
def test_launches_after_an_interrupted_one_have_their_own_scalars_and_results(is_held, before, stride):
    """Ctrl-C at any line of a launch: whether the device counted that step or not, it and the host agree on the next."""
    for n in itertools.count(1, stride):
        driver = fake(is_held=is_held)
        executable, x = build(scaled_plan(), driver), ramp()
        write = executable.scalar_block([1], "d")
        executable.bind(0, address(x))
        executable.result_block([0])
        for _ in range(before):
            executable.launch()
        with contextlib.suppress(KeyboardInterrupt), Interrupt(n) as interrupt:
            write(-1)
            executable.launch()
        gc.enable()  # which a capture turns off, and an interrupt in its `finally` leaves off
        results = []
        for step in range(SLOTS + 5):
            write(step)
            executable.launch()
            results += executable.take_results()
        driver.drain()
        for step, y in enumerate(results):
            assert np.array_equal(y, x * np.float32(step)), (n, step)
        if not interrupt.fired:
            break
    assert n > 30


def test_integer_scalars_share_the_block():
    executable = build(scaled_plan(), fake())
    write = executable.scalar_block([1], "q")
    write(3)
    executable.bind(0, address(ramp()))
    executable.launch()
    assert executable.view(given(1), (), "i64") == 3


def checked_plan() -> ProgramPlan:
    """flag <- x; an update of the second state that the flag prevents."""
    kernels = gpu_kernel(phase("flag")), gpu_kernel(phase("double"))
    launches = Launch(0, (given(0), arena())), Launch(1, (given(0), given(1)), arena())
    check = Check(arena(), "negative: {flag}", "train.py:7")
    return ProgramPlan(kernels, launches, 256, (STATE, STATE), checks=(check,))


def test_a_failed_check_is_told_of_when_its_step_is_done_and_once():
    driver = fake(is_held=True)
    executable = build(checked_plan(), driver)
    good, bad, y = ramp(), -ramp(), np.zeros(SIZE, np.float32)
    executable.bind(1, address(y))
    for step, x in enumerate((good, bad, good)):
        executable.bind(0, address(x))
        executable.launch(step)
    assert executable.failed_check() is None
    driver.drain()
    assert executable.failed_check() == (0, 7, 1)
    assert executable.failed_check() is None
    executable.bind(0, address(bad))
    executable.launch("last")
    assert np.array_equal(y, 2 * good)  # neither failed step updated it
    failure = executable.wait()
    assert failure is not None and failure.context == "last"


def test_checks_survive_the_ring_coming_round():
    driver = fake(is_held=True)
    executable = build(checked_plan(), driver)
    good, bad, y = ramp(), -ramp(), np.zeros(SIZE, np.float32)
    executable.bind(1, address(y))
    failures = []
    for step in range(4 * SLOTS):
        if failure := executable.failed_check():
            failures.append(failure.context)
        executable.bind(0, address(bad if step == SLOTS + 3 else good))
        executable.launch(step)
    while failure := executable.wait():
        failures.append(failure.context)
    assert failures == [SLOTS + 3]


@pytest.mark.parametrize(
    "flags, state", [((), 0), ((0, 0), 0), ((0, 5, 3), 2 << 32 | 5), ((-1,), 1 << 32 | 0xFFFFFFFF)]
)
@pytest.mark.parametrize("count", [0, 1, 4, 40])
def test_the_couriers_kernels(flags, state, count):
    """The real text, each of its threads in turn on the CPU: two steps, in two slots."""
    sizes = [(0, 5, 16, 100_003)[i % 4] for i in range(count)]
    inputs = [np.arange(size, dtype=np.uint8) for size in sizes]
    places, cells, results = [np.zeros_like(x) for x in inputs], np.zeros(3), np.arange(700.0)
    given_flags = np.array(flags, np.int32)
    ring, counter = StepRing(fake(), "ddd", len(inputs)), np.array([SLOTS - 1], np.uint64)
    itinerary = Itinerary(
        cells=address(cells),
        num_scalars=3,
        inputs=[(address(x), x.nbytes) for x in places],
        flags=[address(given_flags) + 4 * i for i in range(len(flags))],
        results=address(results),
        result_bytes=results.nbytes,
    )
    table = np.frombuffer(itinerary.pack(ring.slot_bytes, address(counter)), np.uint64)
    parameters = "%table: !llvm.ptr, %workspace: !llvm.ptr, %predicate: !llvm.ptr)"
    text = launch_courier.TEXT.replace("%table: !llvm.ptr)", parameters)
    kernel = Emulated(GpuKernel(text, "sm_90a", launch_courier.PHASES, 0, 0, 0, 0.0, "courier"))
    for _ in range(SLOTS - 1):
        ring.advance(0)
    for step in range(2):
        target = np.zeros_like(results)
        ring.write(step + 1, 0.5, -step)
        ring.fill(0 if step else address(target), [address(x) for x in inputs])
        kernel.run([ring.address, address(table)], 0)
        ring.advance(0, step, is_checked=True)
        assert np.array_equal(cells, (step + 1, 0.5, -step)) and counter[0] == SLOTS + step
        assert all(np.array_equal(x, y) for x, y in zip(inputs, places, strict=True))
        assert np.array_equal(target, results) == (step == 0)
        failure = ring.failed_check()
        found = 0 if failure is None else (failure.check + 1) << 32 | failure.flag & 0xFFFFFFFF
        assert found == state and (failure is None or failure.context == step)
        for x in inputs:
            x += 1


def test_results_are_their_receivers():
    executable = build(chain_plan(2), fake())
    x = ramp()
    executable.bind(0, address(x))
    executable.result_block([0])
    executable.launch()
    (first,) = executable.take_results()
    x *= 3
    executable.launch()
    (second,) = executable.take_results()
    assert np.array_equal(3 * first, second) and np.array_equal(second, 4 * x)


def test_several_small_results_come_in_one_copy():
    driver = fake()
    launches = tuple(Launch(0, (given(0), result(i))) for i in range(3))
    plan = ProgramPlan((gpu_kernel(phase("double")),), launches, 0, (STATE,), (OutputSpec((SIZE,), "f32"),) * 3)
    executable = build(plan, driver)
    x = ramp()
    executable.bind(0, address(x))
    executable.result_block([0, 1, 2])
    executable.launch()
    results = executable.take_results()
    assert driver.calls["launch_graph"] == 1 and "copy_on_device" not in driver.calls
    assert all(np.array_equal(y, 2 * x) for y in results)


def test_outputs_of_a_run_are_not_written_by_a_later_launch():
    executable = build(chain_plan(3), fake())
    x = ramp()
    (first,) = executable.run([address(x)])
    x *= 5
    executable.launch()
    assert np.array_equal(5 * first, 8 * x)
    assert executable.run([address(x)], wanted=[]) == [None]


def test_callbacks_are_called_while_capturing():
    calls = []
    plan = chain_plan(2)
    launches = plan.launches[0], Callback("ready", 4), plan.launches[1]
    plan = ProgramPlan(plan.kernels, launches, plan.arena_bytes, plan.inputs, plan.outputs)
    memory = FakeMemory()
    executable = build(plan, fake(), memory)
    executable.bind(0, address(ramp()))
    with pytest.raises(NovaError, match="callbacks without a function: ready"):
        executable.launch()
    with pytest.raises(ValueError, match="no callback 'other'"):
        executable.set_callback("other", print)
    executable.set_callback("ready", lambda argument: calls.append((argument, memory.current[-1])))
    for _ in range(3):
        executable.launch()
    assert len(calls) == 1 and calls[0][0] == 4 and calls[0][1] != 0
    executable.set_callback("ready", lambda argument: calls.append(argument))
    executable.launch()
    assert len(calls) == 2 and executable.bindings.captures == 2


@pytest.mark.parametrize("fail", ["", "double"])
def test_no_finalizer_of_garbage_ends_a_capture(fail):
    """One that frees memory or code of the device would: CUDA refuses it and the capture is invalid from then on."""
    driver, x, collects = fake(fail=fail), ramp(), []
    executable, launch = build(chain_plan(3), driver), driver.launch

    def noting(*arguments):
        collects.append(gc.isenabled())
        launch(*arguments)

    driver.launch = noting
    with pytest.raises(NovaError) if fail else contextlib.nullcontext():
        executable.run([address(x)])
    assert collects and not any(collects) and gc.isenabled()


def test_another_stream_waits_for_the_one_before():
    driver, memory = fake(), FakeMemory()
    executable = build(chain_plan(1), driver, memory)
    executable.bind(0, address(ramp()))
    executable.launch()
    executable.launch()
    assert not driver.waits
    memory.stream = Stream(5)
    executable.launch()
    assert [stream for stream, _ in driver.waits] == [5]


def test_profile_times_every_launch():
    executable = build(chain_plan(4), fake())
    executable.bind(0, address(ramp()))
    assert executable.profile() == [1000.0] * 4
    executable.launch()
    assert executable.bindings.captures == 1


def test_one_launch_alone():
    driver = fake()
    executable = build(chain_plan(4), driver)
    x = ramp()
    executable.bind(0, address(x))
    executable.run_launch(0)
    assert driver.launched == ["double"]
    assert np.array_equal(executable.view(arena(), (SIZE,), "f32"), 2 * x)
    with pytest.raises(IndexError, match="launch 4 of 4"):
        executable.run_launch(4)


def test_code_is_shared_between_programs_and_unloaded_with_the_last():
    driver = fake()
    first, second = build(chain_plan(1), driver), build(chain_plan(2), driver)
    assert driver.calls["load_module"] == 2  # that of the kernel, and that of the courier
    del first
    assert "unload_module" not in driver.calls
    del second
    assert driver.calls["unload_module"] == 2
    assert driver.calls["destroy_stream"] == 2  # no cycle keeps a dead program's memory


def test_what_is_not_bound():
    executable = build(checked_plan(), fake())
    executable.bind(0, address(ramp()))
    with pytest.raises(NovaError, match=r"inputs \[1\] are not bound"):
        executable.launch()
    with pytest.raises(NovaError, match="is not bound"):
        executable.view(given(1), (SIZE,), "f32")
    with pytest.raises(ValueError, match="outside its buffer"):
        executable.view(given(0), (SIZE + 1,), "f32")


def test_a_launch_that_is_refused_names_the_kernel_and_the_line():
    driver = fake(fail="double")
    executable = build(chain_plan(3), driver)
    executable.bind(0, address(ramp()))
    with pytest.raises(NovaError, match=r"double .*128 threads.* cannot be launched") as caught:
        executable.launch()
    assert (caught.value.op, caught.value.location) == ("map 0", "train.py:1")
    driver.fail = ""
    executable.launch()
    assert executable.bindings.captures == 1


def faulty_executable():
    plan = chain_plan(3)
    kernels = (*plan.kernels, gpu_kernel(phase("bad")))
    launches = (*plan.launches[:1], Launch(1, plan.launches[1].operands, None, ("train.py:9",), "row 1"))
    driver = fake(fault="bad")
    driver.kernels["bad"] = KERNELS["double"]
    executable = build(ProgramPlan(kernels, launches, plan.arena_bytes, plan.inputs, plan.outputs), driver)
    executable.bind(0, address(ramp()))
    return executable


def test_a_fault_on_the_device_is_searched_for_in_another_process(monkeypatch):
    answers = [None, NovaError("bad failed", stage="launch", op="row 1", location="train.py:9")]
    searched = []
    monkeypatch.setattr(
        "blutrain.nova.gpu.executable.find_fault", lambda plan, device: searched.append(plan) or answers.pop()
    )
    executable = faulty_executable()
    with pytest.raises(NovaError, match="bad failed"):
        executable.launch()
    with pytest.raises(NovaError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS.*\n.*NOVA_CHECK=1"):
        executable.launch()
    assert searched == [executable.plan] * 2


def test_a_fault_on_the_device_is_named_under_nova_check():
    executable = faulty_executable()
    with config.scope(NOVA_CHECK=True), pytest.raises(NovaError, match=r"bad failed.*CUDA_ERROR_ILLEGAL") as caught:
        executable.launch()
    assert (caught.value.op, caught.value.location) == ("row 1", "train.py:9")
    with pytest.raises(NovaError, match="bad failed"):
        faulty_executable().launch_checked()


def test_a_search_that_fails_finds_nothing(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert launch_fault.find_fault(chain_plan(2), FakeMemory().device) is None
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert launch_fault.find_fault(chain_plan(2), FakeMemory().device) is None


@pytest.mark.parametrize(
    "spec, message",
    [
        (TensorMap(5, 0, "f32", (SIZE,), (), (SIZE,)), "no operand 5"),
        (TensorMap(0, 8, "f32", (SIZE,), (), (SIZE,)), "offset 8"),
        (TensorMap(0, 0, "f32", (SIZE, 2), (100,), (32, 2)), "% 16"),
        (TensorMap(0, 0, "f32", (SIZE,), (), (512,)), "outside 1..256"),
        (TensorMap(0, 0, "f32", (SIZE,), (), (64,), 128), "> self.swizzle=128"),
        (TensorMap(0, 0, "f31", (SIZE,), (), (64,)), "dtype 'f31'"),
    ],
)
def test_a_tensor_map_that_cannot_be(spec, message):
    kernel = gpu_kernel(phase("double", spec))
    launch = Launch(0, (given(0), arena()), None, ("train.py:3",), "contract 0")
    with pytest.raises(NovaError) as caught:
        build(ProgramPlan((kernel,), (launch,), 256, (STATE,)), fake())
    assert message in str(caught.value) and "train.py:3" in str(caught.value)


def test_a_tensor_map_over_a_misaligned_address_names_the_line():
    kernel = gpu_kernel(phase("double", TensorMap(0, 0, "f32", (SIZE,), (), (SIZE,))))
    launch = Launch(0, (given(0), arena()), None, ("train.py:3",), "contract 0")
    executable = build(ProgramPlan((kernel,), (launch,), 256, (STATE,)), fake())
    executable.bind(0, address(ramp(size=SIZE + 1)) + 4)
    with pytest.raises(NovaError, match="tensor map of operand 0 at 0x") as caught:
        executable.launch()
    assert caught.value.location == "train.py:3"


def test_memory_that_is_not_to_be_had():
    with pytest.raises(NovaError, match=r"out of device memory.*\n.*arena 1\.0 MiB") as caught:
        plan = ProgramPlan((gpu_kernel(phase("double")),), (), 1 << 20)
        build(plan, fake(), FakeMemory(limit=1 << 19))
    assert caught.value.stage == "memory"


def test_nothing_imports_cuda():
    script = """
        import sys
        import blutrain.nova, blutrain.nova.aot
        import blutrain.nova.gpu.executable, blutrain.nova.gpu.driver_properties, blutrain.nova.target_gpu
        print([name for name in ("cupy", "cuda", "mlir") if name in sys.modules])
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", "import textwrap, sys; exec(textwrap.dedent(sys.argv[1]))", script]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_fallback_is_expected_to_take_no_time():
    guard, flag = arena(), arena(64)
    launches = Launch(0, ()), Launch(0, (), guard), Launch(0, (), flag), Callback("sum", 0)
    plan = ProgramPlan((gpu_kernel(phase("double")),), launches, 128, guard=guard)
    assert [plan.predicted_us(launch) for launch in launches] == [1.0, 1.0, 0.0, 0.0]


def test_everything_is_made_and_launched_on_the_programs_device():
    """Also where another device is the current one."""

    class Elsewhere(FakeMemory):
        is_active = depth = 0

        @contextlib.contextmanager
        def activate(self):
            self.depth, self.is_active = self.depth + 1, 1
            yield
            self.depth -= 1
            self.is_active = int(self.depth > 0)

        def here(self, function):
            def checked(*arguments):
                assert self.is_active
                return function(*arguments)

            return checked

    memory, driver = Elsewhere(), fake()
    with memory.activate():
        executable = build(scaled_plan(), driver, memory)
    for owner, names in ((memory, ("allocate", "empty", "upload")), (driver, ("allocate_pinned", "create_event"))):
        for name in names:
            setattr(owner, name, memory.here(getattr(owner, name)))
    for name in ("launch", "launch_graph", "begin_capture", "record", "function"):
        setattr(driver, name, memory.here(getattr(driver, name)))
    write = executable.scalar_block([1], "d")
    executable.result_block([0])
    x = ramp()
    executable.bind(0, address(x))
    for step in range(SLOTS):
        write(step)
        executable.launch()
        assert np.array_equal(executable.take_results()[0], x * np.float32(step))
    assert not memory.is_active
