"""One matrix product through cuBLASLt: a bias is added before the result is rounded and stored, and what cuBLAS looks up
anew in every call (which kernel, with what settings) is looked up once for each kind of product.

cuBLASLt thinks column by column, like cuBLAS: a row-major C = A @ B is computed as C.T = B.T @ A.T.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

import cupy
from cupy.cuda import cublas, device  # noqa: F401  (cublas: loads the library that cuBLASLt is a part of)

WORKSPACE_BYTES = 1 << 25
# Enumerators of cublasLt.h.
_TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE, _BIAS_POINTER = 3, 4, 7, 8
_WORKSPACE, _REDUCTIONS, _ALIGNMENT_A = 1, 3, 5
_IN_COMPUTE_TYPE = 2  # partial sums of a split k stay in it
_ADD_BIAS = 4
_F32 = 0
# The first of its choices that fills so much of the GPU is taken. Its very first may fill half of it: 270 us in place of
# 191 for the gradient of a weight 768 x 3072 over 8192 rows, TF32 on an H200.
_CHOICES, _FULL = 8, 0.8
_EIGHT = ctypes.c_size_t(8)


class Product(NamedTuple):
    """out[m, n] = op(a) @ op(b) (+ bias); data: cudaDataType of all, compute: cublasComputeType_t; op(x) is x.T where
    transposed is 1; leading dimensions as in memory. Pointers are multiples of 16.
    """

    data: int
    compute: int
    m: int
    n: int
    k: int
    transposed_a: int
    leading_a: int
    transposed_b: int
    leading_b: int
    has_bias: bool


class _Algorithm(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t. waves: how often it fills the GPU."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(f"libcublasLt.so.{cupy.cuda.runtime.runtimeGetVersion() // 1000}")
    library.cublasLtMatmul.argtypes = [ctypes.c_void_p] * 14 + [ctypes.c_size_t, ctypes.c_void_p]
    return library


def _call(name: str, *args) -> None:
    status = getattr(_library(), name)(*args)
    if status:
        raise RuntimeError(f"{name}: cublasStatus_t {status}")


def _make(name: str, *args) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    _call(name, ctypes.byref(made), *args)
    return made


def _set(what: str, thing, attribute: int, value) -> None:
    _call(f"cublasLt{what}SetAttribute", thing, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))


class _Plan:
    """Descriptors and the algorithm for a kind of product, with a handle (one per thread and device)."""

    _owned: Any = ()

    def __init__(self, handle: int, product: Product):
        self.multiply = _library().cublasLtMatmul
        self.product = _make("cublasLtMatmulDescCreate", product.compute, _F32)
        _set("MatmulDesc", self.product, _TRANSPOSE_A, ctypes.c_int32(product.transposed_b))
        _set("MatmulDesc", self.product, _TRANSPOSE_B, ctypes.c_int32(product.transposed_a))
        if product.has_bias:
            _set("MatmulDesc", self.product, _EPILOGUE, ctypes.c_uint32(_ADD_BIAS))
        data, m, n, k = product.data, product.m, product.n, product.k
        self.a = _layout(data, (m, k) if product.transposed_a else (k, m), product.leading_a)
        self.b = _layout(data, (k, n) if product.transposed_b else (n, k), product.leading_b)
        self.out = _layout(data, (n, m), n)
        preference = _make("cublasLtMatmulPreferenceCreate")
        _set("MatmulPreference", preference, _WORKSPACE, ctypes.c_uint64(WORKSPACE_BYTES))
        for i in range(4):
            _set("MatmulPreference", preference, _ALIGNMENT_A + i, ctypes.c_uint32(16))
        if data != _F32:
            _set("MatmulPreference", preference, _REDUCTIONS, ctypes.c_uint32(_IN_COMPUTE_TYPE))
        self.algorithms, found = (_Algorithm * _CHOICES)(), ctypes.c_int()
        layouts = self.b, self.a, self.out, self.out
        _call(
            "cublasLtMatmulAlgoGetHeuristic", ctypes.c_void_p(handle), self.product, *layouts, preference, _CHOICES,
            self.algorithms, ctypes.byref(found),
        )  # fmt: skip
        _call("cublasLtMatmulPreferenceDestroy", preference)
        choices = range(found.value)
        if not choices:
            raise RuntimeError(f"cuBLASLt has no algorithm for {product}")
        full = [i for i in choices if self.algorithms[i].waves >= _FULL]
        self.algorithm = ctypes.addressof(self.algorithms[full[0] if full else 0])
        destroy = _library().cublasLtMatrixLayoutDestroy
        self._owned = [(destroy, thing) for thing in (self.a, self.b, self.out)]
        self._owned.append((_library().cublasLtMatmulDescDestroy, self.product))
        self.bias = ctypes.c_uint64()
        self.set_bias = functools.partial(
            _library().cublasLtMatmulDescSetAttribute, self.product, _BIAS_POINTER, ctypes.byref(self.bias), _EIGHT
        )

    def __del__(self):
        for destroy, thing in self._owned:
            destroy(thing)


def _layout(data: int, shape: tuple[int, int], leading: int) -> ctypes.c_void_p:
    rows, columns = shape
    return _make(
        "cublasLtMatrixLayoutCreate", data, ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(leading)
    )


_plan = functools.lru_cache(maxsize=1024)(_Plan)


@functools.cache
def _workspace(handle: int, stream: int):
    """Memory that products of one stream use one after the other."""
    return cupy.empty(WORKSPACE_BYTES, "uint8").data


def multiply(product: Product, a, b, out, bias, alpha: int, beta: int) -> None:
    """Arrays of CuPy (bias: or None); alpha and beta: pointers to 1 and 0 on the host, in f32.

    Errors: RuntimeError where cuBLASLt refuses.
    """
    status = 0
    handle, stream = device.get_cublas_handle(), cupy.cuda.get_current_stream().ptr
    plan, workspace = _plan(handle, product), _workspace(handle, stream)
    if bias is not None and plan.bias.value != bias.data.ptr:
        plan.bias.value = bias.data.ptr
        status = plan.set_bias()
    result = out.data.ptr
    status = status or plan.multiply(
        handle, plan.product, alpha, b.data.ptr, plan.b, a.data.ptr, plan.a, beta, result, plan.out, result, plan.out,
        plan.algorithm, workspace.ptr, WORKSPACE_BYTES, stream,
    )  # fmt: skip
    if status:
        raise RuntimeError(f"cublasLtMatmul: cublasStatus_t {status} for {product}")
