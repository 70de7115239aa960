"""Asks something about many kernels at once, in the compile workers: schedules and code are most of what compiling
costs, and nothing outside a kernel matters to them.

    schedules = ask(schedule_of, kernel_ops, facts)     # [schedule_of(op, facts) for op in kernel_ops]

This file is the workers' "lowering" too (`cpu/compile_worker.py`), so it is loaded by its path there.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from mlir import ir
from mlir.dialects import func

from blutrain.nova.cpu.compile_workers import Further, shared_workers
from blutrain.nova.dialect import create_context
from blutrain.nova.target import num_threads

LEAST = 8  # kernels; fewer are not worth the way

Answer = Callable[[ir.Operation, Any], Any]  # a function of a module, of (kernel, facts); its result can be pickled


class LoweringError(Exception):
    """What `answer` raised: it is asked again in the user's process, which raises it where it belongs."""

    def __init__(self, stage: str, message: str):
        super().__init__(message)
        self.stage, self.message = stage, message


def ask(
    answer: Answer,
    ops: Sequence[ir.Operation],
    facts: Any,
    then: Callable[[Any], Further | None] | None = None,
    also: Sequence[Further] = (),
) -> list[Any]:
    """`answer(op, facts)` of each kernel, in order. then(an answer), also: what the workers are to do besides, where they
    are asked at all (see `CompileWorkers.compile`). Errors: those of `answer`.
    """
    if len(ops) < LEAST:
        return [answer(op, facts) for op in ops]
    texts = [_alone(op) for op in ops]
    # Products first: their code is short here and the longest to assemble. Then the longest, as always.
    order = sorted(range(len(ops)), key=lambda i: (_is_product(ops[i]), len(texts[i])), reverse=True)
    known: dict[int, Any] = {}

    def go_on(place: int, reply: bytes) -> Further | None:
        known[order[place]] = pickle.loads(reply)
        return then(known[order[place]]) if then is not None else None

    shared_workers(num_threads()).compile([(__file__, (texts[i], answer, facts)) for i in order], go_on, also)
    return [known[i] if i in known else answer(op, facts) for i, op in enumerate(ops)]


def _is_product(op: ir.Operation) -> bool:
    return ir.StringAttr(op.attributes["anchor"]).value == "contract"


def _alone(op: ir.Operation) -> str:
    """A module with this kernel in a function whose arguments are its operands."""
    with op.context, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("alone", ([operand.type for operand in op.operands], []))
        block = function.add_entry_block()
        with ir.InsertionPoint(block):
            copy = op.clone()
            for number, argument in enumerate(block.arguments):
                copy.operands[number] = argument
            func.ReturnOp([])
        return str(module.operation.get_asm(print_generic_op_form=True, enable_debug_info=False, assume_verified=True))


def compile_text(text: str, answer: Answer, facts: Any) -> bytes:
    """In a worker: the pickled answer about the kernel in `text`."""
    with _context(), ir.Location.unknown():
        try:
            module = ir.Module.parse(text)
            (function,) = module.body.operations
            kernel = function.regions[0].blocks[0].operations[0].operation
            return pickle.dumps(answer(kernel, facts), protocol=5)
        except Exception as error:
            raise LoweringError("ask", f"{type(error).__name__}: {error}") from error


@functools.cache
def _context() -> ir.Context:
    return create_context()
