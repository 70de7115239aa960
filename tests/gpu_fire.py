"""Makes PTX hostile to its own mistakes: warps that are late at random, and shared memory that is poisoned at entry.

    rewritten = fire(ptx, salt=1)
    calm = fire(ptx, salt=1, is_calm=True)      # the same instructions, all delays zero

A delay (nanoseconds to a few microseconds, another in each warp and at each place, drawn from the clock too) stands
around everything by which warps wait for one another: barriers, mbarriers, clusters, bulk copies, cp.async. In kernels
without wgmma it also stands at a sample of their loads and stores; between wgmma instructions it would change how ptxas
gives out registers, and nothing waits there. A kernel that is right computes the same bits, only later.
"""

from __future__ import annotations

import re

SYNCHRONIZES = re.compile(
    r"\b(bar(rier)?\.(sync|arrive|red|warp)|barrier\.cluster|mbarrier\.(arrive|try_wait|test_wait|expect)"
    r"|cp\.async|red\.async|griddepcontrol|membar|fence\.(acq|sc)|atom\.|red\.)"
)
TOUCHES_MEMORY = re.compile(r"\b(ld|st)\.(global|shared|relaxed|acquire|release|volatile)\b")
SAMPLE, LARGEST_SAMPLE = 5, 40  # one of so many loads and stores, so many in one kernel

_ENTRY = re.compile(r"^\s*\.visible \.entry (\w+)|^\s*\.entry (\w+)", re.MULTILINE)
_STATIC = re.compile(r"^\s*(?:\.visible |\.internal )?\.shared \.align \d+ \.b8 (\w+)\[(\d+)\];", re.MULTILINE)
_DYNAMIC = re.compile(r"^\s*\.extern \.shared \.align \d+ \.b8 (\w+)\[\];", re.MULTILINE)

_DECLARATIONS = (".reg", ".shared", ".local", "//")
_REGISTERS = "\t.reg .b32 %fire, %fire_x, %fire_y, %fire_end, %fire_mask;\n\t.reg .pred %fire_p;"
# Of one draw in 16: up to 8 us; of the others: up to 0.5 us.
_DELAY = """\tmad.lo.u32 %fire, %fire, 1664525, 1013904223;
\tshr.u32 %fire_x, %fire, 24;
\tand.b32 %fire_y, %fire, 0x00F00000;
\tsetp.eq.u32 %fire_p, %fire_y, 0;
\tshl.b32 %fire_y, %fire_x, 4;
\tselp.b32 %fire_x, %fire_y, %fire_x, %fire_p;
\tand.b32 %fire_x, %fire_x, %fire_mask;
\tnanosleep.u32 %fire_x;"""


def fire(ptx: str, salt: int = 0, is_calm: bool = False) -> str:
    """The same kernels, delayed and poisoned. `salt`: another choice of places and delays.

    is_calm: without delay; but for one number the same instructions, so that ptxas makes the same code of the rest.
    """
    memory = [(name, str(int(size) & ~3)) for name, size in _STATIC.findall(ptx)]
    memory += [(name, "%dynamic_smem_size") for name in _DYNAMIC.findall(ptx)]
    starts = [match.start() for match in _ENTRY.finditer(ptx)]
    parts = [ptx[a:b] for a, b in zip([0, *starts], [*starts, len(ptx)], strict=True)]
    return parts[0] + "".join(_function(part, memory, salt + i * 7919, is_calm) for i, part in enumerate(parts[1:]))


def _function(text: str, memory: list[tuple[str, str]], salt: int, is_calm: bool) -> str:
    """One entry function; only the memory that it names is its own."""
    head, body = text.split("\n{\n", 1)
    own = [(name, size) for name, size in memory if re.search(rf"(?<!\w){re.escape(name)}\b", body)]
    is_hopper = "wgmma" in body or "cp.async.bulk" in body
    lines = body.split("\n")
    first = next(i for i, line in enumerate(lines) if not line.strip().startswith(_DECLARATIONS))
    entry = [_REGISTERS, *_poison(own, is_hopper), *_seed(salt, is_calm), _DELAY]
    return "\n".join([head, "{", *lines[:first], *entry, *_delayed(lines[first:], is_hopper, salt)])


def _poison(memory: list[tuple[str, str]], is_hopper: bool) -> list[str]:
    """All threads write ones (NaN, -1) to all of shared memory. The bulk copies of TMA come after it."""
    lines = []
    for number, (name, size) in enumerate(memory):
        again, done = f"$fire_poison_{number}", f"$fire_poisoned_{number}"
        lines += [
            "\tmov.u32 %fire_x, %tid.x;",
            "\tshl.b32 %fire_x, %fire_x, 2;",
            "\tmov.u32 %fire_y, %ntid.x;",
            "\tshl.b32 %fire_y, %fire_y, 2;",
            f"\tmov.u32 %fire, {name};",
            f"\tmov.u32 %fire_end, {size};",
            f"{again}:",
            "\tsetp.ge.u32 %fire_p, %fire_x, %fire_end;",
            f"\t@%fire_p bra {done};",
            "\tadd.u32 %fire, %fire, %fire_x;",
            "\tst.shared.b32 [%fire], -1;",
            "\tsub.u32 %fire, %fire, %fire_x;",
            "\tadd.u32 %fire_x, %fire_x, %fire_y;",
            f"\tbra {again};",
            f"{done}:",
        ]
    if memory and is_hopper:
        lines.append("\tfence.proxy.async.shared::cta;")
    return [*lines, "\tbar.sync 0;"] if memory else lines


def _seed(salt: int, is_calm: bool) -> list[str]:
    """The warp's own start: of its number, its block's, the clock and the salt. And the mask of all delays: of the
    grid's depth, which is 1, so that ptxas does not know it.
    """
    return [
        "\tmov.u32 %fire_mask, %nctaid.z;",
        f"\tsub.u32 %fire_mask, %fire_mask, {1 if is_calm else 2};",
        "\tmov.u32 %fire, %tid.x;",
        "\tshr.u32 %fire, %fire, 5;",
        "\tmul.lo.u32 %fire, %fire, 0x9E3779B1;",
        "\tmov.u32 %fire_x, %ctaid.x;",
        f"\tmad.lo.u32 %fire, %fire_x, 0x85EBCA6B, %fire;\n\txor.b32 %fire, %fire, {salt * 0x27D4EB2F & 0x7FFFFFFF};",
        "\tmov.u32 %fire_x, %clock;",
        "\tmad.lo.u32 %fire, %fire_x, 0xC2B2AE35, %fire;",
    ]


def _delayed(lines: list[str], is_hopper: bool, salt: int) -> list[str]:
    """Delays before and behind each synchronizing statement; an inline assembly is one statement."""
    result, sampled, seen = [], 0, salt
    for statement in _statements(lines):
        text = "\n".join(statement)
        if SYNCHRONIZES.search(text) and "wgmma" not in text:
            result += [_DELAY, *statement, _DELAY]
            continue
        result += statement
        if not is_hopper and TOUCHES_MEMORY.search(text) and not statement[0].lstrip().startswith("@"):
            seen += 1
            if seen % SAMPLE == 0 and sampled < LARGEST_SAMPLE:
                result.append(_DELAY)
                sampled += 1
    return result


def _statements(lines: list[str]) -> list[list[str]]:
    """Lines, with each inline assembly kept together."""
    found: list[list[str]] = []
    is_inside = False
    for line in lines:
        if is_inside:
            found[-1].append(line)
        else:
            found.append([line])
        if "begin inline asm" in line:
            is_inside = True
        if "end inline asm" in line:
            is_inside = False
    return found
