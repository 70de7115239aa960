"""Matrix products as programs of their own, on a CPU or a GPU: what matmul.py and configurator.py time."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import torch
from contract_harness import context, parse_kernel
from hopper_kernels import plain
from mlir import ir

from blutrain.nova.kernel import Kernel
from blutrain.nova.plan import BufferRef, InputSpec, Launch, OutputSpec, ProgramPlan

TORCH = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
ELEMENT = {"fp32": "f32", "tf32": "f32", "bf16": "bf16"}


@dataclass(frozen=True)
class Product:
    """C[m, n] of A and B, each stored as its letter of `layout` says: N as it is multiplied, T transposed.

    Operands and result are of one type: f32 (precision fp32, tf32) or bf16.
    """

    layout: str
    m: int
    n: int
    k: int
    precision: str

    @classmethod
    def parse(cls, text: str, precision: str) -> Product:
        """Of "NT:8192x1536x384"."""
        layout, _, extents = text.partition(":")
        m, n, k = map(int, extents.split("x"))
        return cls(layout, m, n, k, precision)

    def __str__(self) -> str:
        return f"{self.precision} {self.layout} {self.m}x{self.n}x{self.k}"

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Of A, B and C as they lie in memory."""
        a = (self.m, self.k) if self.layout[0] == "N" else (self.k, self.m)
        b = (self.k, self.n) if self.layout[1] == "N" else (self.n, self.k)
        return a, b, (self.m, self.n)

    def read(self, function: Callable[[Kernel], Any]) -> Any:
        """What `function` makes of the product's kernel, whose IR lives as long as the call."""
        text = plain(self.layout, self.m, self.n, self.k, self.precision)
        with context(), ir.Location.unknown():
            kernel, _module = parse_kernel(text)
            return function(kernel)

    def plan(self, generated: Any, repeats: int = 1) -> ProgramPlan:
        """A program that runs a generated kernel `repeats` times."""
        places = BufferRef("input", 0), BufferRef("input", 1), BufferRef("output", 0)
        a, b, c = self.shapes
        dtype = ELEMENT[self.precision]
        return ProgramPlan(
            kernels=(generated,),
            launches=(Launch(0, places, label=str(self)),) * repeats,
            arena_bytes=0,
            inputs=(InputSpec(a, dtype, "state"), InputSpec(b, dtype, "state")),
            outputs=(OutputSpec(c, dtype),),
        )

    def operands(self, device: str, seed: int = 0) -> list[torch.Tensor]:
        """A, B and room for C."""
        generator = torch.Generator(device).manual_seed(seed)
        dtype, (a, b, c) = TORCH[self.precision], self.shapes
        made = [torch.randn(shape, generator=generator, device=device, dtype=dtype) for shape in (a, b)]
        return [*made, torch.full(c, float("nan"), device=device, dtype=dtype)]

    def factors(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A and B as views that torch multiplies."""
        return (a if self.layout[0] == "N" else a.t()), (b if self.layout[1] == "N" else b.t())

    def reference(self, operands: Sequence[torch.Tensor], rows: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers of some rows of C, and those rows in float64."""
        a, b = self.factors(*operands[:2])
        chosen = torch.arange(0, self.m, max(1, self.m // rows), device=a.device)[:rows]
        return chosen, a[chosen].double() @ b.double()


def error(c: torch.Tensor, reference: tuple[torch.Tensor, torch.Tensor]) -> float:
    """max |C - C64| / max |C64| over the rows of the reference."""
    chosen, want = reference
    return ((c[chosen].double() - want).abs().max() / want.abs().max()).item()


def bind(executable: Any, operands: Sequence[torch.Tensor]) -> Callable[[], None]:
    """A call that runs the program on these operands."""
    for index, tensor in enumerate(operands[:2]):
        executable.bind(index, tensor.data_ptr())
    executable.bind_output(0, operands[2].data_ptr())
    return executable.launch


def pick(product: Product, facts: Any, family: str = "") -> Any:
    """The generated kernel under the configurator's schedule, of the first generator that takes it or of `family`."""
    from blutrain.nova.cpu import contract as cpu
    from blutrain.nova.gpu import generate as gpu

    def make(kernel: Kernel) -> Any:
        if not hasattr(facts, "arch"):
            return cpu.generate(kernel, facts, cpu.configure(kernel, facts))
        module = import_module(f"blutrain.nova.gpu.{family}.contract") if family else gpu.choose(kernel, facts)
        return dataclasses.replace(
            module.generate(kernel, facts, module.configure(kernel, facts)), unit=product.precision
        )

    return product.read(make)
