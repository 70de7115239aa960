"""tanh-GELU and its gradient as regions of MLIR, for bodies of kernels, and in NumPy."""

from __future__ import annotations

import numpy as np

SQRT_2_OVER_PI, CUBIC = 0.7978845608028654, 0.044715


def gelu_region(x: str, dtype: str = "f32") -> str:
    """%y is the GELU of x; %t its tanh."""
    return f"""
        %half = arith.constant 0.5 : {dtype}
        %one = arith.constant 1.0 : {dtype}
        %c = arith.constant {SQRT_2_OVER_PI} : {dtype}
        %d = arith.constant {CUBIC} : {dtype}
        %q2 = arith.mulf {x}, {x} : {dtype}
        %q3 = arith.mulf %q2, {x} : {dtype}
        %p = arith.mulf %q3, %d : {dtype}
        %u = arith.addf {x}, %p : {dtype}
        %v = arith.mulf %u, %c : {dtype}
        %t = math.tanh %v : {dtype}
        %w = arith.addf %t, %one : {dtype}
        %h = arith.mulf {x}, %half : {dtype}
        %y = arith.mulf %h, %w : {dtype}
        %y"""


def gelu_gradient_region(gradient: str, x: str) -> str:
    """%dz is gradient * gelu'(x)."""
    return f"""{gelu_region(x).rsplit("%y", 1)[0]}
        %t2 = arith.mulf %t, %t : f32
        %sech = arith.subf %one, %t2 : f32
        %three = arith.constant {3 * CUBIC} : f32
        %i = arith.mulf %q2, %three : f32
        %j = arith.addf %i, %one : f32
        %du = arith.mulf %j, %c : f32
        %hs = arith.mulf %h, %sech : f32
        %left = arith.mulf %hs, %du : f32
        %hw = arith.mulf %w, %half : f32
        %slope = arith.addf %left, %hw : f32
        %dz = arith.mulf %slope, {gradient} : f32
        %dz"""


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(SQRT_2_OVER_PI * (x + CUBIC * x**3)))


def gelu_slope(x: np.ndarray) -> np.ndarray:
    t = np.tanh(SQRT_2_OVER_PI * (x + CUBIC * x**3))
    return 0.5 * x * (1 - t * t) * SQRT_2_OVER_PI * (1 + 3 * CUBIC * x * x) + 0.5 * (1 + t)
