"""Compiles the training step of MLP-GPT for a GPU that need not be there, and prints a row for each kernel.

    python -m blutrain.nova.aot --target sm_90a --preset 46M --precision tf32 [--json]

The step is recorded from shapes (`aot_record.py`), goes through the passes of GPUs with the target's facts from the
table, and every kernel is assembled; the exit status is 1 where one does not assemble, or where the code of a product
spills or waits for itself (`gpu/assemble_report.py`). Run it in the project's root: the model is that of the example.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from ..errors import NovaError
from ..tensor.aval import Aval
from ..tensor.device import Device
from ..tensor.dtype import int64
from .gpu.assemble import AssembledKernel, assemble, plan_jobs
from .plan import Launch, ProgramPlan
from .target_gpu import ARCHITECTURES, GpuFacts, gpu_facts
from .trace import Trace


def main(argv: list[str] | None = None) -> int:
    """The command. Returns its exit status."""
    options = _parse(argv)
    facts, start = gpu_facts(options.target), time.perf_counter()
    trace = preset_trace(options.preset, options.precision, options.batch_size, options.block_size)
    recorded = time.perf_counter()
    try:
        plan = compile_for(trace, facts, options.precision)
        planned = time.perf_counter()
        assembled = assemble(plan_jobs(plan))
    except NovaError as error:
        print(error, file=sys.stderr)
        return 1
    seconds = {"record": recorded - start, "passes": planned - recorded, "assemble": time.perf_counter() - planned}
    if options.dump:
        _dump(Path(options.dump), plan, assembled)
    report = {
        **{name: getattr(options, name) for name in ("target", "preset", "precision", "batch_size", "block_size")},
        "launches": len(plan.launches),
        "arena_bytes": plan.arena_bytes,
        "workspace_bytes": max((kernel.workspace_bytes for kernel in plan.kernels), default=0),
        "predicted_us": sum(map(plan.predicted_us, plan.launches)),
        "seconds": seconds,
        "kernels": kernel_rows(plan, assembled, facts),
    }
    print(json.dumps(report, indent=1) if options.json else _as_text(report))
    return 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m blutrain.nova.aot", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    add = parser.add_argument
    add("--target", choices=ARCHITECTURES, default="sm_90a")
    add("--preset", default="46M", help="a preset of examples/gpt_mlp/model.py")
    add("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    add("--batch-size", type=int, default=8)
    add("--block-size", type=int, default=1024, help="tokens a window")
    add("--json", action="store_true", help="JSON instead of a table")
    add("--dump", metavar="DIR", help="write text, PTX, machine code and ptxas's report of every kernel there")
    return parser.parse_args(argv)


def preset_trace(preset: str, precision: str, batch_size: int, block_size: int) -> Trace:
    """The trace of a preset's training step with AdamW, as on a GPU. Errors: ValueError for an unknown preset."""
    from .. import optim
    from .aot_record import record_step, shapes_only

    try:
        example = importlib.import_module("examples.gpt_mlp.model")
    except ModuleNotFoundError:
        raise ValueError("aot: run it in the project's root, where examples/gpt_mlp is") from None
    if preset not in example.PRESETS:
        raise ValueError(f"aot: no preset {preset!r}; known are {', '.join(example.PRESETS)}")
    width, layers = example.PRESETS[preset]
    with shapes_only():
        model = example.MLPGPT(example.Config(example.PRESET_VOCAB_SIZE, block_size, width, layers))
        optimizer = optim.AdamW(model.parameters(), lr=3e-4)
    tokens = Aval((batch_size, block_size), int64)
    return record_step(model, optimizer, [tokens, tokens], device=Device("cuda"), precision=precision)


def compile_for(trace: Trace, facts: GpuFacts, precision: str) -> ProgramPlan:
    """The plan of a trace for a GPU that need not be there. Errors: NovaError."""
    from .compile import compile_plan

    plan, _ = compile_plan(trace, facts, precision, None)
    plan.check()
    return plan


