"""Every operation of the table through the kernel passes, evaluated by the reference evaluator, against the eager
rules.
"""

from __future__ import annotations

import kernels_support
import numpy as np
import pytest
from cases import CASES, Case
from composite_cases import CASES as COMPOSITES
from composite_cases import DTYPES, Source, case_id

import blutrain as bt
from blutrain.tensor.dispatch import apply
from blutrain.tensor.primitive import TABLE

COMPILED = [case for case in CASES if case.compiled]
INTEGERS = ("uint8", "int8", "uint16", "int16", "int32", "int64", "bool")


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


@pytest.mark.parametrize("number", range(len(COMPILED)), ids=lambda number: COMPILED[number].name)
def test_case_in_integers(number):
    """All numbers in one integer dtype after the other; not where the eager rules refuse it."""
    case, dtype = COMPILED[number], INTEGERS[number % len(INTEGERS)]
    tensors = _integers(case, dtype)
    try:
        with bt.no_grad(), np.errstate(all="ignore"):
            case.call(*tensors)
    except (TypeError, ValueError):
        return
    with np.errstate(all="ignore"):
        kernels_support.run_step(kernels_support.record(case.call, [t._buffer() for t in tensors]))


def _integers(case: Case, dtype: str) -> list[bt.Tensor]:
    """The inputs of a case, all but bools and indices in `dtype`."""
    found = []
    for x, array in zip(case.inputs, case.arrays()):
        if x.kind == "float":
            array = np.abs(array) if dtype.startswith("u") else array
            found.append(bt.tensor(np.nan_to_num(array, posinf=9, neginf=0)).to(getattr(bt, dtype)))
        elif x.kind == "int" and all(x.kind == "int" for x in case.inputs) and dtype != "bool":
            found.append(bt.tensor(np.abs(array)).to(getattr(bt, dtype)))
        else:
            found.append(bt.tensor(array))
    return found


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("case", COMPOSITES, ids=case_id)
def test_composite(case, dtype):
    operands = case.operands(Source(DTYPES[dtype]))
    arrays = [x for x in operands if isinstance(x, np.ndarray)]

    def call(*tensors):
        given = iter(tensors)
        return apply(
            TABLE[case.name], *[next(given) if isinstance(x, np.ndarray) else x for x in operands], **case.attrs
        )

    kernels_support.run_step(kernels_support.record(call, arrays))
