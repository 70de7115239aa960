"""Writes tensor_methods.pyi: what methods.py and autograd attach to Tensor, for editors and type checkers.

    python -m blutrain.tensor.write_stub

A test fails where the file is not what this writes.
"""

from __future__ import annotations

import inspect
import pathlib

HEADER = '''"""The attached methods of Tensor, for type checkers. Written by `python -m blutrain.tensor.write_stub`."""

from typing import Any

from .dtype import DType
from .tensor import Tensor

class TensorMethods:
'''
FILE = pathlib.Path(__file__).with_name("tensor_methods.pyi")
OPERATORS = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()


def stub() -> str:
    """The text of tensor_methods.pyi."""
    from .. import autograd  # noqa: F401  (attaches its methods)
    from .tensor import Tensor

    own = {n for n, v in vars(Tensor).items() if getattr(v, "__qualname__", "").startswith("Tensor.")}
    lines = []
    for name, value in sorted(vars(Tensor).items()):
        if name in own or name.startswith("__") or name in Tensor.__slots__:
            continue
        if isinstance(value, property):
            if value.fget.__module__ != "blutrain.tensor.tensor":
                lines.append(f"    @property\n    def {name}(self) -> Tensor: ...")
        elif callable(value):
            lines.append(f"    def {name}{_signature(value)}: ...")
    lines += [
        f"    def __{r}{n}__(self, other: Any) -> Tensor: ..."
        for n in OPERATORS
        for r in ("", "r", "i")
        if (r, n) != ("i", "matmul")
    ]
    lines += [f"    def __{n}__(self, other: Any) -> Tensor: ..." for n in ("lt", "le", "gt", "ge")]
    lines += [f"    def __{n}__(self, other: Any) -> Tensor: ...  # type: ignore[override]" for n in ("eq", "ne")]
    lines += [f"    def __{n}__(self) -> Tensor: ..." for n in ("neg", "pos", "abs", "invert")]
    lines.append("    def __getitem__(self, index: Any) -> Tensor: ...")
    lines.append("    def __setitem__(self, index: Any, value: Any) -> None: ...")
    return HEADER + "\n".join(lines) + "\n"


def _signature(function) -> str:
    """`(self, dim=..., ...) -> Tensor` without the annotations of parameters."""
    signature = inspect.signature(function)
    parameters = []
    for i, p in enumerate(signature.parameters.values()):
        if i == 0:
            parameters.append(inspect.Parameter("self", p.POSITIONAL_OR_KEYWORD))
        else:
            default = p.empty if p.default is p.empty else _Text("...")
            parameters.append(p.replace(default=default, annotation=_Text("Any")))
    result = signature.return_annotation
    result = (
        "Tensor"
        if result is signature.empty
        else result
        if result in ("Tensor", "None") or str(result).startswith("tuple")
        else "Any"
    )
    return str(inspect.Signature(parameters)) + f" -> {result}"


class _Text:
    """Shows as its text in a signature."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text


if __name__ == "__main__":
    FILE.write_text(stub())
