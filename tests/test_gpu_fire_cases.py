"""Every kernel that is put under fire on a GPU can be generated here: schedules written out by hand must still fit."""

from __future__ import annotations

import fire_cases
import pytest


@pytest.mark.parametrize("name", fire_cases.CASES)
def test_the_case_is_generated(name):
    case = fire_cases.make(name)
    assert case.kernel.phases and case.results
