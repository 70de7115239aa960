"""From the text of a kernel to a native object: MLIR's lowering passes, then LLVM's optimiser and code generator.

Level before: func/affine/scf/vector/memref/arith/math/llvm. Level after: an ELF or Mach-O object, position
independent, no unwind tables. This file runs in a compile worker (`compile_worker.py`): it imports MLIR and nothing of
blutrain, so that a worker starts quickly. By hand:

    python blutrain/nova/cpu/lower.py LIBLLVM kernel.mlir [TRIPLE CPU FEATURES] > kernel.o
"""

from __future__ import annotations

import ctypes
import functools
import sys

TARGETS = {"x86_64": "X86", "aarch64": "AArch64", "arm64": "AArch64"}
OPTIMISER = b"default<O3>"
CODEGEN_LEVEL, RELOC_PIC, CODE_MODEL_SMALL, OBJECT_FILE = 3, 2, 3, 1
HEAP_OPERATIONS = ("memref.alloc(", "memref.alloc ", "memref.copy", "memref.realloc")

_POINTER, _TEXT, _SIZE, _INT = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int
_OUT = ctypes.POINTER(ctypes.c_void_p)
_SIGNATURES = {
    "LLVMGetHostCPUName": (_TEXT, []),
    "LLVMGetHostCPUFeatures": (_TEXT, []),
    "LLVMGetDefaultTargetTriple": (_TEXT, []),
    "LLVMContextCreate": (_POINTER, []),
    "LLVMContextDispose": (None, [_POINTER]),
    "LLVMCreateMemoryBufferWithMemoryRangeCopy": (_POINTER, [_TEXT, _SIZE, _TEXT]),
    "LLVMParseIRInContext": (_INT, [_POINTER, _POINTER, _OUT, _OUT]),
    "LLVMDisposeModule": (None, [_POINTER]),
    "LLVMGetTargetFromTriple": (_INT, [_TEXT, _OUT, _OUT]),
    "LLVMCreateTargetMachine": (_POINTER, [_POINTER, _TEXT, _TEXT, _TEXT, _INT, _INT, _INT]),
    "LLVMDisposeTargetMachine": (None, [_POINTER]),
    "LLVMCreateTargetDataLayout": (_POINTER, [_POINTER]),
    "LLVMDisposeTargetData": (None, [_POINTER]),
    "LLVMSetTarget": (None, [_POINTER, _TEXT]),
    "LLVMSetModuleDataLayout": (None, [_POINTER, _POINTER]),
    "LLVMGetFirstFunction": (_POINTER, [_POINTER]),
    "LLVMGetNextFunction": (_POINTER, [_POINTER]),
    "LLVMGetEnumAttributeKindForName": (ctypes.c_uint, [_TEXT, _SIZE]),
    "LLVMCreateEnumAttribute": (_POINTER, [_POINTER, ctypes.c_uint, ctypes.c_uint64]),
    "LLVMAddAttributeAtIndex": (None, [_POINTER, ctypes.c_uint, _POINTER]),
    "LLVMCreatePassBuilderOptions": (_POINTER, []),
    "LLVMDisposePassBuilderOptions": (None, [_POINTER]),
    "LLVMRunPasses": (_POINTER, [_POINTER, _TEXT, _POINTER, _POINTER]),
    "LLVMGetErrorMessage": (_TEXT, [_POINTER]),
    "LLVMTargetMachineEmitToMemoryBuffer": (_INT, [_POINTER, _POINTER, _INT, _OUT, _OUT]),
    "LLVMGetBufferStart": (_POINTER, [_POINTER]),
    "LLVMGetBufferSize": (_SIZE, [_POINTER]),
    "LLVMDisposeMemoryBuffer": (None, [_POINTER]),
}


class LoweringError(Exception):
    """What the compiler said, and the stage that said it: parse, passes, translate, optimise or codegen."""

    def __init__(self, stage: str, message: str):
        super().__init__(message)
        self.stage, self.message = stage, message


def pipeline(text: str) -> str:
    """The passes from kernel level to the llvm dialect, the same for every processor.

    bf16 conversions are expanded to integer arithmetic: the hardware's instruction flushes denormals and the library
    call is missing in most processes.
    """
    passes = [
        "canonicalize",
        "cse",
        "lower-affine",
        "convert-vector-to-scf",
        "convert-scf-to-cf",
        *(["arith-expand{include-bf16=true}"] if "bf16" in text else []),
        "convert-vector-to-llvm",
        "expand-strided-metadata",
        "lower-affine",
        "finalize-memref-to-llvm",
        "convert-math-to-llvm",
        "convert-math-to-libm",
        "convert-arith-to-llvm",
        "convert-index-to-llvm",
        "convert-func-to-llvm{use-bare-ptr-memref-call-conv=1}",
        "convert-cf-to-llvm",
        "convert-ub-to-llvm",
        "reconcile-unrealized-casts",
    ]
    return f"builtin.module({','.join(passes)})"


def to_llvm_ir(text: str) -> str:
    """Kernel text to LLVM IR text. Raises LoweringError with the diagnostics of the verifier or the failed pass."""
    from mlir.dialects.llvm import translate_module_to_llvmir
    from mlir.ir import Context, Location, MLIRError, Module
    from mlir.passmanager import PassManager

    left = [operation for operation in HEAP_OPERATIONS if operation in text]
    if left:
        raise LoweringError("parse", f"a kernel must not allocate or copy buffers: found {left[0].strip(' (')}")
    stage = "parse"
    with Context(), Location.unknown():
        try:
            module = Module.parse(text)
            stage = "passes"
            PassManager.parse(pipeline(text)).run(module.operation)
            stage = "translate"
            _check_is_lowered(module)
            ir = translate_module_to_llvmir(module.operation)
        except (MLIRError, ValueError, RuntimeError) as error:
            raise LoweringError(stage, str(error)) from error
    return ir


