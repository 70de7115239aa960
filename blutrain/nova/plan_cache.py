"""From a trace to its plan, through the cache: a plan that was made before is read back without loading MLIR.

The key holds everything the plan depends on: the trace with its user lines, precision, the device's facts, the toolchain, and the source
of blutrain itself (a changed pass or operation makes new plans).
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import time
from dataclasses import asdict
from pathlib import Path

from .. import config
from .capabilities import generator_modules
from .cpu.compile_workers import shared_workers
from .cpu.objects import object_cache, toolchain
from .plan import ProgramPlan
from .target import CpuFacts, num_threads
from .target_gpu import GpuFacts
from .trace import Trace, freeze

# What reads a kernel, in a worker; MLIR itself loads the module of a dialect (a tenth of a second for linalg's) where it
# first meets one of its operations.
KERNEL_MODULES = (
    *(f"mlir.dialects.{name}" for name in ("arith", "builtin", "gpu", "linalg", "math", "tensor")),
    *(f"blutrain.nova.{name}" for name in ("dialect.nova", "kernel_reader", "passes.kernel_jobs")),
)


def cached_plan(
    trace: Trace, facts: CpuFacts | GpuFacts, precision: str | None, memory_limit: int | None = None
) -> tuple[ProgramPlan, dict[str, float]]:
    """The plan of `trace` and the seconds each stage took. NOVA_DUMP, NOVA_OVERRIDE and NOVA_DEBUG from 4 on always compile."""
    start = time.perf_counter()
    key = plan_key(trace, facts, precision, memory_limit)
    looks = config.get("NOVA_DUMP") or config.get("NOVA_OVERRIDE") or config.get("NOVA_DEBUG") >= 4
    data = None if looks else object_cache().get(key)
    if data is not None:
        plan = _read(data)
        if plan is not None:
            return plan, {"plan_cache": time.perf_counter() - start}
    # they load MLIR and the generators while the passes run here
    shared_workers(num_threads()).warm_up(preload=(*KERNEL_MODULES, *generator_modules(facts)))
    from .compile import compile_plan  # loads MLIR

    plan, seconds = compile_plan(trace, facts, precision, memory_limit)
    if not config.get("NOVA_OVERRIDE"):
        object_cache().put(key, pickle.dumps(plan, protocol=5))
    return plan, seconds


def plan_key(trace: Trace, facts: CpuFacts | GpuFacts, precision: str | None, memory_limit: int | None) -> str:
    """SHA-256 in hex. Two traces with one key have one plan."""
    parts = [
        [(x.value, x.role, str(x.aval), x.aval.weak) for x in trace.inputs],
        [(str(a), a.weak) for a in trace.avals],
        [
            (n.prim.name, n.operands, sorted((k, str(freeze(v))) for k, v in n.attrs.items()), n.results, n.location)
            for n in trace.nodes
        ],
        trace.outputs,
        sorted(trace.updates.items()),
        str(trace.device),
        (precision, memory_limit),
        sorted((k, str(v)) for k, v in asdict(facts).items()),
        toolchain(),
        source_digest(),
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@functools.cache
def source_digest() -> str:
    """SHA-256 of blutrain's own source files."""
    digest = hashlib.sha256()
    root = Path(__file__).resolve().parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _read(data: bytes) -> ProgramPlan | None:
    try:
        plan = pickle.loads(data)
    except Exception:  # an entry of another version of Python or of the classes: made again
        return None
    return plan if isinstance(plan, ProgramPlan) else None
