"""Every kernel that is put under fire on a GPU can be generated here: schedules written out by hand must still fit."""

from __future__ import annotations

import re

import fire_cases
import pytest

from blutrain.nova.gpu import lower


@pytest.mark.parametrize("name", fire_cases.CASES)
def test_the_case_is_generated(name):
    case = fire_cases.make(name)
    assert case.kernel.phases and case.results


@pytest.mark.parametrize("name", [f"simt {name}" for name in fire_cases.SIMT])
def test_plain_kernels_approximate_nothing_but_exponentials(name):
    """Square roots, their reciprocals and quotients are rounded as IEEE says, as on a CPU."""
    kernel = fire_cases.make(name).kernel
    ptx = lower.to_ptx(kernel.text, kernel.target)
    assert set(re.findall(r"\w+\.(?:approx|full)\S*", ptx)) <= {"ex2.approx.ftz.f32"}
