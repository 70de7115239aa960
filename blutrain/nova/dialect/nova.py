"""Python classes of the operations of the dialect. MLIR's bindings load this module, named like the namespace, when
they first meet one.

Without a class of its own every touch of an operation costs 30 us (the bindings search for one each time), with one
1-3 us.
"""

from __future__ import annotations

from mlir.dialects._ods_common import _cext

from .definition import operation_names


@_cext.register_dialect
class _Dialect(_cext.ir.Dialect):
    DIALECT_NAMESPACE = "nova"


def _register(name: str) -> type:
    members = {"OPERATION_NAME": f"nova.{name}", "_ODS_REGIONS": (0, False), "__doc__": f"The operation nova.{name}."}
    return _cext.register_operation(_Dialect)(type(name, (_cext.ir.OpView,), members))


OPERATIONS: dict[str, type] = {}


def register_operations() -> None:
    """Make the classes that are missing: the table grows when blutrain.distributed is imported."""
    for name in operation_names():
        if name not in OPERATIONS:
            OPERATIONS[name] = _register(name)


register_operations()
