"""What `ptxas -v` says, read: registers, spills, shared memory and barriers of each kernel function, and warnings.

ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ...
ptxas info    : Compiling entry function 'gemm' for 'sm_90a'
ptxas info    : Function properties for gemm
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 9 barriers, 1024 bytes smem, 1120 bytes cmem[0]
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:, used (\d+) barriers)?")
_SHARED = re.compile(r"(\d+) bytes smem")
_ADVICE = re.compile(r"^.*\(?\bC75\d\d\b.*$", re.MULTILINE)
_ENTRY_IN_PTX = re.compile(r"\.entry\s+(\w+)")
_MATRIX_INSTRUCTIONS = ("wgmma.mma_async", "mma.sync")


@dataclass(frozen=True)
class FunctionReport:
    """One kernel function. shared_bytes is static; stack and spills are bytes a thread."""

    registers: int
    barriers: int
    shared_bytes: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


def read_report(said: str) -> dict[str, FunctionReport]:
    """The report of each entry function, by name; empty where ptxas said nothing."""
    parts = _ENTRY.split(said)
    return {name: _read_function(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _read_function(body: str) -> FunctionReport:
    frame, used, shared = _FRAME.search(body), _USED.search(body), _SHARED.search(body)
    stack, stores, loads = (int(number) for number in frame.groups()) if frame else (0, 0, 0)
    registers, barriers = (int(number or 0) for number in used.groups()) if used else (0, 0)
    return FunctionReport(registers, barriers, int(shared.group(1)) if shared else 0, stack, stores, loads)


def advice(said: str) -> list[str]:
    """The lines with a message C75xx: products that wait for each other, a register setting that is ignored."""
    return [line.strip() for line in _ADVICE.findall(said)]


def faults(ptx: str, said: str, functions: dict[str, FunctionReport]) -> str:
    """Why the machine code of a product of matrices is not to be used, "" where nothing is wrong.

    Its accumulators fill most of the registers: a spill, or products that the assembler makes wait for each other
    (C75xx), costs a large part of the speed and is a fault of the schedule.
    """
    lines = advice(said)
    parts = _ENTRY_IN_PTX.split(ptx)
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        report = functions.get(name)
        spilled = report.spill_store_bytes + report.spill_load_bytes if report is not None else 0
        if spilled and any(instruction in body for instruction in _MATRIX_INSTRUCTIONS):
            lines.append(f"{name} spills registers: {spilled} bytes of stores and loads a thread")
    return "; ".join(lines)
