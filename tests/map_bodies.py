"""GELU and AdamW as bodies of map kernels."""

from __future__ import annotations

from cpu_kernels import Body, region
from gelu_regions import gelu_gradient_region, gelu_region

from blutrain.nova.emitter import float_literal


def _region(text: str) -> str:
    *lines, result = text.splitlines()
    return region(*lines, f"{result} : f32")


def gelu(size: int) -> Body:
    body = Body("map")
    x = body.operand(size)
    body.result(body.map([(x, "d0")], (size,), _region(gelu_region("%i0"))))
    return body


def gelu_backward(size: int) -> Body:
    body = Body("map")
    x, g = body.operand(size), body.operand(size)
    body.result(body.map([(x, "d0"), (g, "d0")], (size,), _region(gelu_gradient_region("%i1", "%i0"))))
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