def kernel_rows(plan: ProgramPlan, assembled: list[AssembledKernel], facts: GpuFacts) -> list[dict[str, Any]]:
    """What is known of each kernel, as plain data."""
    launches = [launch for launch in plan.launches if isinstance(launch, Launch)]
    rows = []
    for number, (kernel, code) in enumerate(zip(plan.kernels, assembled, strict=True)):
        mine = [launch for launch in launches if launch.kernel == number]
        rows.append(
            {
                "kernel": mine[0].label if mine else f"kernel {number}",
                "launches": len(mine),
                "skipped": sum(map(plan.is_fallback, mine)),
                "lines": sorted({line for launch in mine for line in launch.locations}),
                "schedule": kernel.schedule,
                "unit": kernel.unit,
                "bytes": kernel.bytes,
                "flops": kernel.flops,
                "intensity": kernel.flops / max(1, kernel.bytes),
                "predicted_us": kernel.predicted_us,
                "roofline_us": facts.roofline_us(kernel),
                "phases": [_phase_row(phase, code) for phase in kernel.phases],
            }
        )
    return rows


def _phase_row(phase: Any, code: AssembledKernel) -> dict[str, Any]:
    """A phase's launch and what ptxas says of its function (null without a ptxas)."""
    report = code.functions.get(phase.symbol)
    used = dataclasses.asdict(report) if report is not None else {}
    launch = {name: getattr(phase, name) for name in ("symbol", "grid", "block", "cluster")}
    return {
        **launch,
        "registers": used.get("registers"),
        "spill_bytes": used["spill_store_bytes"] + used["spill_load_bytes"] if used else None,
        "shared_bytes": phase.shared_bytes + used.get("shared_bytes", 0),
    }


def _as_text(report: dict[str, Any]) -> str:
    header = ("kernel", "x", "at", "schedule", "phase", "grid", "block", "regs", "spill", "smem", "MB", "GFLOP",
              "FLOP/B", "us", "of roof")  # fmt: skip
    rows: list[tuple[str, ...]] = [header]
    for kernel in report["kernels"]:
        for number, phase in enumerate(kernel["phases"]):
            rows.append(_text_row(kernel, phase, number == 0))
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    total = (
        f"{report['launches']} launches of {len(report['kernels'])} kernels, {report['predicted_us']:.0f} us predicted"
    )
    memory = f"arena {report['arena_bytes'] / 2**20:.1f} MiB, workspace {report['workspace_bytes'] / 2**20:.1f} MiB"
    seconds = ", ".join(f"{name} {value:.2f} s" for name, value in report["seconds"].items())
    return "\n".join([*lines, total, memory, seconds])


def _text_row(kernel: dict[str, Any], phase: dict[str, Any], is_first: bool) -> tuple[str, ...]:
    places = [f"{Path(line.rpartition(':')[0]).name}:{line.rpartition(':')[2]}" for line in kernel["lines"]]
    where = ", ".join(places[:2]) + (f" +{len(places) - 2}" if len(places) > 2 else "")
    share = f"{100 * kernel['roofline_us'] / max(1e-9, kernel['predicted_us']):.0f} %"
    known = lambda value: "" if value is None else str(value)
    whole = (kernel["kernel"], str(kernel["launches"]), where, kernel["schedule"][:48])
    model = (
        f"{kernel['bytes'] / 1e6:.1f}",
        f"{kernel['flops'] / 1e9:.2f}",
        f"{kernel['intensity']:.0f}",
        f"{kernel['predicted_us']:.0f}",
        share,
    )
    grid = "x".join(map(str, phase["grid"])) + (f" c{phase['cluster']}" if phase["cluster"] > 1 else "")
    code = (phase["symbol"][:24], grid, str(phase["block"]), known(phase["registers"]), known(phase["spill_bytes"]),
            str(phase["shared_bytes"]))  # fmt: skip
    return (*(whole if is_first else ("",) * 4), *code, *(model if is_first else ("",) * 5))


def _dump(folder: Path, plan: ProgramPlan, assembled: list[AssembledKernel]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, (kernel, code) in enumerate(zip(plan.kernels, assembled, strict=True)):
        files = {"mlir": kernel.text.encode(), "ptx": code.ptx.encode(), "cubin": code.cubin, "txt": code.said.encode()}
        for suffix, content in files.items():
            if content:
                (folder / f"kernel-{number:03d}.{suffix}").write_bytes(content)


if __name__ == "__main__":
    sys.exit(main())
