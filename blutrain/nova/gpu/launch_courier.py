"""What a program's graph itself does with the slot of a step (`launch_ring.py`): the host fills it and launches the
graph, and makes no other call.

`bring_in`, the first kernel of the graph, copies the step's scalars and small inputs from where the slot says to their
places; `hand_out`, the last, copies small results to where the slot says and puts the first failed value check, if any,
into the slot. A counter on the device tells which slot it is, as it tells the host.

One text serves all programs: what differs is the itinerary, a table in device memory of 8-byte words,

    slot bytes, counter, cells, scalars, inputs, flags, results, result words, (place, bytes) of each input, flags

(addresses and numbers), and a slot is: state, target, the source of each input, the scalars.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from .driver import Driver
from .kernel import GpuPhase
from .launch_code import LoadedModule
from .launch_ring import HEADER_WORDS, SLOTS, StepRing
from .memory import DeviceMemory

_BLOCKS, _THREADS = 32, 256
_FIXED_WORDS = 8  # of an itinerary, before its lists
PHASES = GpuPhase("nova_bring_in", (_BLOCKS, 1, 1), _THREADS), GpuPhase("nova_hand_out", (1, 1, 1), _THREADS)

_POINTER = "!llvm.ptr"
_ALIGNED = "{alignment = 8 : i64}"  # or a word is read and written in halves


@dataclass(frozen=True)
class Itinerary:
    """Addresses on the device, and sizes in bytes: what is copied each step, besides what the slot says."""

    cells: int
    num_scalars: int
    inputs: Sequence[tuple[int, int]]
    flags: Sequence[int]
    results: int
    result_bytes: int

    def pack(self, slot_bytes: int, counter: int) -> bytes:
        """The table that the kernels read."""
        head = (slot_bytes, counter, self.cells, self.num_scalars, len(self.inputs), len(self.flags), self.results,
                self.result_bytes // 8)  # fmt: skip
        words = [*head, *(word for pair in self.inputs for word in pair), *self.flags]
        return struct.pack(f"={len(words)}Q", *words)


class Courier:
    """The two launches of a program, with arguments that stay where they are."""

    def __init__(self, driver: Driver, memory: DeviceMemory, code: LoadedModule, ring: StepRing, itinerary: Itinerary):
        self._driver, self._code = driver, code
        self._phases = [(phase, code.function(phase)) for phase in PHASES]
        self._counter, counter = memory.upload(struct.pack("=Q", ring.coming))
        self._table, table = memory.upload(itinerary.pack(ring.slot_bytes, counter))
        self._arguments = (ctypes.c_uint64 * 2)(ring.address, table)
        first = ctypes.addressof(self._arguments)
        self._pointers = (ctypes.c_uint64 * 2)(first, first + 8)
        self._params = ctypes.addressof(self._pointers)

    def bring_in(self, stream: int) -> None:
        """In front of a step's kernels."""
        self._launch(0, stream)

    def hand_out(self, stream: int) -> None:
        """Behind a step's kernels."""
        self._launch(1, stream)

    def _launch(self, number: int, stream: int) -> None:
        phase, function = self._phases[number]
        self._driver.launch(function, phase.grid, phase.block, 1, 0, stream, self._params)


def _word(name: str, base: str, index: int) -> str:
    """`name` = word `index` of the table or slot at `base`."""
    return (
        f"  %{name}_at = llvm.getelementptr %{base}[{index}] : ({_POINTER}) -> {_POINTER}, i64\n"
        f"  %{name} = llvm.load volatile %{name}_at {_ALIGNED} : {_POINTER} -> i64\n"
    )


