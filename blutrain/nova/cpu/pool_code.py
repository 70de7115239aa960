"""The code of the thread pool, in the llvm dialect: workers that claim tasks, and the fork-join that hands tasks out.

One control block in memory serves a pool; each group of fields has a cache line pair (128 bytes) of its own:

    TICKETS    number of tasks in the high 32 bits, next task in the low 32 bits
    DONE       tasks that are finished
    JOB        function, operands, workspace
    SLEEPERS   workers that wait on the condition; STOP, one word later, not zero: workers return
    BUSY       1 while a program owns the pool
    MUTEX, CONDITION    pthread objects

A claim is one atomic increment of TICKETS, and its old value says everything: task i of n, valid if i < n. A valid
claim keeps the launching thread in its phase until DONE says that the task is finished, so a worker may read JOB
after it; a worker that comes late finds no valid ticket, and nobody waits for it. Idle workers spin for
SPIN_NANOSECONDS, then sleep: SLEEPERS is raised before TICKETS is looked at again, TICKETS is published before
SLEEPERS is read (both sequentially consistent), so a wake-up cannot be lost. Only pthread and clock functions are
called, on Linux and macOS alike.
"""

from __future__ import annotations

TICKETS, DONE, JOB, SLEEPERS, BUSY, MUTEX, CONDITION = range(0, 7 * 128, 128)
STOP = SLEEPERS + 8
CONTROL_BYTES = 7 * 128
SPIN_NANOSECONDS = 150_000
SYMBOLS = ("nova_pool_init", "nova_worker", "nova_stop", "nova_enter", "nova_leave", "nova_parallel", "nova_stamp")

_PAUSES_PER_CLOCK = 32
_PAUSES_PER_YIELD = 4096  # the launching thread waits for a worker that may have lost its core


def pool_text(triple: str) -> str:
    """The module, for a target: only the pause instruction and the number of the monotonic clock differ."""
    is_x86 = triple.startswith("x86_64")
    pause = 'llvm.call_intrinsic "llvm.x86.sse2.pause"() : () -> ()'
    if not is_x86:  # ISB waits for some ten cycles; YIELD does nothing on most cores
        pause = '%sy = llvm.mlir.constant(15 : i32) : i32\n  llvm.call_intrinsic "llvm.aarch64.isb"(%sy) : (i32) -> ()'
    clock = 6 if "darwin" in triple or "macos" in triple else 1
    return _DECLARATIONS + _pause(pause) + _now(clock) + _SLEEP + _CLAIM + _WORKER + _PARALLEL + _PROGRAM


def _field(name: str, offset: int) -> str:
    return f"%{name} = llvm.getelementptr %control[{offset}] : (!llvm.ptr) -> !llvm.ptr, i8\n  "


def _pause(instruction: str) -> str:
    return f"llvm.func internal @pause() {{\n  {instruction}\n  llvm.return\n}}\n"


def _now(clock: int) -> str:
    return f"""
llvm.func internal @now() -> i64 {{
  %one = llvm.mlir.constant(1 : i64) : i64
  %clock = llvm.mlir.constant({clock} : i32) : i32
  %billion = llvm.mlir.constant(1000000000 : i64) : i64
  %time = llvm.alloca %one x !llvm.struct<(i64, i64)> : (i64) -> !llvm.ptr
  %status = llvm.call @clock_gettime(%clock, %time) : (i32, !llvm.ptr) -> i32
  %seconds = llvm.load %time : !llvm.ptr -> i64
  %rest = llvm.getelementptr %time[8] : (!llvm.ptr) -> !llvm.ptr, i8
  %nanoseconds = llvm.load %rest : !llvm.ptr -> i64
  %scaled = llvm.mul %seconds, %billion : i64
  %sum = llvm.add %scaled, %nanoseconds : i64
  llvm.return %sum : i64
}}
"""


