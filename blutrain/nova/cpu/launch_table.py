"""The launch table: the 64-bit words that a host program reads (`host.py`), and the grades of binding arguments to it.

Every pointer in it is the base of a buffer plus an offset. Bases are numbered through all spaces (arena, inputs,
outputs, constants); a moved base changes the words that use it, found once when the table is built.

    build    all inputs are bound for the first time
    repack   many moved: one gather and one addition over the whole table
    update   few moved: only the words that use them
    reuse    none moved: nothing is touched
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..plan import SPACES, BufferRef, Callback, Launch, ProgramPlan
from . import host

REPACK_FROM = 8


@dataclass
class Bindings:
    """How often each grade of binding was taken."""

    build: int = 0
    repack: int = 0
    update: int = 0
    reuse: int = 0


class LaunchTable:
    """Words for a plan. `address`: where they stand, fixed for life. `unbound`: inputs without an address."""

    def __init__(self, plan: ProgramPlan, cell: int, workspace: int):
        self.bindings = Bindings()
        self.unbound = set(range(len(plan.inputs)))
        self._num_inputs = len(plan.inputs)
        self._inputs = [0] * self._num_inputs
        self._first_base, num_bases = _number_bases(plan)
        self._bases = np.zeros(num_bases, np.uint64)
        starts = host.operand_words(plan)
        self._words = np.zeros(starts[-1], np.uint64)
        self._words[host.CELL_WORD], self._words[host.WORKSPACE_WORD] = cell, workspace
        self._pointers = self._words[starts[0] :]
        refs = [ref for launch in plan.launches if not isinstance(launch, Callback) for ref in _refs(launch)]
        self._base_of = np.array([self._first_base[ref.space] + ref.index for ref in refs], np.intp)
        self._offsets = np.array([ref.offset for ref in refs], np.uint64)
        by_base = np.argsort(self._base_of, kind="stable")
        ends = np.searchsorted(self._base_of[by_base], np.arange(num_bases + 1))
        self._uses = [by_base[ends[base] : ends[base + 1]] for base in range(num_bases)]
        self.address = int(self._words.ctypes.data)

    def base(self, space: str, index: int) -> int:
        """The address of a buffer, 0 where it is not bound."""
        return int(self._bases[self._first_base[space] + index])

    def set_base(self, space: str, index: int, address: int) -> None:
        """Points a buffer, and all words that use it, at `address`."""
        base = self._first_base[space] + index
        self._bases[base] = address
        uses = self._uses[base]
        self._pointers[uses] = self._offsets[uses] + np.uint64(address)

    def set_callback(self, number: int, address: int) -> None:
        self._words[host.HEADER_WORDS + number] = address

    def bind(self, index: int, address: int) -> None:
        """Points one input at `address`."""
        if self._inputs[index] == address and index not in self.unbound:
            self.bindings.reuse += 1
            return
        self._inputs[index] = address
        self.set_base("input", index, address)
        self.unbound.discard(index)
        self.bindings.update += 1

    def bind_all(self, addresses: Sequence[int]) -> None:
        """Points all inputs, by the cheapest grade that serves. Raises ValueError for a wrong number of addresses."""
        addresses = list(addresses)
        if addresses == self._inputs and not self.unbound:
            self.bindings.reuse += 1
            return
        if len(addresses) != self._num_inputs:
            raise ValueError(f"run: wrong number of inputs\n  expected: {self._num_inputs}\n  got: {len(addresses)}")
        moved = [index for index, address in enumerate(addresses) if address != self._inputs[index]]
        self._inputs = addresses
        if not self.unbound and len(moved) < REPACK_FROM:
            for index in moved:
                self.set_base("input", index, addresses[index])
            self.bindings.update += 1
        elif self.unbound:
            self.unbound.clear()
            self._repack()
            self.bindings.build += 1
        else:
            self._repack()
            self.bindings.repack += 1

    def _repack(self) -> None:
        first = self._first_base["input"]
        self._bases[first : first + self._num_inputs] = self._inputs
        np.take(self._bases, self._base_of, out=self._pointers)
        self._pointers += self._offsets


def _number_bases(plan: ProgramPlan) -> tuple[dict[str, int], int]:
    """The number of each space's first buffer, and of all buffers."""
    first, total = {}, 0
    for space in SPACES:
        first[space] = total
        total += len(plan.sizes(space))
    return first, total


def _refs(launch: Launch) -> tuple[BufferRef, ...]:
    return launch.operands if launch.predicate is None else (*launch.operands, launch.predicate)
