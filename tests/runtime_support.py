"""Hand-written kernels and plans for the tests of the CPU runtime."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy as np

from blutrain.nova.cpu.executable import Executable, build_executable
from blutrain.nova.kernel import GeneratedKernel, Phase
from blutrain.nova.plan import BufferRef, InputSpec, Launch, OutputSpec, ProgramPlan
from blutrain.nova.target import host_cpu

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SIZE = 64


def scale_kernel(factor: float, *, tasks: int = 4, size: int = SIZE) -> GeneratedKernel:
    """y[i] = factor * x[i] for f32[size], split evenly over the tasks."""
    text = f"""
    func.func @scale(%operands: !llvm.ptr, %workspace: !llvm.ptr, %task: i64, %worker: i64) {{
      %y_at = llvm.getelementptr %operands[1] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr
      %x = llvm.load %operands : !llvm.ptr -> !llvm.ptr
      %y = llvm.load %y_at : !llvm.ptr -> !llvm.ptr
      %count = arith.constant {size // tasks} : i64
      %zero = arith.constant 0 : i64
      %one = arith.constant 1 : i64
      %factor = arith.constant {factor:e} : f32
      %first = arith.muli %task, %count : i64
      scf.for %i = %zero to %count step %one : i64 {{
        %j = arith.addi %first, %i : i64
        %from = llvm.getelementptr %x[%j] : (!llvm.ptr, i64) -> !llvm.ptr, f32
        %to = llvm.getelementptr %y[%j] : (!llvm.ptr, i64) -> !llvm.ptr, f32
        %value = llvm.load %from : !llvm.ptr -> f32
        %scaled = arith.mulf %value, %factor : f32
        llvm.store %scaled, %to : f32, !llvm.ptr
      }}
      return
    }}
    """
    return GeneratedKernel(text, (Phase("scale", tasks),), 0, 8 * size, size, 1.0)


def sum_kernel(*, tasks: int = 8, size: int = SIZE) -> GeneratedKernel:
    """y[0] = sum of x: partial sums in the workspace by task, then one task that adds them in order."""
    text = f"""
    func.func @partial(%operands: !llvm.ptr, %workspace: !llvm.ptr, %task: i64, %worker: i64) {{
      %x = llvm.load %operands : !llvm.ptr -> !llvm.ptr
      %count = arith.constant {size // tasks} : i64
      %first = arith.muli %task, %count : i64
      %from = llvm.getelementptr %x[%first] : (!llvm.ptr, i64) -> !llvm.ptr, f32
      %to = llvm.getelementptr %workspace[%task] : (!llvm.ptr, i64) -> !llvm.ptr, f32
      func.call @add(%from, %to, %count) : (!llvm.ptr, !llvm.ptr, i64) -> ()
      return
    }}
    func.func @total(%operands: !llvm.ptr, %workspace: !llvm.ptr, %task: i64, %worker: i64) {{
      %y_at = llvm.getelementptr %operands[1] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr
      %y = llvm.load %y_at : !llvm.ptr -> !llvm.ptr
      %count = arith.constant {tasks} : i64
      func.call @add(%workspace, %y, %count) : (!llvm.ptr, !llvm.ptr, i64) -> ()
      return
    }}
    func.func private @add(%from: !llvm.ptr, %to: !llvm.ptr, %count: i64) {{
      %zero = arith.constant 0 : i64
      %one = arith.constant 1 : i64
      %start = arith.constant 0.0 : f32
      %sum = scf.for %i = %zero to %count step %one iter_args(%so_far = %start) -> f32 : i64 {{
        %at = llvm.getelementptr %from[%i] : (!llvm.ptr, i64) -> !llvm.ptr, f32
        %value = llvm.load %at : !llvm.ptr -> f32
        %next = arith.addf %so_far, %value : f32
        scf.yield %next : f32
      }}
      llvm.store %sum, %to : f32, !llvm.ptr
      return
    }}
    """
    return GeneratedKernel(text, (Phase("partial", tasks), Phase("total", 1)), 4 * tasks, 4 * size, size, 1.0)


def count_kernel(tasks: int, work: int, *, stride: int = 1) -> GeneratedKernel:
    """counts[stride * task] += 1, workers[stride * task] = worker for i64 operands, after `work` loads and stores."""
    text = f"""
    func.func @count(%operands: !llvm.ptr, %workspace: !llvm.ptr, %task: i64, %worker: i64) {{
      %workers_at = llvm.getelementptr %operands[1] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr
      %counts = llvm.load %operands : !llvm.ptr -> !llvm.ptr
      %workers = llvm.load %workers_at : !llvm.ptr -> !llvm.ptr
      %stride = arith.constant {stride} : i64
      %place = arith.muli %task, %stride : i64
      %at = llvm.getelementptr %counts[%place] : (!llvm.ptr, i64) -> !llvm.ptr, i64
      %who = llvm.getelementptr %workers[%place] : (!llvm.ptr, i64) -> !llvm.ptr, i64
      %zero = arith.constant 0 : i64
      %one = arith.constant 1 : i64
      %work = arith.constant {work} : i64
      scf.for %i = %zero to %work step %one : i64 {{
        %before = llvm.load volatile %who : !llvm.ptr -> i64
        llvm.store volatile %before, %who : i64, !llvm.ptr
      }}
      %old = llvm.load %at : !llvm.ptr -> i64
      %new = arith.addi %old, %one : i64
      llvm.store %new, %at : i64, !llvm.ptr
      llvm.store %worker, %who : i64, !llvm.ptr
      return
    }}
    """
    return GeneratedKernel(text, (Phase("count", tasks),), 0, 0, 0, 1.0)


def chain_plan(length: int, factors: tuple[float, ...] = (2.0, 0.5, 3.0), *, tasks: int = 4) -> ProgramPlan:
    """x -> factors in turn, `length` times, through the arena, to one output."""
    kernels = tuple(scale_kernel(factor, tasks=tasks) for factor in factors)
    places = [BufferRef("input", 0), *(BufferRef("arena", 0, 4 * SIZE * i) for i in range(length - 1))]
    places.append(BufferRef("output", 0))
    launches = tuple(
        Launch(i % len(kernels), (places[i], places[i + 1]), None, (f"train.py:{i + 1}",), "scale")
        for i in range(length)
    )
    spec = ((SIZE,), "f32")
    return ProgramPlan(kernels, launches, 4 * SIZE * length, (InputSpec(*spec),), (OutputSpec(*spec),))


def chain_reference(x: np.ndarray, length: int, factors: tuple[float, ...] = (2.0, 0.5, 3.0)) -> np.ndarray:
    for i in range(length):
        x = x * np.float32(factors[i % len(factors)])
    return x


def ramp(start: float = 1.0) -> np.ndarray:
    return np.arange(start, start + SIZE, dtype=np.float32)


def build(plan: ProgramPlan) -> Executable:
    return build_executable(plan, host_cpu())


def run_script(source: str, *, cache: str, timeout: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python program of its own with this folder on its path."""
    path = os.pathsep.join([ROOT, os.path.join(ROOT, "tests"), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONPATH": path, "NOVA_CACHE": cache, **environment}
    command = [sys.executable, "-c", textwrap.dedent(source)]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=timeout)
