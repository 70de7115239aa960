"""The host program: one function, in the llvm dialect, that launches every kernel of a plan in order.

    nova_program(block, first, last, stamps)    launches first .. last-1; writes the times between them unless null
    nova_step(block)                            all of them

`block` is an array of 64-bit words, filled by the launch table: the pool's cell, the workspace, the addresses of the
callbacks, then for each launch the pointers to its operands and, if it has one, to its predicate. Only offsets into
it stand in the text, no address and no user line: programs of equal structure are one object in the cache.

Before: kernel 0 has the phases row_max (4 tasks) and sum (1 task); launch 3 is kernel 0. After, shortened:

    llvm.func internal @kernel_0(%pool, %operands, %workspace) {
      llvm.call @nova_parallel(%pool, @kernel_0_phase_0, %operands, %workspace, 4)
      llvm.call @kernel_0_phase_1(%operands, %workspace, 0, 0)          // a single task runs where it is
    }
    ^launch_3:
      %o3 = llvm.getelementptr %block[23]                               // its operands
      llvm.call @kernel_0(%pool, %o3, %workspace)
"""

from __future__ import annotations

from ..kernel import GeneratedKernel
from ..plan import Callback, Launch, ProgramPlan

CELL_WORD, WORKSPACE_WORD, HEADER_WORDS = 0, 1, 2
SYMBOLS = ("nova_program", "nova_step")

_PHASE_TYPE = "(!llvm.ptr, !llvm.ptr, i64, i64) -> ()"
_PARALLEL_TYPE = "(!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> ()"
_DECLARATIONS = """
llvm.func @nova_enter(!llvm.ptr) -> !llvm.ptr
llvm.func @nova_leave(!llvm.ptr)
llvm.func @nova_stamp(!llvm.ptr, i64)
llvm.func @nova_parallel(!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64)
"""


def callback_symbols(plan: ProgramPlan) -> tuple[str, ...]:
    """The callbacks of a plan, each once, in order of their first call."""
    return tuple(dict.fromkeys(launch.symbol for launch in plan.launches if isinstance(launch, Callback)))


def operand_words(plan: ProgramPlan) -> tuple[int, ...]:
    """The block's word where each launch's pointers begin; one more for the block's size."""
    words = [HEADER_WORDS + len(callback_symbols(plan))]
    for launch in plan.launches:
        words.append(
            words[-1] + (0 if isinstance(launch, Callback) else len(launch.operands) + (launch.predicate is not None))
        )
    return tuple(words)


def phase_symbol(kernel: int, phase: int) -> str:
    """How the host program calls a kernel's phase; the kernels' own names may be the same in different texts."""
    return f"kernel_{kernel}_phase_{phase}"


def host_text(plan: ProgramPlan) -> str:
    """The module of a plan's host program."""
    parts = [_DECLARATIONS]
    parts += [_kernel_function(number, kernel) for number, kernel in enumerate(plan.kernels)]
    parts += [_program(plan), _step(len(plan.launches))]
    return "\n".join(parts)


def _kernel_function(number: int, kernel: GeneratedKernel) -> str:
    """Declarations of the phases, and a function that runs them with a barrier between."""
    lines = [f"llvm.func @{phase_symbol(number, p)}(!llvm.ptr, !llvm.ptr, i64, i64)" for p in range(len(kernel.phases))]
    lines.append(
        f"llvm.func internal @kernel_{number}(%pool: !llvm.ptr, %operands: !llvm.ptr, %workspace: !llvm.ptr) {{"
    )
    for p, phase in enumerate(kernel.phases):
        symbol = phase_symbol(number, p)
        if phase.tasks == 1:
            lines.append(f"  %z{p} = llvm.mlir.constant(0 : i64) : i64")
            lines.append(f"  llvm.call @{symbol}(%operands, %workspace, %z{p}, %z{p}) : {_PHASE_TYPE}")
        elif phase.tasks > 1:
            lines.append(f"  %f{p} = llvm.mlir.addressof @{symbol} : !llvm.ptr")
            lines.append(f"  %n{p} = llvm.mlir.constant({phase.tasks} : i64) : i64")
            lines.append(f"  llvm.call @nova_parallel(%pool, %f{p}, %operands, %workspace, %n{p}) : {_PARALLEL_TYPE}")
    return "\n".join([*lines, "  llvm.return", "}"])