# Slots lie in host memory and the host writes the next one meanwhile: all loads from there are volatile.
_HEAD = f"""
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %c4 = arith.constant 4 : i64
  %c32 = arith.constant 32 : i64
  %last_slot = arith.constant {SLOTS - 1} : i64
  %fixed = arith.constant {_FIXED_WORDS} : i64
  %head = arith.constant {HEADER_WORDS} : i64
  %thread32 = nvvm.read.ptx.sreg.tid.x range <i32, 0, {_THREADS}> : i32
  %thread = arith.extui %thread32 : i32 to i64
{_word("slot_bytes", "table", 0)}{_word("counter_address", "table", 1)}{_word("num_inputs", "table", 4)}
  %counter = llvm.inttoptr %counter_address : i64 to {_POINTER}
  %count = llvm.load volatile %counter {_ALIGNED} : {_POINTER} -> i64
  %number = arith.andi %count, %last_slot : i64
  %offset = arith.muli %number, %slot_bytes : i64
  %slot = llvm.getelementptr %ring[%offset] : ({_POINTER}, i64) -> {_POINTER}, i8
"""

# In bring_in there are as many teams of blocks as inputs: each waits for the bus once, to learn where its input is.
_ATTRIBUTES = f"attributes {{nvvm.kernel, nvvm.reqntid = array<i32: {_THREADS}>}}"

