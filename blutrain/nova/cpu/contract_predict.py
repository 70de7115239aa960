"""The time that a contract kernel is expected to take: the schedule's cycle model, or memory where that is slower."""

from __future__ import annotations

from blutrain.nova.cpu.configure_contract import balance, step_cycles
from blutrain.nova.cpu.contract_layout import Layout
from blutrain.nova.target import CpuFacts

BARRIER_US = 2.0  # a fork-join of the worker pool


def predict_microseconds(layout: Layout, bytes_: int, facts: CpuFacts) -> float:
    """Tiles of the busiest thread at the modelled cycles each, against `bytes_` at memory bandwidth."""
    schedule = layout.schedule
    if not layout.cells:
        return BARRIER_US
    tiles = layout.batch * layout.panels_m * layout.panels_n
    if layout.batch * schedule.split > 1:
        tasks = layout.cells * schedule.split
        share = tasks / (facts.threads * -(-tasks // facts.threads))
    else:
        share = balance(layout.panels_m, layout.panels_n, schedule.m_tasks, schedule.n_tasks, facts.threads)
    steps = tiles * layout.k / (facts.threads * share)
    cycles = steps * step_cycles(schedule.mr, schedule.nv, schedule.lanes, layout.item, facts)
    compute_us = cycles / (facts.ghz_estimate * 1e3)
    memory_us = bytes_ / (facts.mem_gb_s * 1e3)
    return BARRIER_US + max(compute_us, memory_us)
