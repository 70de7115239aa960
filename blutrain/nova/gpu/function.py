"""Text of a kernel function around its body, and of the module around functions; parameters as `kernel` has them."""

from __future__ import annotations

from collections.abc import Sequence

from blutrain.nova.cpu.emit import POINTER


def function_text(symbol: str, parameters: Sequence[str], attributes: Sequence[str], threads: int, body: str) -> str:
    """A function for blocks of `threads`; it returns at once where its predicate, the last parameter, is set."""
    attributes = ["nvvm.kernel", f"nvvm.reqntid = array<i32: {threads}>", *attributes]
    return f"""llvm.func @{symbol}({", ".join([*parameters, f"%predicate: {POINTER}"])}) attributes {{{", ".join(attributes)}}} {{
  %null = llvm.mlir.zero : {POINTER}
  %has_predicate = llvm.icmp "ne" %predicate, %null : {POINTER}
  llvm.cond_br %has_predicate, ^look, ^body
^look:
  %flag = llvm.load %predicate : {POINTER} -> i32
  %unset = llvm.mlir.constant(0 : i32) : i32
  %is_set = llvm.icmp "ne" %flag, %unset : i32
  llvm.cond_br %is_set, ^done, ^body
^body:
{body}
  llvm.br ^done
^done:
  llvm.return
}}"""


def module_text(parts: Sequence[str]) -> str:
    """The module of some functions, and of what they declare."""
    return "gpu.module @kernels {\n" + "\n".join(parts) + "\n}\n"
