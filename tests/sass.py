"""Reads the machine code of kernels (nvdisasm): what is still under way where shared memory or registers are given away.

A wgmma with a factor in registers reads them until it is waited for, and a load from shared memory may wait in its
queue while an arrival at a barrier, which takes another way, overtakes it: TMA then writes what is still to be read.
ptxas orders neither by itself; what a generator overlooked is found here, on every path through the code.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from blutrain.nova.gpu.assemble import ptxas_path

_SECTION = re.compile(r"\.section\s+\.text\.([\w$]+)")
_LABEL = re.compile(r"^\.(L_\w+):")
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;")
_WORD = re.compile(r"/\* (0x[0-9a-f]{16}) \*/")
_TARGET = re.compile(r"^BRA\b.*`\(\.(L_\w+)\)")
_GUARD = re.compile(r"^@!?U?P\w+\s+")
_WITHOUT_RESULT = ("ST", "BRA", "SYNCS", "BAR", "EXIT", "RED", "UTMA", "WARPSYNC", "NANOSLEEP", "CCTL", "FENCE", "MEMBAR",
                   "WARPGROUP", "DEPBAR", "CALL", "RET", "BSYNC", "UBLK", "ERRBAR")  # fmt: skip
_REGISTERS_OF_A = 4  # a thread's, of 64 x 8 factors of 4 bytes or 64 x 16 of 2
_CONTROL = 41  # bits of an instruction's upper word before: stall 4, yield 1, written 3, read 3, waited for 6
_NONE = 7  # no scoreboard


class Instruction(NamedTuple):
    """guard: the predicate in front; written: the scoreboard that tells when its result is there; waits: a mask of those
    that it waits for.
    """

    guard: str
    text: str
    written: int = _NONE
    waits: int = 0

    @property
    def name(self) -> str:
        return self.text.split()[0]


class Function(NamedTuple):
    code: list[Instruction]
    labels: dict[str, int]

    def after(self, at: int) -> Iterator[int]:
        """Where execution may go on behind an instruction."""
        guard, text, *_ = self.code[at]
        if target := _TARGET.match(text):
            yield self.labels[target[1]]
        is_sure = not guard and text.split()[0] in ("BRA", "EXIT") and not re.match(r"BRA\S*\s+!?U?P", text)
        if not is_sure and at + 1 < len(self.code):
            yield at + 1


def disassembler() -> str:
    """nvdisasm beside ptxas or on the PATH, "" where there is none."""
    return (
        shutil.which("nvdisasm", path=os.pathsep.join([os.path.dirname(ptxas_path()), os.environ.get("PATH", "")]))
        or ""
    )


def disassemble(cubin: bytes, path: Path) -> str:
    """The text of a cubin, which is written to `path`."""
    path.write_bytes(cubin)
    command = [disassembler(), "-c", "-hex", "-ndf", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def functions(sass: str) -> dict[str, Function]:
    """Each function's code, by name."""
    found: dict[str, Function] = {}
    code, labels = Function([], {})
    lines = sass.splitlines()
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if match := _SECTION.search(line):
            code, labels = found.setdefault(match[1], Function([], {}))
        elif match := _LABEL.match(line):
            labels[match[1]] = len(code)
        elif match := _INSTRUCTION.match(line):
            guard = _GUARD.match(match[1])
            upper = _WORD.search(below) if _WORD.search(line) else None
            control = int(upper[1], 16) >> _CONTROL if upper else _NONE << 5
            guard_text = guard[0].strip() if guard else ""
            code.append(Instruction(guard_text, _GUARD.sub("", match[1]), control >> 5 & 7, control >> 11 & 63))
    return found


def overwritten(function: Function) -> list[str]:
    """Instructions that write registers which a wgmma before them may still read."""
    found, seen = {}, set()
    start = (0, (), frozenset())
    work: list[tuple[int, tuple[frozenset[int], ...], frozenset[int]]] = [start]
    while work:
        at, groups, group = state = work.pop()  # groups: committed ones not waited for; group: the one that is open
        if state in seen:
            continue
        seen.add(state)
        instruction = function.code[at]
        name, text = instruction.name, instruction.text
        if name.startswith("HGMMA"):
            group |= _factor(text)
            if "gsb0" in text:
                groups, group = (*groups, group), frozenset()
        elif name.startswith("WARPGROUP.DEPBAR"):
            left = int(re.search(r"gsb0, (0x\w+)", text)[1], 16)
            groups = groups[max(0, len(groups) - left) :] if left else ()
        elif _written(name, text) & group.union(*groups):
            found[at] = text
        work += [(place, groups, group) for place in function.after(at)]
    return [text for _, text in sorted(found.items())]


def overtaken(function: Function) -> list[str]:
    """Arrivals at barriers that do not wait for loads from shared memory before them, in epilogues. (In a main loop an
    arrival gives another stage away than the loads under way read.)
    """
    found, seen = {}, set()
    work: list[tuple[int, int, bool, bool]] = [(0, 0, False, False)]
    while work:
        # pending: a mask of scoreboards; is_open: there are loads that the next one's scoreboard will cover
        at, pending, is_open, is_epilogue = state = work.pop()
        if state in seen:
            continue
        seen.add(state)
        instruction = function.code[at]
        name = instruction.name
        pending &= ~instruction.waits
        if name.startswith("HGMMA") or name.startswith("MEMBAR"):
            pending, is_open, is_epilogue = 0, False, is_epilogue and not name.startswith("HGMMA")
        elif name.startswith("WARPGROUP.DEPBAR") and "0x0" in instruction.text:
            is_epilogue = True
        elif is_epilogue and name.startswith("LDS"):
            has_own = instruction.written != _NONE
            pending, is_open = (pending | 1 << instruction.written, False) if has_own else (pending, True)
        elif name.startswith("SYNCS.ARRIVE") and (pending or is_open):
            found[at] = instruction.text
        work += [(place, pending, is_open, is_epilogue) for place in function.after(at)]
    return [text for _, text in sorted(found.items())]


def _factor(text: str) -> frozenset[int]:
    """The registers of the factor that a wgmma takes from there, if it does."""
    operand = text.split(",")[1].strip()
    match = re.match(r"R(\d+)", operand)
    return frozenset(range(int(match[1]), int(match[1]) + _REGISTERS_OF_A)) if match else frozenset()


def _written(name: str, text: str) -> set[int]:
    """The registers that an instruction writes."""
    match = re.match(r"R(\d+)$", text[len(name) :].split(",")[0].strip())
    if match is None or name.startswith(_WITHOUT_RESULT):
        return set()
    count = (
        4
        if ".128" in name
        else 2
        if ".64" in name or "WIDE" in name or name.startswith(("DADD", "DMUL", "DFMA"))
        else 1
    )
    return set(range(int(match[1]), int(match[1]) + count))