_DECLARATIONS = f"""
llvm.func @clock_gettime(i32, !llvm.ptr) -> i32
llvm.func @sched_yield() -> i32
llvm.func @pthread_mutex_init(!llvm.ptr, !llvm.ptr) -> i32
llvm.func @pthread_mutex_lock(!llvm.ptr) -> i32
llvm.func @pthread_mutex_unlock(!llvm.ptr) -> i32
llvm.func @pthread_cond_init(!llvm.ptr, !llvm.ptr) -> i32
llvm.func @pthread_cond_wait(!llvm.ptr, !llvm.ptr) -> i32
llvm.func @pthread_cond_broadcast(!llvm.ptr) -> i32

llvm.func @nova_pool_init(%control: !llvm.ptr) {{
  %null = llvm.mlir.zero : !llvm.ptr
  {_field("mutex", MUTEX)}{_field("condition", CONDITION)}
  %0 = llvm.call @pthread_mutex_init(%mutex, %null) : (!llvm.ptr, !llvm.ptr) -> i32
  %1 = llvm.call @pthread_cond_init(%condition, %null) : (!llvm.ptr, !llvm.ptr) -> i32
  llvm.return
}}

"""

_SLEEP = f"""
// Is there a task to claim, or a reason to leave?
llvm.func internal @is_wanted(%control: !llvm.ptr) -> i1 {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %half = llvm.mlir.constant(32 : i64) : i64
  {_field("stop", STOP)}
  %ticket = llvm.load %control atomic seq_cst {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %tasks = llvm.lshr %ticket, %half : i64
  %low = llvm.shl %ticket, %half : i64
  %next = llvm.lshr %low, %half : i64
  %has_task = llvm.icmp "ult" %next, %tasks : i64
  %stopping = llvm.load %stop atomic seq_cst {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %is_stopping = llvm.icmp "ne" %stopping, %zero : i64
  %wanted = llvm.or %has_task, %is_stopping : i1
  llvm.return %wanted : i1
}}

// Waits on the condition until wanted.
llvm.func internal @sleep(%control: !llvm.ptr) {{
  %one = llvm.mlir.constant(1 : i64) : i64
  {_field("sleepers", SLEEPERS)}{_field("mutex", MUTEX)}{_field("condition", CONDITION)}
  %0 = llvm.call @pthread_mutex_lock(%mutex) : (!llvm.ptr) -> i32
  %1 = llvm.atomicrmw add %sleepers, %one seq_cst : !llvm.ptr, i64
  llvm.br ^check
^check:
  %wanted = llvm.call @is_wanted(%control) : (!llvm.ptr) -> i1
  llvm.cond_br %wanted, ^awake, ^wait
^wait:
  %2 = llvm.call @pthread_cond_wait(%condition, %mutex) : (!llvm.ptr, !llvm.ptr) -> i32
  llvm.br ^check
^awake:
  %3 = llvm.atomicrmw sub %sleepers, %one seq_cst : !llvm.ptr, i64
  %4 = llvm.call @pthread_mutex_unlock(%mutex) : (!llvm.ptr) -> i32
  llvm.return
}}

llvm.func internal @wake(%control: !llvm.ptr) {{
  {_field("mutex", MUTEX)}{_field("condition", CONDITION)}
  %0 = llvm.call @pthread_mutex_lock(%mutex) : (!llvm.ptr) -> i32
  %1 = llvm.call @pthread_cond_broadcast(%condition) : (!llvm.ptr) -> i32
  %2 = llvm.call @pthread_mutex_unlock(%mutex) : (!llvm.ptr) -> i32
  llvm.return
}}

llvm.func @nova_stop(%control: !llvm.ptr) {{
  %one = llvm.mlir.constant(1 : i64) : i64
  {_field("stop", STOP)}
  llvm.store %one, %stop atomic seq_cst {{alignment = 8 : i64}} : i64, !llvm.ptr
  llvm.call @wake(%control) : (!llvm.ptr) -> ()
  llvm.return
}}
"""

