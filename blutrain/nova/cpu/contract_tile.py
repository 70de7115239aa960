"""The micro kernel: one register tile of the product from a panel of each factor."""

from __future__ import annotations

from blutrain.nova.cpu.configure_contract import K_UNROLL
from blutrain.nova.cpu.contract_builder import Module
from blutrain.nova.cpu.contract_layout import Layout
from blutrain.nova.emitter import lane_type
from blutrain.nova.kernel import ITEM_BYTES

ARGUMENTS = (
    ("%rows", "!llvm.ptr"),
    ("%columns", "!llvm.ptr"),
    ("%tile", "!llvm.ptr"),
    ("%steps", "i64"),
    ("%more", "i1"),
)


def emit_micro_kernel(module: Module, name: str, layout: Layout, accumulates: bool) -> None:
    """A function that writes the mr x nr tile at `tile` (row-major, dense); `steps` is a multiple of K_UNROLL.

    All sums stay in registers over the whole loop. Where `accumulates` and `more`, the tile is added to what is there.
    """
    out = module.builder()
    schedule, dtype, panel = layout.schedule, layout.dtype, layout.rows
    mr, nv, lanes = schedule.mr, schedule.nv, schedule.lanes
    item = ITEM_BYTES[dtype]
    type_, bytes_ = lane_type(dtype, lanes), lanes * item
    zeros = out.constant("0.0", type_)

    def step(k: str, sums: list[str]) -> list[str]:
        sums = list(sums)
        rows = out.pointer("%rows", out.mul(k, panel.k_step), dtype)
        columns = out.pointer("%columns", out.mul(k, schedule.nr), dtype)
        for u in range(K_UNROLL):
            vectors = [
                out.load(out.pointer(columns, u * schedule.nr + v * lanes, dtype), type_, bytes_) for v in range(nv)
            ]
            for i in range(mr):
                scalar = out.load(out.pointer(rows, u * panel.k_step + i * panel.row_step, dtype), dtype, item)
                row = out.value(f"vector.broadcast {scalar} : {dtype} to {type_}")
                for v in range(nv):
                    sums[i * nv + v] = out.value(f"vector.fma {row}, {vectors[v]}, {sums[i * nv + v]} : {type_}")
        return sums

    sums = out.loop(out.i64(0), "%steps", out.i64(K_UNROLL), step, [(zeros, type_)] * (mr * nv))
    places = [out.pointer("%tile", i * lanes, dtype) for i in range(mr * nv)]

    def write() -> None:
        for value, place in zip(sums, places, strict=True):
            out.store(value, place, type_, bytes_)

    def add() -> None:
        for value, place in zip(sums, places, strict=True):
            before = out.load(place, type_, bytes_)
            out.store(out.value(f"arith.addf {before}, {value} : {type_}"), place, type_, bytes_)

    more = "%more" if accumulates else False
    out.if_(out.not_(more), write)
    out.if_(more, add)
    module.add(name, ARGUMENTS, out)
