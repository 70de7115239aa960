"""Contract kernels on a CPU: packed, register-tiled vector code, parallel over tasks.

Phases, left out where there is nothing to do:

    pack      the factors that several tasks read, as a whole, into the workspace
    product   each task one cell of the grid batch x m x n (x cuts of k): pack what is not packed yet, multiply, finish
    gather    only with cuts of k: add the cuts' tiles in order, finish
    columns   only with reductions over rows: combine the tasks' partial values in order

"Finish" is the epilogue and the stores of one tile. Reading order: contract_form (what is computed),
configure_contract (the schedule), contract_layout (sizes, workspace), contract_pack, contract_tile and
contract_finish (the inner functions), contract_phases (the loops around them).
"""

from __future__ import annotations

from blutrain.nova.clone import check_block
from blutrain.nova.contract.combine import Combiner
from blutrain.nova.contract.read import read_contract
from blutrain.nova.cpu import configure_contract
from blutrain.nova.cpu.configure_contract import ContractSchedule
from blutrain.nova.cpu.contract_builder import Module
from blutrain.nova.cpu.contract_finish import emit_columns_phase, emit_finish
from blutrain.nova.cpu.contract_layout import Layout
from blutrain.nova.cpu.contract_pack import emit_pack
from blutrain.nova.cpu.contract_phases import emit_gather_phase, emit_pack_phase, emit_product_phase
from blutrain.nova.cpu.contract_predict import predict_microseconds
from blutrain.nova.cpu.contract_tile import emit_micro_kernel
from blutrain.nova.kernel import GeneratedKernel, Kernel, Phase, Unsupported
from blutrain.nova.target import CpuFacts


def supports(kernel: Kernel) -> str | None:
    """None, or why this generator does not take the kernel."""
    try:
        contract = read_contract(kernel)
        for generic in kernel.generics:
            check_block(generic.block)
        for reduction in contract.reductions:
            Combiner(reduction)
    except Unsupported as reason:
        return str(reason)
    return None


def configure(kernel: Kernel, facts: CpuFacts) -> dict[str, int | bool]:
    """The schedule, as entries of `#nova.lowering_config`: the fields of `ContractSchedule`."""
    return configure_contract.configure(read_contract(kernel), facts).to_config()


def generate(kernel: Kernel, facts: CpuFacts, config: dict[str, int | bool]) -> GeneratedKernel:
    """The kernel's code under a schedule. Raises `Unsupported` where `supports` gives a reason."""
    contract = read_contract(kernel)
    layout = Layout(contract, ContractSchedule.from_config(config), facts.threads)
    module, phases = Module(), []

    def name(part: str) -> str:
        return f"{kernel.symbol}_{part}"

    if layout.cells:
        emit_pack(module, name("pack_rows"), contract, contract.rows, layout.rows)
        emit_pack(module, name("pack_columns"), contract, contract.columns, layout.columns)
        emit_micro_kernel(module, name("tile"), layout, accumulates=layout.blocks > 1)
        emit_finish(module, name("finish"), layout)
        if layout.schedule.share_rows or layout.schedule.share_columns:
            phases.append(Phase(name("pack"), emit_pack_phase(module, name, layout)))
        phases.append(Phase(name("product"), emit_product_phase(module, name, layout)))
        if layout.schedule.split > 1:
            phases.append(Phase(name("gather"), emit_gather_phase(module, name, layout)))
    if contract.reductions and layout.n:
        phases.append(Phase(name("columns"), emit_columns_phase(module, name("columns"), layout)))
    return GeneratedKernel(
        text=module.text(),
        phases=tuple(phases),
        workspace_bytes=layout.workspace_bytes if phases else 0,
        bytes=kernel.bytes,
        flops=kernel.flops,
        predicted_us=predict_microseconds(layout, kernel.bytes, facts),
    )