_CLAIM = f"""
// Claims and runs tasks until none is left; then adds the number of them to DONE.
llvm.func internal @run_tasks(%control: !llvm.ptr, %worker: i64) {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %half = llvm.mlir.constant(32 : i64) : i64
  {_field("done", DONE)}{_field("job", JOB)}{_field("job_operands", JOB + 8)}{_field("job_workspace", JOB + 16)}
  llvm.br ^claim(%zero : i64)
^claim(%count: i64):
  %ticket = llvm.atomicrmw add %control, %one acq_rel : !llvm.ptr, i64
  %tasks = llvm.lshr %ticket, %half : i64
  %low = llvm.shl %ticket, %half : i64
  %task = llvm.lshr %low, %half : i64
  %is_valid = llvm.icmp "ult" %task, %tasks : i64
  llvm.cond_br %is_valid, ^run, ^report
^run:
  %function = llvm.load %job : !llvm.ptr -> !llvm.ptr
  %operands = llvm.load %job_operands : !llvm.ptr -> !llvm.ptr
  %workspace = llvm.load %job_workspace : !llvm.ptr -> !llvm.ptr
  llvm.call %function(%operands, %workspace, %task, %worker) : !llvm.ptr, (!llvm.ptr, !llvm.ptr, i64, i64) -> ()
  %more = llvm.add %count, %one : i64
  llvm.br ^claim(%more : i64)
^report:
  %ran = llvm.icmp "ne" %count, %zero : i64
  llvm.cond_br %ran, ^add, ^end
^add:
  %0 = llvm.atomicrmw add %done, %count acq_rel : !llvm.ptr, i64
  llvm.br ^end
^end:
  llvm.return
}}
"""

_WORKER = f"""
// The life of a worker: spin, run tasks or sleep, until stopped.
llvm.func @nova_worker(%control: !llvm.ptr, %worker: i64) {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %budget = llvm.mlir.constant({SPIN_NANOSECONDS} : i64) : i64
  %interval = llvm.mlir.constant({_PAUSES_PER_CLOCK} : i64) : i64
  {_field("stop", STOP)}
  llvm.br ^idle
^idle:
  %since = llvm.call @now() : () -> i64
  llvm.br ^spin(%zero : i64)
^spin(%pauses: i64):
  %wanted = llvm.call @is_wanted(%control) : (!llvm.ptr) -> i1
  llvm.cond_br %wanted, ^work, ^pause
^pause:
  llvm.call @pause() : () -> ()
  %next = llvm.add %pauses, %one : i64
  %is_short = llvm.icmp "ult" %next, %interval : i64
  llvm.cond_br %is_short, ^spin(%next : i64), ^clock
^clock:
  %time = llvm.call @now() : () -> i64
  %idle = llvm.sub %time, %since : i64
  %is_hot = llvm.icmp "ult" %idle, %budget : i64
  llvm.cond_br %is_hot, ^spin(%zero : i64), ^sleep
^sleep:
  llvm.call @sleep(%control) : (!llvm.ptr) -> ()
  llvm.br ^work
^work:
  %stopping = llvm.load %stop atomic acquire {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %is_stopping = llvm.icmp "ne" %stopping, %zero : i64
  llvm.cond_br %is_stopping, ^end, ^run
^run:
  llvm.call @run_tasks(%control, %worker) : (!llvm.ptr, i64) -> ()
  llvm.br ^idle
^end:
  llvm.return
}}
"""

