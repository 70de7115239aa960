"""Which code runs a composite eagerly: its NumPy rule, or on CuPy the fused kernel of `tensor/cuda` where there is
one.
"""

from __future__ import annotations

import functools

import numpy


def eager_rule(name: str, rule):
    """The eager rule of primitive `name`: `rule(xp, ...)` with NumPy, `cuda.KERNELS[name]` (or else `rule`) with
    CuPy.
    """

    def eager(xp, *arrays, **attrs):
        if xp is numpy:
            return rule(xp, *arrays, **attrs)
        return _on_cupy(name, rule)(xp, *arrays, **attrs)

    return eager


@functools.cache
def _on_cupy(name: str, rule):
    from ..cuda import KERNELS

    return KERNELS.get(name, rule)
