"""Runs plain GPU kernels on the CPU, every GPU thread as a thread of its own: what can be checked of their numbers
without a GPU.

The text of a phase is compiled for this machine with its few device operations replaced: thread and block numbers and
shared memory become arguments, barriers pthread barriers, shuffles and votes an exchange through memory between two
barriers of the warp. Kernels without any of these are run as loops.
"""

from __future__ import annotations

import ctypes
import re
import threading

import numpy as np
import pytest

from blutrain.nova.cpu import lower, orc
from blutrain.nova.gpu.kernel import GpuKernel, GpuPhase

_LIBC = ctypes.CDLL(None)
_BARRIER_BYTES = 64
_POISON = 0x5B
STATIC_SHARED = 48 << 10
_EXTRA = (
    "%emu_tid: i32, %emu_bid: i32, %emu_block: !llvm.ptr, %emu_warp: !llvm.ptr, %emu_scratch: !llvm.ptr, "
    "%emu_shared: !llvm.ptr"
)
_COOPERATION = ("nvvm.barrier0", "nvvm.shfl", "nvvm.vote", "nvvm.bar.warp")


def _prelude(types: set[str]) -> str:
    functions = ["llvm.func @pthread_barrier_wait(!llvm.ptr) -> i32"]
    for type_ in sorted(types):
        functions.append(f"""
llvm.func internal @emu_shuffle_{type_}(%tid: i32, %warp: !llvm.ptr, %scratch: !llvm.ptr, %value: {type_}, %mask: i32) -> {type_} {{
  %c31 = llvm.mlir.constant(31 : i32) : i32
  %lane = llvm.and %tid, %c31 : i32
  %other = llvm.xor %lane, %mask : i32
  %mine = llvm.getelementptr %scratch[%lane] : (!llvm.ptr, i32) -> !llvm.ptr, i64
  llvm.store volatile %value, %mine : {type_}, !llvm.ptr
  %w0 = llvm.call @pthread_barrier_wait(%warp) : (!llvm.ptr) -> i32
  %theirs = llvm.getelementptr %scratch[%other] : (!llvm.ptr, i32) -> !llvm.ptr, i64
  %result = llvm.load volatile %theirs : !llvm.ptr -> {type_}
  %w1 = llvm.call @pthread_barrier_wait(%warp) : (!llvm.ptr) -> i32
  llvm.return %result : {type_}
}}""")
    functions.append("""
llvm.func internal @emu_ballot(%tid: i32, %warp: !llvm.ptr, %scratch: !llvm.ptr, %value: i1) -> i32 {
  %c0 = llvm.mlir.constant(0 : i32) : i32
  %c1 = llvm.mlir.constant(1 : i32) : i32
  %c31 = llvm.mlir.constant(31 : i32) : i32
  %c32 = llvm.mlir.constant(32 : i32) : i32
  %lane = llvm.and %tid, %c31 : i32
  %mine = llvm.getelementptr %scratch[%lane] : (!llvm.ptr, i32) -> !llvm.ptr, i64
  %bit = llvm.zext %value : i1 to i32
  llvm.store volatile %bit, %mine : i32, !llvm.ptr
  %w0 = llvm.call @pthread_barrier_wait(%warp) : (!llvm.ptr) -> i32
  llvm.br ^loop(%c0, %c0 : i32, i32)
^loop(%i: i32, %bits: i32):
  %more = llvm.icmp "slt" %i, %c32 : i32
  llvm.cond_br %more, ^step, ^done
^step:
  %place = llvm.getelementptr %scratch[%i] : (!llvm.ptr, i32) -> !llvm.ptr, i64
  %one = llvm.load volatile %place : !llvm.ptr -> i32
  %moved = llvm.shl %one, %i : i32
  %new = llvm.or %bits, %moved : i32
  %next = llvm.add %i, %c1 : i32
  llvm.br ^loop(%next, %new : i32, i32)
^done:
  %w1 = llvm.call @pthread_barrier_wait(%warp) : (!llvm.ptr) -> i32
  llvm.return %bits : i32
}""")
    return "\n".join(functions)


