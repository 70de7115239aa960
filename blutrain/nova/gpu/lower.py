"""From the text of a GPU kernel to PTX (MLIR's lowering passes and LLVM's NVPTX backend) and to machine code (ptxas).

Level before: one `gpu.module` of `llvm.func` or `gpu.func` kernels in llvm, nvvm, gpu, arith, math, scf, affine, vector
and memref. This file runs in a compile worker (`compile_worker.py`): it imports MLIR and nothing of blutrain. By hand:

    python blutrain/nova/gpu/lower.py kernel.mlir sm_90a [PTXAS] > kernel.ptx       # and the report of ptxas on stderr
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile

PTXAS_LIMIT_SECONDS = 100.0
# The oldest PTX version that has what the generators use; an older driver than that cannot run its kernels anyway.
PTX_VERSIONS = {"sm_80": "80", "sm_86": "80", "sm_89": "80", "sm_90a": "83"}
DEFAULT_PTX_VERSION = "86"


class LoweringError(Exception):
    """What the compiler said, and the stage that said it: parse, passes, translate or ptxas."""

    def __init__(self, stage: str, message: str):
        super().__init__(message)
        self.stage, self.message = stage, message


def pipeline(text: str, target: str) -> str:
    """The passes from kernel level to PTX; conversions of dialects that the text does not use are left out."""
    first = [
        *(["lower-affine"] if "affine." in text else []),
        *(["convert-vector-to-scf"] if "vector.transfer" in text else []),
        "convert-scf-to-cf",
        *(["convert-vector-to-llvm"] if "vector." in text else []),
        *(["expand-strided-metadata", "lower-affine"] if "memref." in text else []),
        # It would take square roots from libdevice, which approximates them: only for texts with operations of gpu.
        *(["convert-gpu-to-nvvm{use-bare-ptr-memref-call-conv=1}"] if "gpu." in text.replace("gpu.module", "") else []),
        "convert-nvvm-to-llvm",
    ]
    last = [
        "convert-math-to-llvm",
        "convert-arith-to-llvm",
        *(["convert-index-to-llvm"] if "index" in text else []),
        *(["convert-ub-to-llvm"] if "ub." in text else []),
        "canonicalize",
        "cse",
        "reconcile-unrealized-casts",
    ]
    features = f"+ptx{PTX_VERSIONS.get(target, DEFAULT_PTX_VERSION)}"
    passes = [
        *([f"nvvm-attach-target{{chip={target} features={features} O=3}}"] if "#nvvm.target" not in text else []),
        f"gpu.module({','.join(first)})",
        "convert-cf-to-llvm",  # a pass of the whole module, unlike the others
        f"gpu.module({','.join(last)})",
        "gpu-module-to-binary{format=isa}",
    ]
    return f"builtin.module({','.join(passes)})"


def to_ptx(text: str, target: str) -> str:
    """Kernel text to PTX. Raises LoweringError with the diagnostics of the verifier or the failed pass."""
    from mlir.dialects import gpu
    from mlir.ir import Context, Location, MLIRError, Module
    from mlir.passmanager import PassManager

    stage = "parse"
    with Context(), Location.unknown():
        try:
            module = Module.parse(text)
            _check_is_one_gpu_module(module)
            stage = "passes"
            PassManager.parse(pipeline(text, target)).run(module.operation)
            stage = "translate"
            objects = module.body.operations[0].attributes["objects"]
            assembly = gpu.ObjectAttr(objects[0]).object
        except (MLIRError, ValueError, RuntimeError, KeyError, IndexError) as error:
            raise LoweringError(stage, str(error)) from error
    return (assembly if isinstance(assembly, str) else assembly.decode()).rstrip("\0")


def _check_is_one_gpu_module(module) -> None:
    names = [operation.operation.name for operation in module.body.operations]
    if names != ["gpu.module"]:
        raise LoweringError("parse", f"expected one gpu.module, got {', '.join(names) or 'nothing'}")


def to_cubin(ptx: str, target: str, ptxas: str) -> tuple[bytes, str]:
    """PTX to machine code, and what ptxas -v said. Raises LoweringError where ptxas fails or never ends."""
    with tempfile.TemporaryDirectory(prefix="nova-ptxas-") as folder:
        source, result = os.path.join(folder, "kernel.ptx"), os.path.join(folder, "kernel.cubin")
        with open(source, "w", encoding="utf-8") as file:
            file.write(ptx)
        command = [ptxas, f"-arch={target}", "-O3", "-v", source, "-o", result]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=PTXAS_LIMIT_SECONDS, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LoweringError("ptxas", str(error)) from error
        said = (done.stdout + done.stderr).replace(source, "kernel.ptx")
        if done.returncode:
            raise LoweringError("ptxas", said.strip())
        with open(result, "rb") as file:
            return file.read(), said


def compile_text(text: str, target: str, ptxas: str = "") -> bytes:
    """Kernel text to a pickled (PTX, machine code, what ptxas said); the last two are empty without a ptxas."""
    ptx = to_ptx(text, target)
    return pickle.dumps((ptx, *(to_cubin(ptx, target, ptxas) if ptxas else (b"", ""))), protocol=5)


def main(path: str, target: str, ptxas: str = "") -> None:
    """Compiles a file, writes the PTX to stdout and the report of ptxas to stderr."""
    with open(path, encoding="utf-8") as source:
        ptx, _, said = pickle.loads(compile_text(source.read(), target, ptxas))
    sys.stdout.write(ptx)
    sys.stderr.write(said)


if __name__ == "__main__":
    main(*sys.argv[1:])