TEXT = f"""gpu.module @kernels {{
llvm.func @nova_bring_in(%ring: {_POINTER}, %table: {_POINTER}) {_ATTRIBUTES} {{
{_HEAD}{_word("cells_address", "table", 2)}{_word("num_scalars", "table", 3)}
  %block32 = nvvm.read.ptx.sreg.ctaid.x range <i32, 0, {_BLOCKS}> : i32
  %block = arith.extui %block32 : i32 to i64
  %threads = arith.constant {_THREADS} : i64
  %blocks = arith.constant {_BLOCKS} : i64
  %all = arith.constant {_BLOCKS * _THREADS} : i64
  %first = arith.muli %block, %threads : i64
  %number_of_all = arith.addi %first, %thread : i64
  %at_least_one = arith.maxui %num_inputs, %c1 : i64
  %teams = arith.minui %at_least_one, %blocks : i64
  %team = arith.remui %block, %teams : i64
  %member = arith.divui %block, %teams : i64
  %members = arith.divui %blocks, %teams : i64
  %stride = arith.muli %members, %threads : i64
  %before = arith.muli %member, %threads : i64
  %me = arith.addi %before, %thread : i64
  %is_member = arith.cmpi ult, %member, %members : i64
  %end = arith.select %is_member, %num_inputs, %c0 : i64
  %cells = llvm.inttoptr %cells_address : i64 to {_POINTER}
  %first_scalar = arith.addi %head, %num_inputs : i64
  scf.for %i = %number_of_all to %num_scalars step %all : i64 {{
    %from = arith.addi %first_scalar, %i : i64
    %source = llvm.getelementptr %slot[%from] : ({_POINTER}, i64) -> {_POINTER}, i64
    %scalar = llvm.load volatile %source {_ALIGNED} : {_POINTER} -> i64
    %cell = llvm.getelementptr %cells[%i] : ({_POINTER}, i64) -> {_POINTER}, i64
    llvm.store %scalar, %cell {_ALIGNED} : i64, {_POINTER}
  }}
  scf.for %k = %team to %end step %teams : i64 {{
    %source_word = arith.addi %head, %k : i64
    %source_at = llvm.getelementptr %slot[%source_word] : ({_POINTER}, i64) -> {_POINTER}, i64
    %source_address = llvm.load volatile %source_at {_ALIGNED} : {_POINTER} -> i64
    %source = llvm.inttoptr %source_address : i64 to {_POINTER}
    %twice = arith.addi %k, %k : i64
    %place_word = arith.addi %fixed, %twice : i64
    %place_at = llvm.getelementptr %table[%place_word] : ({_POINTER}, i64) -> {_POINTER}, i64
    %place_address = llvm.load %place_at {_ALIGNED} : {_POINTER} -> i64
    %place = llvm.inttoptr %place_address : i64 to {_POINTER}
    %size_at = llvm.getelementptr %place_at[1] : ({_POINTER}) -> {_POINTER}, i64
    %size = llvm.load %size_at {_ALIGNED} : {_POINTER} -> i64
    %vectors = arith.shrui %size, %c4 : i64
    scf.for %j = %me to %vectors step %stride : i64 {{
      %byte = arith.shli %j, %c4 : i64
      %there = llvm.getelementptr %source[%byte] : ({_POINTER}, i64) -> {_POINTER}, i8
      %here = llvm.getelementptr %place[%byte] : ({_POINTER}, i64) -> {_POINTER}, i8
      %four = llvm.load %there {{alignment = 16 : i64}} : {_POINTER} -> vector<4xi32>
      llvm.store %four, %here {{alignment = 16 : i64}} : vector<4xi32>, {_POINTER}
    }}
    %done = arith.shli %vectors, %c4 : i64
    %mine = arith.addi %done, %me : i64
    scf.for %j = %mine to %size step %stride : i64 {{
      %there = llvm.getelementptr %source[%j] : ({_POINTER}, i64) -> {_POINTER}, i8
      %here = llvm.getelementptr %place[%j] : ({_POINTER}, i64) -> {_POINTER}, i8
      %one = llvm.load %there : {_POINTER} -> i8
      llvm.store %one, %here : i8, {_POINTER}
    }}
  }}
  llvm.return
}}
llvm.func @nova_hand_out(%ring: {_POINTER}, %table: {_POINTER}) {_ATTRIBUTES} {{
{_HEAD}{_word("num_flags", "table", 5)}{_word("results_address", "table", 6)}{_word("all_words", "table", 7)}
{_word("target_address", "slot", 1)}
  %threads = arith.constant {_THREADS} : i64
  %results = llvm.inttoptr %results_address : i64 to {_POINTER}
  %target = llvm.inttoptr %target_address : i64 to {_POINTER}
  %is_wanted = arith.cmpi ne, %target_address, %c0 : i64
  %words = arith.select %is_wanted, %all_words, %c0 : i64
  scf.for %i = %thread to %words step %threads : i64 {{
    %source = llvm.getelementptr %results[%i] : ({_POINTER}, i64) -> {_POINTER}, i64
    %word = llvm.load %source {_ALIGNED} : {_POINTER} -> i64
    %place = llvm.getelementptr %target[%i] : ({_POINTER}, i64) -> {_POINTER}, i64
    llvm.store %word, %place {_ALIGNED} : i64, {_POINTER}
  }}
  nvvm.barrier0
  %is_first = arith.cmpi eq, %thread, %c0 : i64
  scf.if %is_first {{
    %twice = arith.addi %num_inputs, %num_inputs : i64
    %first_flag = arith.addi %fixed, %twice : i64
    %state = scf.for %i = %c0 to %num_flags step %c1 iter_args(%found = %c0) -> (i64) : i64 {{
      %index = arith.addi %first_flag, %i : i64
      %flag_at = llvm.getelementptr %table[%index] : ({_POINTER}, i64) -> {_POINTER}, i64
      %flag_address = llvm.load %flag_at {_ALIGNED} : {_POINTER} -> i64
      %flag_place = llvm.inttoptr %flag_address : i64 to {_POINTER}
      %flag32 = llvm.load %flag_place : {_POINTER} -> i32
      %flag = arith.extui %flag32 : i32 to i64
      %is_set = arith.cmpi ne, %flag, %c0 : i64
      %is_none = arith.cmpi eq, %found, %c0 : i64
      %is_new = arith.andi %is_set, %is_none : i1
      %check = arith.addi %i, %c1 : i64
      %high = arith.shli %check, %c32 : i64
      %both = arith.ori %high, %flag : i64
      %now = arith.select %is_new, %both, %found : i64
      scf.yield %now : i64
    }}
    llvm.store volatile %state, %slot {_ALIGNED} : i64, {_POINTER}
    %next = arith.addi %count, %c1 : i64
    llvm.store %next, %counter {_ALIGNED} : i64, {_POINTER}
  }}
  llvm.return
}}
}}
"""
