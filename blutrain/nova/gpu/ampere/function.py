"""Kernel functions around bodies: parameters, the predicate, and the layout printed beside them."""

from __future__ import annotations

from blutrain.nova.gpu.hopper.builder import Builder
from blutrain.nova.kernel import Kernel

_SHARED = "llvm.mlir.global external @shared() {addr_space = 3 : i32, alignment = 1024 : i64, dso_local} : !llvm.array<0 x i8>"
# A kernel whose predicate is set returns at once.
_GUARD = """  %none = llvm.mlir.zero : !llvm.ptr
  %guarded = llvm.icmp "ne" %predicate, %none : !llvm.ptr
  llvm.cond_br %guarded, ^check, ^body
^check:
  %flag = llvm.load %predicate : !llvm.ptr -> i32
  %unset = llvm.mlir.constant(0 : i32) : i32
  %skipped = llvm.icmp "ne" %flag, %unset : i32
  llvm.cond_br %skipped, ^exit, ^body
"""


class Functions:
    """The functions of one kernel; all take its pointers, then the workspace and the predicate."""

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.texts: list[str] = []

    def add(self, symbol: str, out: Builder, threads: int, layout: str = "", min_blocks: int = 1) -> None:
        """The function around a body; `min_blocks` of them share a multiprocessor, which limits their registers."""
        pointers = [f"%p{i}: !llvm.ptr" for i in range(len(self.kernel.operands) + len(self.kernel.results))]
        attributes = [
            "gpu.kernel",
            "nvvm.kernel",
            f"nvvm.reqntid = array<i32: {threads}>",
            f"nvvm.minctasm = {min_blocks} : i32",
            *([f'nova.layout = "{layout}"'] if layout else []),
        ]
        parameters = ", ".join([*pointers, "%workspace: !llvm.ptr", "%predicate: !llvm.ptr"])
        self.texts.append(
            f"llvm.func @{symbol}({parameters}) attributes {{{', '.join(attributes)}}} {{\n{_GUARD}^body:\n"
            f"{out.function_body()}\n  llvm.br ^exit\n^exit:\n  llvm.return\n}}"
        )

    def text(self) -> str:
        return "\n".join(["gpu.module @kernels {", _SHARED, *self.texts, "}\n"])
