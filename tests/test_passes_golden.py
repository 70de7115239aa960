"""Every pass that has a file in tests/golden: cases it changes, leaves alone and refuses."""

from __future__ import annotations

import golden_support as golden
import pytest

GRAPH_PASSES = sorted(path.stem for path in golden.DIRECTORY.glob("*.mlir"))
CASES = {name: golden.read_cases(name) for name in GRAPH_PASSES}


@pytest.mark.parametrize(
    "name, index", [(n, i) for n in GRAPH_PASSES for i in range(len(CASES[n]))], ids=lambda x: str(x)
)
def test_golden(name, index):
    golden.check_case(name, CASES[name][index])
    if golden.UPDATE:
        golden.write_cases(name, CASES[name])
