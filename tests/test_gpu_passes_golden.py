"""Passes whose outcome depends on the target, for sm_90a: the files in tests/golden/gpu."""

from __future__ import annotations

import golden_support as golden
import pytest

from blutrain.nova.target_gpu import gpu_facts

FOLDER = "gpu"
PASSES = sorted(path.stem for path in (golden.DIRECTORY / FOLDER).glob("*.mlir"))
CASES = {name: golden.read_cases(f"{FOLDER}/{name}") for name in PASSES}


@pytest.mark.parametrize("name, index", [(n, i) for n in PASSES for i in range(len(CASES[n]))], ids=str)
def test_golden(name, index):
    golden.check_case(name, CASES[name][index], gpu_facts("sm_90a"))
    if golden.UPDATE:
        golden.write_cases(f"{FOLDER}/{name}", CASES[name])
