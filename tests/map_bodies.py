"""GELU and AdamW as bodies of map kernels."""

from __future__ import annotations

from cpu_kernels import Body, region

from blutrain.nova.emitter import float_literal

_GELU = (
    "%c = arith.constant 0.7978845608028654 : f32",
    "%k = arith.constant 0.044715 : f32",
    "%half = arith.constant 0.5 : f32",
    "%one = arith.constant 1.0 : f32",
    "%x2 = arith.mulf %i0, %i0 : f32",
    "%x3 = arith.mulf %x2, %i0 : f32",
    "%kx = arith.mulf %k, %x3 : f32",
    "%s = arith.addf %i0, %kx : f32",
    "%u = arith.mulf %s, %c : f32",
    "%t = math.tanh %u : f32",
    "%o = arith.addf %t, %one : f32",
    "%hx = arith.mulf %i0, %half : f32",
)
_GELU_BACKWARD = (
    "%k3 = arith.constant 0.134145 : f32",
    "%q = arith.mulf %k3, %x2 : f32",
    "%q1 = arith.addf %q, %one : f32",
    "%du = arith.mulf %q1, %c : f32",
    "%t2 = arith.mulf %t, %t : f32",
    "%st = arith.subf %one, %t2 : f32",
    "%a = arith.mulf %hx, %st : f32",
    "%a2 = arith.mulf %a, %du : f32",
    "%ho = arith.mulf %o, %half : f32",
    "%d = arith.addf %ho, %a2 : f32",
    "%y = arith.mulf %d, %i1 : f32",
    "%y : f32",
)


def gelu(size: int) -> Body:
    body = Body("map")
    x = body.operand(size)
    body.result(body.map([(x, "d0")], (size,), region(*_GELU, "%y = arith.mulf %hx, %o : f32", "%y : f32")))
    return body


def gelu_backward(size: int) -> Body:
    body = Body("map")
    x, g = body.operand(size), body.operand(size)
    body.result(body.map([(x, "d0"), (g, "d0")], (size,), region(*_GELU, *_GELU_BACKWARD)))
    return body


def adamw(size: int, dtype: str = "f32") -> Body:
    """p, g, m, v, lr, 1-beta1^t, 1-beta2^t to p, m, v in their own memory."""
    body = Body("map")
    arrays = [body.operand(size, dtype=dtype) for _ in range(4)]
    scalars = [body.operand(dtype="f64") for _ in range(3)]
    constants = {"b1": 0.9, "b2": 0.999, "c1": 0.1, "c2": 0.001, "wd": 0.01, "eps": 1e-8}
    narrow = lambda i: f"%i{i}" if dtype == "f64" else f"%n{i}"
    text = region(
        *([f"%n{i} = arith.truncf %i{i} : f64 to f32" for i in (4, 5, 6)] if dtype == "f32" else []),
        *[f"%{k} = arith.constant {float_literal(v)} : {dtype}" for k, v in constants.items()],
        f"%m0 = arith.mulf %i2, %b1 : {dtype}",
        f"%m1 = arith.mulf %i1, %c1 : {dtype}",
        f"%m = arith.addf %m0, %m1 : {dtype}",
        f"%v0 = arith.mulf %i3, %b2 : {dtype}",
        f"%g2 = arith.mulf %i1, %i1 : {dtype}",
        f"%v1 = arith.mulf %g2, %c2 : {dtype}",
        f"%v = arith.addf %v0, %v1 : {dtype}",
        f"%mh = arith.divf %m, {narrow(5)} : {dtype}",
        f"%vh = arith.divf %v, {narrow(6)} : {dtype}",
        f"%rt = math.sqrt %vh : {dtype}",
        f"%dn = arith.addf %rt, %eps : {dtype}",
        f"%up = arith.divf %mh, %dn : {dtype}",
        f"%dc = arith.mulf %i0, %wd : {dtype}",
        f"%st = arith.addf %up, %dc : {dtype}",
        f"%sc = arith.mulf %st, {narrow(4)} : {dtype}",
        f"%p = arith.subf %i0, %sc : {dtype}",
        f"%p, %m, %v : {dtype}, {dtype}, {dtype}",
    )
    outputs = [(body.empty((size,), dtype), "d0") for _ in range(3)]
    inputs = [(a, "d0") for a in arrays] + [(s, "") for s in scalars]
    for value, alias in zip(body.generic(inputs, outputs, "p", text), (0, 2, 3), strict=True):
        body.result(value, alias)
    return body
