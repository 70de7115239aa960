"""An MLIR context for nova IR."""

from __future__ import annotations

import sys
from functools import cache

from mlir import ir
from mlir.dialects._ods_common import _cext

from ...tensor import ops  # noqa: F401  (fills the table)


@cache
def _find_classes() -> None:
    """Have MLIR's bindings find the Python classes of the operations (nova.py)."""
    _cext.globals.append_dialect_search_prefix(__name__.rpartition(".")[0])


def create_context() -> ir.Context:
    """A new single-threaded context that accepts the operations of the nova dialect."""
    _find_classes()
    if (classes := sys.modules.get(f"{__package__}.nova")) is not None:
        classes.register_operations()
    context = ir.Context()
    context.enable_multithreading(False)
    context.allow_unregistered_dialects = True
    return context