def _program(plan: ProgramPlan) -> str:
    count = len(plan.launches)
    lines = ["llvm.func @nova_program(%block: !llvm.ptr, %first: i64, %last: i64, %stamps: !llvm.ptr) {"]
    lines += [_load_word("cell", CELL_WORD), _load_word("workspace", WORKSPACE_WORD)]
    lines.append("  %pool = llvm.call @nova_enter(%cell) : (!llvm.ptr) -> !llvm.ptr")
    lines.append("  llvm.call @nova_stamp(%stamps, %first) : (!llvm.ptr, i64) -> ()")
    entries = ",\n    ".join(f"{i}: ^launch_{i}" for i in range(count))
    lines.append(f"  llvm.switch %first : i64, ^end [\n    {entries}\n  ]" if count else "  llvm.br ^end")
    words = operand_words(plan)
    slots = {symbol: HEADER_WORDS + i for i, symbol in enumerate(callback_symbols(plan))}
    for index, launch in enumerate(plan.launches):
        lines.append(f"^launch_{index}:")
        if isinstance(launch, Callback):
            lines += [
                _load_word(f"callback{index}", slots[launch.symbol]),
                f"  %a{index} = llvm.mlir.constant({launch.argument} : i64) : i64",
            ]
            lines.append(f"  llvm.call %callback{index}(%a{index}) : !llvm.ptr, (i64) -> ()")
        else:
            lines += _launch(index, launch, words[index])
        lines += _after(index, count)
    lines += ["^end:", "  llvm.call @nova_leave(%pool) : (!llvm.ptr) -> ()", "  llvm.return", "}"]
    return "\n".join(lines)


def _launch(index: int, launch: Launch, word: int) -> list[str]:
    """A call of the kernel's function, jumped over where the predicate is set."""
    operands = f"%o{index} = llvm.getelementptr %block[{word}] : (!llvm.ptr) -> !llvm.ptr, i64"
    call = f"llvm.call @kernel_{launch.kernel}(%pool, %o{index}, %workspace) : (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> ()"
    if launch.predicate is None:
        return [f"  {operands}", f"  {call}"]
    return [
        _load_word(f"p{index}", word + len(launch.operands)),
        f"  %flag{index} = llvm.load %p{index} : !llvm.ptr -> i32",
        f"  %zero{index} = llvm.mlir.constant(0 : i32) : i32",
        f'  %skip{index} = llvm.icmp "ne" %flag{index}, %zero{index} : i32',
        f"  llvm.cond_br %skip{index}, ^after_{index}, ^call_{index}",
        f"^call_{index}:",
        f"  {operands}",
        f"  {call}",
        f"  llvm.br ^after_{index}",
        f"^after_{index}:",
    ]


def _after(index: int, count: int) -> list[str]:
    """The stamp of a launch, and the way to the next or out."""
    following = f"^launch_{index + 1}" if index + 1 < count else "^end"
    return [
        f"  %next{index} = llvm.mlir.constant({index + 1} : i64) : i64",
        f"  llvm.call @nova_stamp(%stamps, %next{index}) : (!llvm.ptr, i64) -> ()",
        f'  %last{index} = llvm.icmp "eq" %next{index}, %last : i64',
        f"  llvm.cond_br %last{index}, ^end, {following}",
    ]


def _step(count: int) -> str:
    return f"""llvm.func @nova_step(%block: !llvm.ptr) {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %count = llvm.mlir.constant({count} : i64) : i64
  %null = llvm.mlir.zero : !llvm.ptr
  llvm.call @nova_program(%block, %zero, %count, %null) : (!llvm.ptr, i64, i64, !llvm.ptr) -> ()
  llvm.return
}}"""


def _load_word(name: str, word: int) -> str:
    """Loads a pointer of the block."""
    place = f"  %{name}_at = llvm.getelementptr %block[{word}] : (!llvm.ptr) -> !llvm.ptr, i64"
    return f"{place}\n  %{name} = llvm.load %{name}_at : !llvm.ptr -> !llvm.ptr"
