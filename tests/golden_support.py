"""Golden tests of passes: one file per pass in tests/golden, many cases a file.

    // ===== name of the case
    func.func @step(...) ...            the input
    // -----                            the expected output follows; or `// ----- unchanged`, or `// ----- refused:
    part of the message` func.func @step(...) ...

BLUTRAIN_UPDATE_GOLDEN=1 writes the outputs that passes give now into the files: read the diff before you commit it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from mlir import ir

import blutrain.distributed  # noqa: F401  (its collectives are operations, too)
from blutrain.errors import NovaError
from blutrain.nova.dialect import create_context, verify
from blutrain.nova.passes.driver import Settings, run_passes

DIRECTORY = Path(__file__).parent / "golden"
UPDATE = os.environ.get("BLUTRAIN_UPDATE_GOLDEN") == "1"


@dataclass
class Case:
    """`verdict` is "" (changed: compare with `expected`), "unchanged" or "refused: <part of the message>"."""

    name: str
    source: str
    verdict: str
    expected: str

    def text(self) -> str:
        head = f"// ===== {self.name}\n{self.source.strip()}\n// -----"
        return f"{head} {self.verdict}\n" if self.verdict else f"{head}\n{self.expected.strip()}\n"


def read_cases(pass_name: str) -> list[Case]:
    """The cases of tests/golden/<pass_name>.mlir."""
    text = (DIRECTORY / f"{pass_name}.mlir").read_text()
    cases = []
    for part in re.split(r"^// =====", text, flags=re.M)[1:]:
        name, _, body = part.partition("\n")
        source, verdict, expected = re.split(r"^// -----(.*)\n", body, maxsplit=1, flags=re.M)
        cases.append(Case(name.strip(), source, verdict.strip(), expected))
    return cases


def check_case(pass_name: str, case: Case, facts=None) -> None:
    """Run the pass over the case. Raises AssertionError where the outcome is not the expected one."""
    with create_context():
        module = ir.Module.parse(case.source)
        verify(module)
        before = str(module)
        if case.verdict.startswith("refused"):
            _check_refused(pass_name, module, case, facts)
            return
        run_passes(module, (pass_name,), facts, Settings(verify=True))
        after = str(module)
        if case.verdict == "unchanged":
            assert after == before, f"{pass_name} changed {case.name!r}:\n{after}"
        elif UPDATE:
            case.expected = after
        else:
            assert after == str(ir.Module.parse(case.expected)), f"{pass_name} gives for {case.name!r}:\n{after}"


def _check_refused(pass_name: str, module: ir.Module, case: Case, facts) -> None:
    wanted = case.verdict.removeprefix("refused:").strip()
    try:
        run_passes(module, (pass_name,), facts, Settings(verify=True))
    except NovaError as fault:
        assert wanted in str(fault), f"{pass_name} refuses {case.name!r} with another message:\n{fault}"
        return
    raise AssertionError(f"{pass_name} accepts {case.name!r}, expected an error with {wanted!r}")


def write_cases(pass_name: str, cases: list[Case]) -> None:
    """Write the file of a pass anew (only under BLUTRAIN_UPDATE_GOLDEN=1)."""
    (DIRECTORY / f"{pass_name}.mlir").write_text("\n".join(case.text() for case in cases))