_PARALLEL = f"""
// Runs all tasks of one phase. A null control block (no pool, or another program owns it) means: alone, in order.
llvm.func @nova_parallel(
    %control: !llvm.ptr, %function: !llvm.ptr, %operands: !llvm.ptr, %workspace: !llvm.ptr, %tasks: i64) {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %half = llvm.mlir.constant(32 : i64) : i64
  %patience = llvm.mlir.constant({_PAUSES_PER_YIELD} : i64) : i64
  %null = llvm.mlir.zero : !llvm.ptr
  {_field("done", DONE)}{_field("job", JOB)}{_field("job_operands", JOB + 8)}{_field("job_workspace", JOB + 16)}
  {_field("sleepers", SLEEPERS)}
  %is_alone = llvm.icmp "eq" %control, %null : !llvm.ptr
  llvm.cond_br %is_alone, ^serial(%zero : i64), ^publish
^serial(%task: i64):
  %has_task = llvm.icmp "ult" %task, %tasks : i64
  llvm.cond_br %has_task, ^call, ^end
^call:
  llvm.call %function(%operands, %workspace, %task, %zero) : !llvm.ptr, (!llvm.ptr, !llvm.ptr, i64, i64) -> ()
  %following = llvm.add %task, %one : i64
  llvm.br ^serial(%following : i64)
^publish:
  llvm.store %function, %job : !llvm.ptr, !llvm.ptr
  llvm.store %operands, %job_operands : !llvm.ptr, !llvm.ptr
  llvm.store %workspace, %job_workspace : !llvm.ptr, !llvm.ptr
  llvm.store %zero, %done atomic monotonic {{alignment = 8 : i64}} : i64, !llvm.ptr
  %tickets = llvm.shl %tasks, %half : i64
  %0 = llvm.atomicrmw xchg %control, %tickets seq_cst : !llvm.ptr, i64
  %asleep = llvm.load %sleepers atomic seq_cst {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %has_sleepers = llvm.icmp "ne" %asleep, %zero : i64
  llvm.cond_br %has_sleepers, ^rouse, ^share
^rouse:
  llvm.call @wake(%control) : (!llvm.ptr) -> ()
  llvm.br ^share
^share:
  llvm.call @run_tasks(%control, %zero) : (!llvm.ptr, i64) -> ()
  llvm.br ^join(%zero : i64)
^join(%pauses: i64):
  %finished = llvm.load %done atomic acquire {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %is_done = llvm.icmp "eq" %finished, %tasks : i64
  llvm.cond_br %is_done, ^end, ^pause
^pause:
  llvm.call @pause() : () -> ()
  %next = llvm.add %pauses, %one : i64
  %is_patient = llvm.icmp "ult" %next, %patience : i64
  llvm.cond_br %is_patient, ^join(%next : i64), ^yield
^yield:
  %1 = llvm.call @sched_yield() : () -> i32
  llvm.br ^join(%zero : i64)
^end:
  llvm.return
}}
"""

_PROGRAM = f"""
// Takes the pool for a program. The cell holds the control block's address or null; null comes back from a taken pool.
llvm.func @nova_enter(%cell: !llvm.ptr) -> !llvm.ptr {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %null = llvm.mlir.zero : !llvm.ptr
  %control = llvm.load %cell : !llvm.ptr -> !llvm.ptr
  %is_alone = llvm.icmp "eq" %control, %null : !llvm.ptr
  llvm.cond_br %is_alone, ^end(%null : !llvm.ptr), ^take
^take:
  {_field("busy", BUSY)}
  %was = llvm.atomicrmw xchg %busy, %one acq_rel : !llvm.ptr, i64
  %is_free = llvm.icmp "eq" %was, %zero : i64
  %taken = llvm.select %is_free, %control, %null : i1, !llvm.ptr
  llvm.br ^end(%taken : !llvm.ptr)
^end(%result: !llvm.ptr):
  llvm.return %result : !llvm.ptr
}}

llvm.func @nova_leave(%control: !llvm.ptr) {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %null = llvm.mlir.zero : !llvm.ptr
  %is_alone = llvm.icmp "eq" %control, %null : !llvm.ptr
  llvm.cond_br %is_alone, ^end, ^give
^give:
  {_field("busy", BUSY)}
  llvm.store %zero, %busy atomic release {{alignment = 8 : i64}} : i64, !llvm.ptr
  llvm.br ^end
^end:
  llvm.return
}}

// Writes the time in nanoseconds to stamps[index], unless stamps is null.
llvm.func @nova_stamp(%stamps: !llvm.ptr, %index: i64) {{
  %null = llvm.mlir.zero : !llvm.ptr
  %is_off = llvm.icmp "eq" %stamps, %null : !llvm.ptr
  llvm.cond_br %is_off, ^end, ^write
^write:
  %time = llvm.call @now() : () -> i64
  %place = llvm.getelementptr %stamps[%index] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  llvm.store %time, %place : i64, !llvm.ptr
  llvm.br ^end
^end:
  llvm.return
}}
"""
