"""nova: the JIT compiler. `model.compile()` and `nova.jit(function)` turn it on; see docs/architecture.md for the whole way.

Reading order: trace (what a program is made of), steps (the tree of recorded events), log and log_recording (what is
pending), record, record_calls, record_gradients and record_updates (events as user code causes them), compiled, jit, guards,
variables, keys and slots (when a step serves again), escapes and refuse (when it cannot), execute (the flush), retape and
open_graph (backward after it), interpret and program (the two executors); then import_trace, dialect, passes, kernel, clone,
contract, cpu and gpu (the compiler). Imports tensor, autograd's slot in dispatch and nn's Module; MLIR only below
import_trace, so that a program from the disk cache loads without it.
"""

from __future__ import annotations

import weakref

from ..nn.compile_options import CompileOptions
from ..nn.module import Module
from ..tensor import dispatch
from .compiled import Compiled
from .explain import explain
from .jit import jit
from .program import settle
from .record import Recorder
from .refuse import NovaWarning, forget_warnings

__all__ = ["NovaWarning", "explain", "flush", "forget_warnings", "install", "jit", "recorder"]


def install(module: Module, options: CompileOptions) -> Compiled:
    """Turn recording on for `module`; called by Module.compile."""
    if not isinstance(dispatch.recorder, Recorder):
        dispatch.recorder = Recorder()
    flush()
    if module._compiled is not None:
        dispatch.recorder.forget(module._compiled.token)
    compiled = Compiled(module, options)
    weakref.finalize(module, dispatch.recorder.forget, compiled.token).atexit = False
    return compiled


def recorder() -> Recorder | None:
    """The process's recorder, None before the first compile()."""
    return dispatch.recorder if isinstance(dispatch.recorder, Recorder) else None


def flush() -> None:
    """Execute what is pending now, and wait for the value checks of steps that run on a GPU."""
    current = recorder()
    if current is not None:
        current.flush()
        settle()
