"""Every operation of the table through the kernel passes, evaluated by the reference evaluator, against the eager
rules.
"""

from __future__ import annotations

import kernels_support
import pytest
from cases import CASES

COMPILED = [case for case in CASES if case.compiled]


@pytest.mark.parametrize("case", COMPILED, ids=lambda case: case.name)
def test_case_in_float32(case):
    _compare(case, "float32" if "float32" in case.dtypes else case.dtypes[0])


@pytest.mark.parametrize("case", COMPILED[::5], ids=lambda case: case.name)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_case_in_other_dtypes(case, dtype):
    if dtype in case.dtypes:
        _compare(case, dtype)


def _compare(case, dtype: str) -> None:
    arrays = [tensor._buffer() for tensor in case.tensors(dtype)]
    kernels_support.run_step(kernels_support.record(case.call, arrays))
