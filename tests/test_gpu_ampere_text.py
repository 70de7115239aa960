"""What the sm_80 contraction family's text must contain: routes of fragments, copies, shapes of mma, the layout; and
that it assembles for every target without a spill.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest
from ampere_support import KINDS, generate, plain
from contract_harness import context, parse_kernel
from mlir import ir

from blutrain.nova.gpu.ampere.configure import TILES, candidates, configure
from blutrain.nova.gpu.ampere.instruction import INSTRUCTIONS, MAKES_UP_FOR_TRUNCATION
from blutrain.nova.gpu.ampere.layout import accumulator_layout, interleaved
from blutrain.nova.gpu.ampere.problem import read_problem
from blutrain.nova.gpu.ampere.schedule import Schedule
from blutrain.nova.gpu.ampere.shared import SharedTile
from blutrain.nova.gpu.assemble import AssembleJob, assemble, ptxas_path
from blutrain.nova.gpu.builder import Builder
from blutrain.nova.target_gpu import ARCHITECTURES, gpu_facts

# How fragments come from shared memory, by kind and layout (the row factor's letter, then the column factor's): in PTX,
# and in machine code. A factor contiguous along k: ldmatrix, also for 4-byte elements, as pairs of 16 bits. Contiguous
# along m or n: ldmatrix.trans for 16 bits; 4-byte elements it would tear apart, so a lane takes 4 subtiles by one wide
# load, a fourth of the single loads, without bank conflicts (`test_layouts` counts wavefronts).
ALONG_K = {"bf16": "ldmatrix.x4", "f16": "ldmatrix.x4", "tf32": "ldmatrix.x4", "fp32": "ldmatrix.x4"}
ACROSS_K = {"bf16": "ldmatrix.x4.trans", "f16": "ldmatrix.x4.trans", "tf32": "ld.shared.v4", "fp32": "ld.shared.v4"}
MACHINE = {"ldmatrix.x4": "LDSM.16.M88.4", "ldmatrix.x4.trans": "LDSM.16.MT88.4", "ld.shared.v4": "LDS.128"}
INSTRUCTION = {"bf16": "HMMA.16816.F32.BF16", "tf32": "HMMA.1688.F32.TF32",
               "fp32": "HMMA.1688.F32.TF32"}  # fmt: skip
IS_ALONG_K = {"NN": (True, False), "NT": (True, True), "TN": (False, False), "TT": (False, True)}


def disassembler() -> str:
    """nvdisasm beside ptxas or on the PATH, "" where there is none."""
    return (
        shutil.which("nvdisasm", path=os.pathsep.join([os.path.dirname(ptxas_path()), os.environ.get("PATH", "")]))
        or ""
    )


SHAPES = {"bf16": "m16n8k16", "f16": "m16n8k16", "tf32": "m16n8k8", "fp32": "m16n8k8"}


def routes(kind: str, layout: str) -> set[str]:
    return {(ALONG_K if is_along else ACROSS_K)[kind] for is_along in IS_ALONG_K[layout]}


@pytest.mark.parametrize("layout", IS_ALONG_K)
@pytest.mark.parametrize("kind", ALONG_K)
def test_routes_of_fragments(kind, layout):
    text = generate(plain(layout, 4096, 4096, 4096, kind)).text
    found = set(
        re.findall(r"(ldmatrix|ld\.shared)(?:\.sync\.aligned\.m8n8)?(\.x4|\.v4|\.v2|\.b32|\.f64)(\.trans)?", text)
    )
    assert {"".join(parts) for parts in found} == routes(kind, layout)


@pytest.mark.skipif(not ptxas_path() or not disassembler(), reason="needs ptxas and nvdisasm")
def test_routes_of_fragments_in_machine_code(tmp_path):
    """What ptxas makes of them for sm_80: the loads of the table and no others, around the instruction that is meant."""
    cases = [(kind, layout) for kind in INSTRUCTION for layout in IS_ALONG_K]
    kernels = [generate(plain(layout, 4096, 4096, 4096, kind)) for kind, layout in cases]
    for (kind, layout), code in zip(cases, assemble([AssembleJob(k.text, k.target) for k in kernels]), strict=True):
        cubin = tmp_path / f"{kind}{layout}.cubin"
        cubin.write_bytes(code.cubin)
        command = [disassembler(), "-c", str(cubin)]
        sass = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        loads = set(re.findall(r"\s(LDSM?[.\w]*) R\d", sass))
        assert loads == {MACHINE[route] for route in routes(kind, layout)}, (kind, layout)
        assert set(re.findall(r"\s([A-Z]MMA[.\w]*) R\d", sass)) == {INSTRUCTION[kind]}
        assert "LDGSTS.E.BYPASS" in sass and "STL" not in sass


# Issue slots of the main loop for each product of the instruction: the product, its part of the fragment loads (a fourth:
# 32 for 128), for TF32 one rounding, and what copies, addresses and the loop take.
SLOTS = {"bf16": 1.7, "tf32": 2.7}


@pytest.mark.skipif(not ptxas_path() or not disassembler(), reason="needs ptxas and nvdisasm")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_issue_slots_of_the_main_loop(arch, tmp_path):
    cases = [(kind, layout) for kind in SLOTS for layout in IS_ALONG_K]
    tile = {"workgroup": (256, 128), "subgroup": (64, 64), "stages": 3}
    kernels = [
        generate(plain(layout, 4096, 4096, 4096, kind), arch, reduction=64 if kind == "bf16" else 32, **tile)
        for kind, layout in cases
    ]
    for (kind, layout), code in zip(cases, assemble([AssembleJob(k.text, arch) for k in kernels]), strict=True):
        loop = main_loop(code.cubin, tmp_path / "kernel.cubin")
        products = sum("HMMA" in line for line in loop)
        assert products == 128
        assert len(loop) <= SLOTS[kind] * products, (kind, layout, len(loop))
        assert sum("LDS" in line for line in loop) == 32, (kind, layout)


def main_loop(cubin: bytes, path) -> list[str]:
    """The instructions from the target of a branch backwards to the branch, of the shortest loop with all the products."""
    path.write_bytes(cubin)
    command = [disassembler(), "-c", str(path)]
    sass = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    lines, labels, loops = [], {}, []
    for line in sass.splitlines():
        if label := re.match(r"(\.L_x_\d+):", line.strip()):
            labels[label[1]] = len(lines)
        elif re.match(r"\s*/\*[0-9a-f]{4,}\*/", line) and "@!PT LDS RZ" not in line:
            lines.append(line)
            branch = re.search(r"BRA.*`\((\.L_x_\d+)\)", line)
            if branch and branch[1] in labels:
                loops.append(lines[labels[branch[1]] :])
    return max(loops, key=lambda loop: (sum("HMMA" in line for line in loop), -len(loop)))


@pytest.mark.parametrize("layout", IS_ALONG_K)
@pytest.mark.parametrize("kind, out, width", [("bf16", "bf16", 8), ("tf32", "", 4)])
def test_results_leave_in_pieces_of_16_bytes(kind, out, width, layout):
    """Lanes trade the sums of an n-major factor before."""
    text = generate(plain(layout, 512, 512, 512, kind, out)).text
    stores = set(re.findall(r"llvm\.store \S+, \S+ \{alignment = (\d+) : i64\} : (\S+),", text))
    assert stores == {("16", f"vector<{width}x{out or 'f32'}>")}
    assert ("shfl.sync bfly" in text) == (not IS_ALONG_K[layout][1])


@pytest.mark.parametrize("kind", SHAPES)
def test_shape_of_the_instruction(kind):
    text = generate(plain("NT", 512, 512, 512, kind)).text
    assert set(re.findall(r"mma\.sync\.aligned\.(m\d+n\d+k\d+)", text)) == {SHAPES[kind]}
    assert (MAKES_UP_FOR_TRUNCATION in text) == (kind in ("tf32", "fp32"))


@pytest.mark.parametrize(
    "k, n, sizes",
    [(64, 64, {"16"}), (62, 64, {"8", "16"}), (61, 64, {"4", "16"}), (61, 63, {"4"})],
)
def test_copies_are_as_wide_as_strides_allow(k, n, sizes):
    """Row factor [m, k], column factor [k, n], f32."""
    text = generate(plain("NN", 64, n, k, "tf32")).text
    assert set(re.findall(r"cp\.async\.c[ag]\.\S+ \[\S+, \[\S+, (\d+)", text)) == sizes


def test_factors_that_cp_async_cannot_copy_pass_through_registers():
    assert "cp.async.cg" not in generate(plain("NN", 64, 63, 61, "bf16")).text


def test_whole_tiles_have_no_predicates():
    text = generate(plain("NT", 256, 256, 256, "bf16")).text
    assert "setp" not in text and "llvm.select" not in text


def test_layout_is_printed_and_covers_the_tile():
    kernel = generate(plain("NT", 512, 512, 512, "bf16", "bf16"))
    assert re.search(
        r'nova\.layout = "#nova\.layout<register = \[2:\(0,4\), .*lane = \[4:\(0,8\), 8:\(1,0\)\]', kernel.text
    )


@pytest.mark.parametrize("kind", INSTRUCTIONS)
@pytest.mark.parametrize("run", [1, 2, 4])
def test_every_element_has_one_holder(kind, run):
    if kind == "f64" and run > 1:
        return
    layout = accumulator_layout(INSTRUCTIONS[kind], (64, 32), (2, 2), {"m": run, "n": run})
    out, held = Builder(), set()
    for warp in range(4):
        for lane in range(32):
            m, n = layout.first(out, lane, warp)
            held |= {(m + i, n + j) for i, j in layout.offsets}
    assert held == {(m, n) for m in range(128) for n in range(64)}
    assert len(layout.offsets) * 128 == len(held)


@pytest.mark.parametrize("run", [1, 2, 4])
def test_interleaving_is_a_permutation(run):
    assert sorted(interleaved(i, run, 8) for i in range(64)) == list(range(64))


@pytest.mark.parametrize("width, item, vectors", [(32, 2, False), (32, 4, False), (128, 2, False), (128, 4, True)])
def test_swizzle_moves_chunks_within_their_line(width, item, vectors):
    tile = SharedTile(16, width, item, vectors)
    places = [tile.offset(Builder(), line, byte) for line in range(16) for byte in range(0, tile.pitch, 16)]
    assert sorted(places) == list(range(0, tile.bytes, 16))


def schedule_of(text: str, arch: str) -> Schedule:
    with context(), ir.Location.unknown():
        kernel, _module = parse_kernel(text)
        return configure(read_problem(kernel), gpu_facts(arch))


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (8192, 1536, 384)], ids=str)
def test_half_the_bytes_widen_the_instruction_and_deepen_the_ring(arch, shape):
    """Golden for the configurator: the same rules, given operands of two bytes, find a longer k and more stages."""
    narrow, wide = (schedule_of(plain("NT", *shape, kind), arch) for kind in ("bf16", "tf32"))
    assert "k16" in narrow.mma_kind and "k8" in wide.mma_kind
    assert narrow.stages * narrow.reduction > wide.stages * wide.reduction


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("kind", KINDS)
def test_schedules_fit_the_device(arch, kind):
    facts = gpu_facts(arch)
    with context(), ir.Location.unknown():
        kernel, _module = parse_kernel(plain("TN", 300, 500, 700, kind))
        problem = read_problem(kernel)
        found = candidates(problem, facts)
    assert found and all(c.schedule.stages >= 2 and c.predicted_us > 0 for c in found)
    item = problem.item
    for c in found:
        stage = sum(c.schedule.workgroup) * c.schedule.reduction * item
        assert stage * c.schedule.stages <= facts.shared_bytes_per_block
        assert (c.schedule.workgroup, c.schedule.subgroup) in TILES


MATRIX = [
    (kind, layout, shape)
    for kind in KINDS
    for layout, shape in (("NT", (4096, 4096, 4096)), ("TN", (4097, 1031, 2051)), ("NN", (438, 331, 513)))
]


@pytest.mark.skipif(not ptxas_path(), reason="needs ptxas")
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_assembles_without_spills(arch, tmp_path, monkeypatch):
    monkeypatch.setenv("NOVA_CACHE", str(tmp_path))
    kernels = [generate(plain(layout, *shape, kind), arch) for kind, layout, shape in MATRIX]
    for case, assembled in zip(MATRIX, assemble([AssembleJob(k.text, arch) for k in kernels]), strict=True):
        for name, report in assembled.functions.items():
            assert report.spill_store_bytes == 0, f"{case}: {name} spills"
            assert report.registers <= 255
