"""From text to PTX to machine code: reports, faults, the cache, errors, the driver's arguments, facts of devices."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from blutrain import config
from blutrain.errors import NovaError
from blutrain.nova.gpu import assemble as assembly
from blutrain.nova.gpu.assemble import AssembleJob, assemble, ptxas_path
from blutrain.nova.gpu.assemble_report import FunctionReport, advice, faults, read_report
from blutrain.nova.gpu.driver import Driver, DriverError
from blutrain.nova.gpu.kernel import TensorMap
from blutrain.nova.gpu.lower import pipeline
from blutrain.nova.target_gpu import ARCHITECTURES, facts_from, gpu_facts

needs_ptxas = pytest.mark.skipif(not ptxas_path(), reason="no ptxas (wheel nvidia-cuda-nvcc)")

SAID = """\
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient \
register resources for the wgmma pipeline in the function 'gemm'
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'gemm' for 'sm_90a'
ptxas info    : Function properties for gemm
    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 168 registers, used 9 barriers, 8 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compiling entry function 'row_2' for 'sm_90a'
ptxas info    : Function properties for row_2
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers
ptxas info    : Compile time = 2.966 ms
"""


@pytest.fixture(autouse=True)
def _surroundings(tmp_path):
    with config.scope(NOVA_CACHE=str(tmp_path / "cache"), NOVA_DUMP=str(tmp_path / "dump")):
        yield


def scale_text(factor: float) -> str:
    return f"""
    gpu.module @kernels {{
      llvm.func @scale(%x: !llvm.ptr, %y: !llvm.ptr, %workspace: !llvm.ptr, %predicate: !llvm.ptr)
          attributes {{gpu.kernel, nvvm.kernel, nvvm.reqntid = array<i32: 64>}} {{
        %thread = nvvm.read.ptx.sreg.tid.x : i32
        %factor = arith.constant {factor:e} : f32
        %i = llvm.sext %thread : i32 to i64
        %from = llvm.getelementptr %x[%i] : (!llvm.ptr, i64) -> !llvm.ptr, f32
        %to = llvm.getelementptr %y[%i] : (!llvm.ptr, i64) -> !llvm.ptr, f32
        %value = llvm.load %from : !llvm.ptr -> f32
        %scaled = arith.mulf %value, %factor : f32
        llvm.store %scaled, %to : f32, !llvm.ptr
        llvm.return
      }}
    }}
    """


VECTOR_TEXT = """
gpu.module @kernels {
  gpu.func @scale(%x: memref<1024xf32>, %y: memref<1024xf32>, %workspace: !llvm.ptr, %predicate: !llvm.ptr) kernel {
    %thread = gpu.thread_id x
    %four = arith.constant 4 : index
    %factor = arith.constant dense<3.0> : vector<4xf32>
    %first = arith.muli %thread, %four : index
    scf.for %i = %thread to %four step %four {
      %value = vector.load %x[%first] : memref<1024xf32>, vector<4xf32>
      %scaled = arith.mulf %value, %factor : vector<4xf32>
      vector.store %scaled, %y[%first] : memref<1024xf32>, vector<4xf32>
    }
    gpu.return
  }
}
"""


BOGUS = """llvm.inline_asm has_side_effects "bogus.u32;", "" : () -> ()
        llvm.return"""


@needs_ptxas
@pytest.mark.parametrize("target", ARCHITECTURES)
def test_texts_of_both_levels_become_machine_code(target):
    jobs = [AssembleJob(scale_text(3.0), target), AssembleJob(VECTOR_TEXT, target)]
    for kernel in assemble(jobs):
        assert f".target {target}" in kernel.ptx and kernel.cubin[:4] == b"\x7fELF" and kernel.image == kernel.cubin
        report = kernel.functions["scale"]
        assert 0 < report.registers < 64 and report.spill_store_bytes == report.spill_load_bytes == 0


@needs_ptxas
def test_the_cache_serves_equal_texts_and_another_process(monkeypatch):
    before = assembly.counts.compiled
    first, again, other = assemble([AssembleJob(scale_text(f), "sm_80") for f in (2.5, 2.5, 4.5)])
    assert assembly.counts.compiled == before + 2
    assert first == again and first.ptx != other.ptx
    monkeypatch.setattr("blutrain.nova.cpu.objects._caches", {})  # what a new process starts with
    (cached,) = assemble([AssembleJob(scale_text(2.5), "sm_80")])
    assert assembly.counts.compiled == before + 2
    assert cached == first and cached.functions == first.functions
    assemble([AssembleJob(scale_text(2.5), "sm_86")])
    assert assembly.counts.compiled == before + 3


def test_without_ptxas_the_driver_gets_the_text(monkeypatch):
    monkeypatch.setattr(assembly, "ptxas_path", lambda: "")
    monkeypatch.setattr(assembly, "toolchain", lambda: ("no ptxas",))
    (kernel,) = assemble([AssembleJob(scale_text(7.0), "sm_90a")])
    assert not kernel.cubin and not kernel.functions
    assert kernel.image == kernel.ptx.encode() + b"\0" and ".entry scale" in kernel.ptx


@pytest.mark.parametrize(
    "edit, stage, message",
    [
        (("arith.mulf", "arith.mulq"), "parse", "mulq"),
        (("%value, %factor", "%value, %i"), "parse", "'f32' vs 'i64'"),
        (("gpu.module @kernels", "module @kernels"), "parse", "expected one gpu.module, got llvm.func"),
        pytest.param(("llvm.return", BOGUS), "ptxas", "Not a name of any known instruction", marks=needs_ptxas),
    ],
)
def test_a_text_that_does_not_compile(edit, stage, message):
    text = scale_text(5.0).replace(*edit)
    with pytest.raises(NovaError) as caught:
        assemble([AssembleJob(text, "sm_90a", op="map 3", location="train.py:42")])
    error = caught.value
    assert (error.stage, error.op, error.location) == (stage, "map 3", "train.py:42")
    assert message in str(error) and Path(error.dump).read_text() == text
    script = Path(error.dump).with_suffix(".sh")
    replay = subprocess.run(["sh", str(script)], capture_output=True, text=True, timeout=60)
    assert replay.returncode != 0 and message in replay.stderr


def test_the_oldest_ptxas_is_taken(monkeypatch, tmp_path):
    """A driver runs the code of older toolkits."""
    for folder in ("cu13", "cu14", "cuda_nvcc"):
        path = tmp_path / folder / "bin" / "ptxas"
        path.parent.mkdir(parents=True)
        path.touch(mode=0o755)
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(assembly.importlib.util, "find_spec", lambda name: found)
    assert ptxas_path.__wrapped__() == str(tmp_path / "cuda_nvcc/bin/ptxas")
    (tmp_path / "cuda_nvcc/bin/ptxas").unlink()
    assert ptxas_path.__wrapped__() == str(tmp_path / "cu13/bin/ptxas")


def test_the_report_of_each_function():
    assert read_report(SAID) == {
        "gemm": FunctionReport(168, 9, 1024, 8, 12, 16),
        "row_2": FunctionReport(10, 0, 0, 0, 0, 0),
    }
    assert read_report("") == {}


def test_products_may_neither_spill_nor_wait():
    serialised = advice(SAID)
    assert len(serialised) == 1 and "C7510" in serialised[0]
    functions = read_report(SAID)
    product = ".visible .entry gemm(.param)\n{ wgmma.mma_async.sync x; }\n.visible .entry row_2() { add; }"
    plain = product.replace("wgmma.mma_async.sync", "fma")
    assert faults(product, "", functions) == "gemm spills registers: 28 bytes of stores and loads a thread"
    assert faults(plain, "", functions) == ""
    assert "C7510" in faults(plain, SAID, functions)
    assert faults(product.replace("gemm", "row_2").replace("row_2()", "gemm()"), "", functions) == ""


@needs_ptxas
def test_a_faulty_product_is_an_error_with_a_reproducer(monkeypatch):
    monkeypatch.setattr(assembly, "faults", lambda ptx, said, functions: "gemm spills registers")
    with pytest.raises(NovaError, match="spills") as caught:
        assemble([AssembleJob(scale_text(8.0), "sm_80", op="contract 1")])
    assert caught.value.op == "contract 1" and Path(caught.value.dump).exists()


def test_passes_for_dialects_that_a_text_does_not_use_are_left_out():
    assert "convert-vector-to-llvm" not in pipeline(scale_text(1.0), "sm_80")
    assert "convert-vector-to-llvm" in pipeline(VECTOR_TEXT, "sm_80")
    assert "nvvm-attach-target{chip=sm_90a" in pipeline(VECTOR_TEXT, "sm_90a")
    assert "nvvm-attach-target" not in pipeline('gpu.module @k [#nvvm.target<chip = "sm_90a">] {}', "sm_90a")


# -- the driver's arguments


class FakeApi:
    """`cuda.bindings.driver` with enumerations as text; functions note their arguments and return what `results` says."""

    def __init__(self, **results):
        self.calls: list[tuple] = []
        self.results = results
        self.CUresult = SimpleNamespace(CUDA_SUCCESS=SimpleNamespace(name="CUDA_SUCCESS"))
        self.cuuint64_t = self.cuuint32_t = self.CUfunction = self.CUstream = int
        self.CUlaunchAttribute = lambda: SimpleNamespace(value=SimpleNamespace(clusterDim=SimpleNamespace()))
        self.CUlaunchConfig = self.CUDA_KERNEL_NODE_PARAMS = SimpleNamespace

    def __getattr__(self, name):
        if name.startswith("CU"):
            return type(name, (), {"__getattr__": lambda self, value: value})()

        def function(*arguments):
            self.calls.append((name, *arguments))
            result = self.results.get(name, ())
            if isinstance(result, str):
                return (SimpleNamespace(name=result), None)
            return (self.CUresult.CUDA_SUCCESS, *result)

        return function


def test_a_tensor_map_in_the_drivers_words():
    memory = (ctypes.c_uint8 * 128)(*range(128))
    encoded = SimpleNamespace(getPtr=lambda: ctypes.addressof(memory))
    api = FakeApi(cuTensorMapEncodeTiled=(encoded,))
    out = (ctypes.c_uint8 * 128)()
    spec = TensorMap(0, 0, "tf32", (384, 8192, 2), (1536, 1536 * 8192), (32, 128, 1), 128, "256")
    Driver(api).encode_tensor_map(spec, 4096, ctypes.addressof(out))
    assert bytes(out) == bytes(range(128))
    (call,) = api.calls
    assert call[1:8] == (
        "CU_TENSOR_MAP_DATA_TYPE_TFLOAT32", 3, 4096, [384, 8192, 2], [1536, 1536 * 8192], [32, 128, 1], [1, 1, 1],
    )  # fmt: skip
    assert call[8:] == (
        "CU_TENSOR_MAP_INTERLEAVE_NONE",
        "CU_TENSOR_MAP_SWIZZLE_128B",
        "CU_TENSOR_MAP_L2_PROMOTION_L2_256B",
        "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE",
    )


def test_launches_with_and_without_clusters():
    api = FakeApi()
    driver = Driver(api)
    driver.launch(7, (10, 2, 3), 384, 1, 1000, 9, 0x1234)
    driver.launch(7, (10, 2, 3), 384, 2, 1000, 9, 0x1234)
    plain, clustered = api.calls
    assert plain == ("cuLaunchKernel", 7, 10, 2, 3, 384, 1, 1, 1000, 9, 0x1234, 0)
    name, given, *rest = clustered
    assert (name, *rest) == ("cuLaunchKernelEx", 7, 0x1234, 0)
    assert (given.gridDimX, given.gridDimY, given.gridDimZ, given.blockDimX) == (10, 2, 3, 384)
    assert (given.sharedMemBytes, given.hStream, given.numAttrs) == (1000, 9, 1)
    cluster = given.attrs[0].value.clusterDim
    assert (cluster.x, cluster.y, cluster.z) == (2, 1, 1)


@pytest.mark.parametrize("edges", [(), ([],)])  # CUDA 12 and 13
def test_the_last_captured_node(edges):
    api = FakeApi(cuStreamGetCaptureInfo=("ACTIVE", 1, "graph", [42], *edges, 1))
    assert Driver(api).last_captured(5) == 42
    api.results["cuStreamGetCaptureInfo"] = ("ACTIVE", 1, "graph", [42, 43], *edges, 2)
    with pytest.raises(DriverError, match="2 last nodes"):
        Driver(api).last_captured(5)


def test_functions_get_the_limits_that_they_need():
    api = FakeApi(cuModuleGetFunction=(3,))
    driver = Driver(api)
    assert driver.function(1, "small", 0, 1) == 3
    assert [call[0] for call in api.calls] == ["cuModuleGetFunction"]
    driver.function(1, "large", 200_000, 16)
    assert [call[2:] for call in api.calls[2:]] == [
        ("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", 200_000),
        ("CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1),
    ]


def test_a_failed_call_is_named():
    driver = Driver(FakeApi(cuGraphLaunch="CUDA_ERROR_ILLEGAL_ADDRESS", cuModuleUnload="CUDA_ERROR_INVALID_HANDLE"))
    with pytest.raises(DriverError, match="cuModuleUnload: CUDA_ERROR_INVALID_HANDLE"):
        driver.unload_module(4)
    driver._launch_graph = lambda *arguments: (SimpleNamespace(name="CUDA_ERROR_ILLEGAL_ADDRESS"),)
    with pytest.raises(DriverError, match="cuGraphLaunch: CUDA_ERROR_ILLEGAL"):
        driver.launch_graph(4, 0)


# -- facts


PROPERTIES = {
    "name": "NVIDIA H200", "capability": (9, 0), "sms": 132, "shared_bytes_per_sm": 233472,
    "shared_bytes_per_block": 232448, "registers_per_sm": 65536, "threads_per_sm": 2048,
    "l2_bytes": 62914560, "clock_ghz": 1.98, "mem_gb_s": 4917.0,
    "max_clusters": ((2, 66), (3, 39), (4, 30), (5, 22), (6, 17), (7, 15)),
}  # fmt: skip


def test_facts_of_the_table_and_of_a_device_in_it_agree():
    assert facts_from(PROPERTIES) == gpu_facts("sm_90a")
    facts = gpu_facts("sm_90a")
    assert facts.capability == (9, 0) and facts.is_hopper and not gpu_facts("sm_89").is_hopper
    assert (facts.clusters(1), facts.clusters(2), facts.clusters(8)) == (132, 66, 0)
    with pytest.raises(ValueError, match=re.escape("no facts about GPUs of 'sm_70'; known are sm_80")):
        gpu_facts("sm_70")


def test_facts_of_devices_that_are_not_in_the_table():
    half = facts_from({**PROPERTIES, "name": "NVIDIA H100 slice", "sms": 66})
    assert half.arch == "sm_90a" and half.bf16_tflops == pytest.approx(989.4 / 2) and half.mem_gb_s == 4917.0
    newer = facts_from({**PROPERTIES, "name": "newer", "capability": (10, 0)})
    assert newer.arch == "sm_100" and not newer.is_hopper
    with pytest.raises(NovaError, match=r"compute capability 7\.5; 8\.0 or newer"):
        facts_from({**PROPERTIES, "name": "NVIDIA T4", "capability": (7, 5)})


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_rates_and_sizes_of_the_table_are_plausible(arch):
    facts = gpu_facts(arch)
    assert facts.f32_tflops <= facts.tf32_tflops <= facts.bf16_tflops
    lanes = facts.f32_tflops * 1e3 / (facts.sms * facts.clock_ghz * 2)
    assert lanes == pytest.approx(64 if arch == "sm_80" else 128, rel=0.02)
    assert facts.shared_bytes_per_block + 1024 == facts.shared_bytes_per_sm
