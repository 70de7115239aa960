"""Kernels of a training step for processors that this machine is not, as far as a compiler can tell without running
them: they become objects of the right kind, call nothing that a process there lacks, and keep products in registers.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess

import pytest
from contract_harness import context, parse_kernel, product
from mlir import ir

import blutrain as bt
from blutrain import config, nn
from blutrain.nova import target
from blutrain.nova.aot_record import record_step, shapes_only
from blutrain.nova.cpu import contract, host, lower, objects, orc, pool
from blutrain.nova.cpu.configure_contract import K_UNROLL
from blutrain.nova.plan_cache import cached_plan
from blutrain.optim import AdamW
from blutrain.tensor.aval import Aval
from blutrain.tensor.device import cpu
from examples.gpt_mlp.model import MLPGPT, Config

ARM = [("aarch64-unknown-linux-gnu", "neoverse-n1"), ("arm64-apple-darwin24.0.0", "apple-m1")]
MACHINES = [*ARM, ("x86_64-unknown-linux-gnu", "haswell")]
MAGIC = {"neoverse-n1": b"\x7fELF", "apple-m1": b"\xcf\xfa\xed\xfe"}
# What the C libraries of Linux and macOS have; nothing of a compiler's own run-time library.
C_LIBRARY = re.compile(r"memset|memcpy|memmove|bzero|clock_gettime|sched_yield|pthread_\w+|(pow|sin|cos|log|exp|erf)f?")
MULTIPLY_ADD = re.compile(r"^\s+(?:fmla|vfmadd)", re.MULTILINE)
BLOCK_END = re.compile(r"^\s+(?:b|b\.\w+|cbn?z|tbn?z|j\w+)\s.*$|^.*<L\d+>:$", re.MULTILINE)
HOST_PROGRAM = re.compile(r"kernel_\d+_phase_\d+|nova_(enter|leave|stamp|parallel)")


class Casts(nn.Module):
    """A product and functions of it through every floating type, where run-time libraries have conversions."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(24, 16)

    def forward(self, x):
        y = self.linear(x)
        for dtype in (bt.float16, bt.bfloat16, bt.float64):
            y = (y.to(dtype) * 0.5).to(bt.float32) + y.exp()
        count = (y * 10).to(bt.int64) // 3 % 5
        return (y.tanh() + y.sin() + y.abs() ** 1.7 + count.to(bt.float16).to(bt.float32)).sum()


def facts_like(triple: str, name: str) -> target.CpuFacts:
    """Of a machine of two threads, with this one's caches."""
    features = "+avx2,+fma,+f16c" if triple.startswith("x86") else ""
    vector_bytes, registers = target._vector_unit(triple, features)
    sizes = {"vector_bytes": vector_bytes, "num_vector_registers": registers, "threads": 2}
    return dataclasses.replace(target.host_cpu(), triple=triple, cpu_name=name, cpu_features=features, **sizes)


@pytest.fixture(scope="module")
def plans():
    """Of one step of each model, recorded from shapes; kernels are the same texts for all ARM machines."""
    with shapes_only():
        gpt, casts = MLPGPT(Config(32, 16, 32, 1, 0.1)), Casts()
        optimizers = [AdamW(model.parameters(), lr=1e-3) for model in (gpt, casts)]
    tokens, x = Aval((4, 16), bt.int64), Aval((6, 24), bt.float32)
    traces = [
        record_step(gpt, optimizers[0], [tokens, tokens], device=cpu),
        record_step(casts, optimizers[1], [x], device=cpu),
    ]
    with config.scope(NOVA_CACHE="0"):
        return [cached_plan(trace, facts_like(*ARM[0]), None)[0] for trace in traces]


def tool(name: str, *arguments: str) -> str:
    """What a program of LLVM's wheel says."""
    path = orc.library_path().parents[1] / "bin" / name
    return subprocess.run([str(path), *arguments], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("triple, name", ARM, ids=[name for _, name in ARM])
def test_a_step_compiles(triple, name, plans, tmp_path):
    facts = facts_like(triple, name)
    jobs = [objects.CompileJob(kernel.text) for plan in plans for kernel in plan.kernels]
    jobs += [objects.CompileJob(host.host_text(plan)) for plan in plans] + [pool.pool_job(facts)]
    with config.scope(NOVA_CACHE="0"):
        data = objects.compile_objects(jobs, facts)
    paths = [tmp_path / f"{number}.o" for number in range(len(jobs))]
    for path, job, code in zip(paths, jobs, data, strict=True):
        assert code.startswith(MAGIC[name]) and "x86" not in job.text
        path.write_bytes(code)
    prefix = "_" if name == "apple-m1" else ""  # of every name in Mach-O
    lines = tool("llvm-nm", "-u", *map(str, paths)).splitlines()
    wanted = {line.split()[-1].removeprefix(prefix) for line in lines if line and not line.endswith(":")}
    assert "pthread_cond_wait" in wanted
    assert not [s for s in wanted if not (C_LIBRARY.fullmatch(s) or HOST_PROGRAM.fullmatch(s))]


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("triple, name", MACHINES, ids=[name for _, name in MACHINES])
def test_products_keep_their_tile_in_registers(triple, name, dtype, tmp_path):
    """The loop over k has a multiply-add into each vector of the tile, and touches the stack nowhere."""
    facts = facts_like(triple, name)
    with context(), ir.Location.unknown():
        kernel, _module = parse_kernel(product("NT", 384, 384, 256, dtype))
        schedule = contract.configure(kernel, facts)
        text = contract.generate(kernel, facts, schedule).text
    path = tmp_path / "product.o"
    path.write_bytes(lower.compile_text(text, *facts.codegen_key(), str(orc.library_path())))
    code = tool("llvm-objdump", "-d", "--no-show-raw-insn", "--no-leading-addr", "--symbolize-operands", str(path))
    loop = max(BLOCK_END.split(code), key=lambda block: len(MULTIPLY_ADD.findall(block)))
    assert len(MULTIPLY_ADD.findall(loop)) == K_UNROLL * schedule["mr"] * schedule["nv"]
    assert not re.search(r"\bsp\b|%rsp|%rbp", loop), loop
