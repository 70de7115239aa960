"""Kernels that overlap with the one before them: they wait by themselves, and are launched so only behind a kernel."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
from gpu_fake import NO_CODE, Arguments, FakeDriver, FakeKernel, FakeMemory, array_at, gpu_kernel, phase

from blutrain.nova.gpu.assemble import AssembledKernel
from blutrain.nova.gpu.driver import Driver
from blutrain.nova.gpu.executable import Executable
from blutrain.nova.gpu.lower import to_ptx
from blutrain.nova.plan import BufferRef, Callback, InputSpec, Launch, ProgramPlan

KERNEL = """
gpu.module @kernels {
  llvm.func internal @double(%x: f32) -> f32 {
    %y = llvm.fadd %x, %x : f32
    llvm.return %y : f32
  }
  llvm.func @scale(%x: !llvm.ptr {llvm.noalias, llvm.readonly}, %y: !llvm.ptr {llvm.noalias}, %predicate: !llvm.ptr)
      attributes {gpu.kernel, nvvm.kernel, nvvm.reqntid = array<i32: 64>} {
    %flag = llvm.load %predicate : !llvm.ptr -> i32
    %zero = llvm.mlir.constant(0 : i32) : i32
    %skip = llvm.icmp "ne" %flag, %zero : i32
    llvm.cond_br %skip, ^done, ^body
  ^body:
    %value = llvm.load %x : !llvm.ptr -> f32
    %scaled = llvm.call @double(%value) : (f32) -> f32
    llvm.store %scaled, %y : f32, !llvm.ptr
    llvm.br ^done
  ^done:
    llvm.return
  }
}
"""


def test_a_kernel_waits_before_it_touches_memory():
    ptx = to_ptx(KERNEL, "sm_90a")
    steps = re.findall(r"griddepcontrol\.\w+|ld\.global|st\.global|ld\.b32|st\.b32", ptx)
    assert steps[:2] == ["griddepcontrol.wait", "griddepcontrol.launch_dependents"]
    assert ptx.count("griddepcontrol") == 2 and len(steps) > 4  # once a kernel, none in functions that it calls


@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_89"])
def test_targets_without_the_instruction_do_not_wait(target):
    assert "griddepcontrol" not in to_ptx(KERNEL, target)


def overlaps_of(ptx: str, launches: tuple) -> list[bool]:
    """Which launches of the graph may overlap with the one before; kernel 0 has two phases, kernel 1 none to launch."""

    def increment(arguments: Arguments) -> None:
        array_at(arguments.pointers[0], 1)[:] += 1

    driver = FakeDriver({name: FakeKernel(increment, 0, 3) for name in ("first", "second", "never")})
    kernels = gpu_kernel(phase("first"), phase("second")), gpu_kernel(phase("never", grid=(0, 1, 1)))
    plan = ProgramPlan(kernels, launches, 256, (InputSpec((1,), "f32", "state"),))
    assembled = [AssembledKernel(ptx, b"", "", {}) for _ in kernels]
    executable = Executable(plan, assembled, driver, FakeMemory(), NO_CODE)  # type: ignore[arg-type]
    for launch in launches:
        if isinstance(launch, Callback):
            executable.set_callback(launch.symbol, lambda argument: None)
    state = np.zeros(1, np.float32)
    executable.run([state.ctypes.data])
    assert state[0] == len(driver.overlaps)
    return driver.overlaps


X = (BufferRef("input", 0),)


def test_launches_overlap_behind_kernels_alone():
    launches = (Launch(1, X), Launch(0, X), Launch(1, X), Launch(0, X), Callback("sum", 0), Launch(0, X))
    assert overlaps_of("griddepcontrol.wait;", launches) == [False, True, True, True, False, True]


def test_kernels_that_do_not_wait_never_overlap():
    assert overlaps_of("ld.global;", (Launch(0, X), Launch(0, X))) == [False] * 4


@pytest.mark.parametrize("cluster", [1, 2])
def test_the_drivers_words_for_it(cluster):
    calls = []
    api = SimpleNamespace(
        CUresult=SimpleNamespace(CUDA_SUCCESS=0),
        cuGraphLaunch=None,
        cuLaunchKernelEx=lambda *arguments: (calls.append(arguments), (0,))[1],
        CUlaunchConfig=SimpleNamespace,
        CUlaunchAttribute=lambda: SimpleNamespace(value=SimpleNamespace(clusterDim=SimpleNamespace())),
        CUlaunchAttributeID=type("", (), {"__getattr__": lambda self, name: name})(),
    )
    Driver(api).launch(7, (10, 2, 3), 384, cluster, 1000, 9, 0x1234, True)
    ((config, *rest),) = calls
    assert rest == [7, 0x1234, 0] and config.numAttrs == len(config.attrs) == cluster
    assert config.attrs[-1].id == "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"
    assert config.attrs[-1].value.programmaticStreamSerializationAllowed == 1