def _check_is_lowered(module) -> None:
    """The translation crashes on operations that it does not know, so they are looked for first."""
    from mlir.ir import WalkResult

    left: dict[str, None] = {}

    def note(operation):
        if not operation.name.startswith("llvm.") and operation.name != "builtin.module":
            left[operation.name] = None
        return WalkResult.ADVANCE

    module.operation.walk(note)
    if left:
        raise LoweringError("translate", f"operations that the lowering passes left: {', '.join(left)}")


def to_object(ir: str, triple: str, cpu: str, features: str, library: str) -> bytes:
    """LLVM IR text to a native object for a CPU, at -O3. Empty triple, cpu and features mean this machine."""
    api = _llvm(library)
    if not triple:
        triple = api.LLVMGetDefaultTargetTriple().decode()
        cpu, features = api.LLVMGetHostCPUName().decode(), api.LLVMGetHostCPUFeatures().decode()
    machine = _target_machine(api, triple, cpu, features)
    context = api.LLVMContextCreate()
    try:
        module = _parse_ir(api, context, ir)
        try:
            return _emit(api, context, module, machine, triple)
        finally:
            api.LLVMDisposeModule(module)
    finally:
        api.LLVMContextDispose(context)
        api.LLVMDisposeTargetMachine(machine)


def compile_text(text: str, triple: str, cpu: str, features: str, library: str) -> bytes:
    """Kernel text to a native object; see `to_llvm_ir` and `to_object`."""
    return to_object(to_llvm_ir(text), triple, cpu, features, library)


@functools.cache
def _llvm(library: str) -> ctypes.CDLL:
    api = ctypes.CDLL(library)
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(api, name)
        function.restype, function.argtypes = result, arguments
    for target in sorted(set(TARGETS.values())):
        for part in ("TargetInfo", "Target", "TargetMC", "AsmPrinter"):
            getattr(api, f"LLVMInitialize{target}{part}")()
    return api


def _target_machine(api: ctypes.CDLL, triple: str, cpu: str, features: str) -> int:
    target, message = ctypes.c_void_p(), ctypes.c_void_p()
    if api.LLVMGetTargetFromTriple(triple.encode(), ctypes.byref(target), ctypes.byref(message)):
        raise LoweringError("codegen", f"no target for {triple}: {_text(message)}")
    options = (CODEGEN_LEVEL, RELOC_PIC, CODE_MODEL_SMALL)
    return api.LLVMCreateTargetMachine(target, triple.encode(), cpu.encode(), features.encode(), *options)


def _parse_ir(api: ctypes.CDLL, context: int, ir: str) -> ctypes.c_void_p:
    data, module, message = ir.encode(), ctypes.c_void_p(), ctypes.c_void_p()
    buffer = api.LLVMCreateMemoryBufferWithMemoryRangeCopy(data, len(data), b"kernel")
    if api.LLVMParseIRInContext(context, buffer, ctypes.byref(module), ctypes.byref(message)):
        raise LoweringError("translate", f"LLVM does not accept the translated IR: {_text(message)}")
    return module


def _emit(api: ctypes.CDLL, context: int, module: ctypes.c_void_p, machine: int, triple: str) -> bytes:
    layout = api.LLVMCreateTargetDataLayout(machine)
    api.LLVMSetTarget(module, triple.encode())
    api.LLVMSetModuleDataLayout(module, layout)
    api.LLVMDisposeTargetData(layout)
    _mark_nounwind(api, context, module)
    options = api.LLVMCreatePassBuilderOptions()
    error = api.LLVMRunPasses(module, OPTIMISER, machine, options)
    api.LLVMDisposePassBuilderOptions(options)
    if error:
        raise LoweringError("optimise", api.LLVMGetErrorMessage(error).decode(errors="replace"))
    buffer, message = ctypes.c_void_p(), ctypes.c_void_p()
    if api.LLVMTargetMachineEmitToMemoryBuffer(
        machine, module, OBJECT_FILE, ctypes.byref(message), ctypes.byref(buffer)
    ):
        raise LoweringError("codegen", _text(message))
    data = ctypes.string_at(api.LLVMGetBufferStart(buffer), api.LLVMGetBufferSize(buffer))
    api.LLVMDisposeMemoryBuffer(buffer)
    return data


def _mark_nounwind(api: ctypes.CDLL, context: int, module: ctypes.c_void_p) -> None:
    """Nothing here throws; without unwind tables, loading an object registers no frames in the process."""
    kind = api.LLVMGetEnumAttributeKindForName(b"nounwind", len(b"nounwind"))
    attribute = api.LLVMCreateEnumAttribute(context, kind, 0)
    function = api.LLVMGetFirstFunction(module)
    while function:
        api.LLVMAddAttributeAtIndex(function, 0xFFFFFFFF, attribute)  # the index of attributes of the function itself
        function = api.LLVMGetNextFunction(function)


def _text(message: ctypes.c_void_p) -> str:
    return ctypes.string_at(message.value).decode(errors="replace") if message.value else ""


def main(library: str, path: str, triple: str = "", cpu: str = "", features: str = "") -> None:
    """Compiles a file and writes the object to stdout."""
    with open(path, encoding="utf-8") as source:
        sys.stdout.buffer.write(compile_text(source.read(), triple, cpu, features, library))


if __name__ == "__main__":
    main(*sys.argv[1:])