def to_cpu_text(text: str) -> str:
    """The module of a GPU kernel as a module for this machine; every kernel takes the arguments of `_EXTRA` too."""
    types: set[str] = set()

    def shuffle(match: re.Match) -> str:
        value, mask, type_ = match.groups()
        types.add(type_)
        arguments = f"%emu_tid, %emu_warp, %emu_scratch, {value}, {mask}"
        return f"llvm.call @emu_shuffle_{type_}({arguments}) : (i32, !llvm.ptr, !llvm.ptr, {type_}, i32) -> {type_}"

    text = re.sub(r"llvm\.mlir\.global (internal|external) @\w+_(shared|stage)\(\).*\n", "", text)
    text = re.sub(
        r"llvm\.mlir\.addressof @\w+_stage : !llvm\.ptr<3>",
        f"llvm.getelementptr %emu_shared[{STATIC_SHARED}] : (!llvm.ptr) -> !llvm.ptr, i8",
        text,
    )
    text = re.sub(
        r"llvm\.mlir\.addressof @\w+_shared : !llvm\.ptr<3>",
        "llvm.getelementptr %emu_shared[0] : (!llvm.ptr) -> !llvm.ptr, i8",
        text,
    )
    text = re.sub(r"llvm\.addrspacecast (%\w+) : !llvm\.ptr<3> to", r"llvm.bitcast \1 : !llvm.ptr to", text)
    text = text.replace("!llvm.ptr<3>", "!llvm.ptr")
    text = re.sub(r"nvvm\.read\.ptx\.sreg\.tid\.x range <[^>]*> : i32", "llvm.or %emu_tid, %emu_tid : i32", text)
    text = re.sub(r"nvvm\.read\.ptx\.sreg\.ctaid\.x range <[^>]*> : i32", "llvm.or %emu_bid, %emu_bid : i32", text)
    text = re.sub(r"nvvm\.shfl\.sync bfly %\w+, (%[\w#]+), (%\w+), %\w+ : (\w+) -> \w+", shuffle, text)
    text = re.sub(
        r"nvvm\.vote\.sync ballot %\w+, (%[\w#]+) -> i32",
        r"llvm.call @emu_ballot(%emu_tid, %emu_warp, %emu_scratch, \1) : (i32, !llvm.ptr, !llvm.ptr, i1) -> i32",
        text,
    )
    text = re.sub(r'llvm\.inline_asm [^"]*"ex2[^"]*", "=f,f" (%\w+) : \(f32\) -> f32', r"math.exp2 \1 : f32", text)
    # A copy lands at once: a thread reads only what it has waited for.
    text = re.sub(
        r"nvvm\.cp\.async\.shared\.global (%\w+), (%\w+), (\d+), cache = \w+ : .*",
        r'"llvm.intr.memcpy.inline"(\1, \2) <{isVolatile = false, len = \3 : i64}> : (!llvm.ptr, !llvm.ptr) -> ()',
        text,
    )
    text = re.sub(r"nvvm\.cp\.async\.(commit|wait)\.group.*\n", "", text)
    text = re.sub(
        r"llvm\.addrspacecast (%\w+) : !llvm\.ptr to !llvm\.ptr<1>", r"llvm.bitcast \1 : !llvm.ptr to !llvm.ptr", text
    )
    count = iter(range(1 << 30))
    wait = lambda which: (
        lambda _: f"%emu_w{next(count)} = llvm.call @pthread_barrier_wait({which}) : (!llvm.ptr) -> i32"
    )
    text = re.sub(r"nvvm\.barrier0", wait("%emu_block"), text)
    text = re.sub(r"nvvm\.bar\.warp\.sync %\w+ : i32", wait("%emu_warp"), text)
    text = re.sub(r"%predicate: !llvm\.ptr\) attributes \{[^}]*\}", f"%predicate: !llvm.ptr, {_EXTRA})", text)
    text = text.replace("gpu.module @kernels {", "module {\n" + _prelude(types), 1)
    assert "nvvm." not in text, re.findall(r"nvvm\.[\w.]+", text)
    return text


class Emulated:
    """The phases of a kernel, callable on NumPy arrays."""

    def __init__(self, kernel: GpuKernel, facts=("", "", "")):
        if any(op in kernel.text for op in _COOPERATION) and not hasattr(_LIBC, "pthread_barrier_init"):
            pytest.skip("threads of a block meet at POSIX barriers, which macOS does not have")
        self.kernel = kernel
        text = to_cpu_text(kernel.text)
        symbols = [phase.symbol for phase in kernel.phases]
        data = lower.compile_text(text, *facts, str(orc.library_path()))
        self.loaded = orc.load_object(data, symbols)

    def run(self, pointers: list[int], workspace: int, predicate: int = 0) -> None:
        for phase in self.kernel.phases:
            if 0 not in phase.grid:
                self._phase(phase, [*pointers, workspace, predicate])

    def run_block(self, phase: GpuPhase, number: int, pointers: list[int]) -> None:
        """One block of a phase whose threads do not meet; `pointers` end with the workspace and the predicate."""
        function = self._function(phase, len(pointers))
        for t in range(phase.block):
            function(*pointers, t, number, 0, 0, 0, 0)

    def _function(self, phase: GpuPhase, num_pointers: int):
        kinds = [ctypes.c_void_p] * num_pointers + [ctypes.c_int32] * 2 + [ctypes.c_void_p] * 4
        return ctypes.CFUNCTYPE(None, *kinds)(self.loaded.addresses[phase.symbol])

    def _phase(self, phase: GpuPhase, pointers: list[int]) -> None:
        function = self._function(phase, len(pointers))
        grid, block = phase.grid[0] * phase.grid[1] * phase.grid[2], phase.block
        assert phase.grid[1:] == (1, 1)
        body = self.kernel.text[self.kernel.text.index(f"@{phase.symbol}(") :].split("\nllvm.func ")[0]
        if not any(op in body for op in _COOPERATION):
            for b in range(grid):
                self.run_block(phase, b, pointers)
            return
        shared = np.full(STATIC_SHARED + phase.shared_bytes, _POISON, np.uint8)
        scratch = np.zeros((block + 31) // 32 * 32, np.int64)
        barriers = np.zeros((1 + (block + 31) // 32) * _BARRIER_BYTES, np.uint8)
        _LIBC.pthread_barrier_init(ctypes.c_void_p(barriers.ctypes.data), None, block)
        for w in range((block + 31) // 32):
            address = barriers.ctypes.data + (1 + w) * _BARRIER_BYTES
            _LIBC.pthread_barrier_init(ctypes.c_void_p(address), None, min(32, block - 32 * w))

        def thread(t: int) -> None:
            warp = barriers.ctypes.data + (1 + t // 32) * _BARRIER_BYTES
            mine = scratch.ctypes.data + t // 32 * 32 * 8
            for b in range(grid):
                function(*pointers, t, b, barriers.ctypes.data, warp, mine, shared.ctypes.data)
                _LIBC.pthread_barrier_wait(ctypes.c_void_p(barriers.ctypes.data))

        threads = [threading.Thread(target=thread, args=(t,)) for t in range(block)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
