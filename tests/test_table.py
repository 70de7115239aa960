"""The table of primitives is complete: every record has its parts, a docstring and a test case, and no attribute is
lost on the way.
"""

from __future__ import annotations

import ast
import inspect

import composite_cases
import pytest
from cases import CASES, ERRORS

import blutrain.distributed
import blutrain.tensor.ops  # noqa: F401  (and all others)
from blutrain.tensor.primitive import (
    KINDS,
    TABLE,
    Collective,
    Composed,
    Indexing,
    NotDifferentiable,
    Reduction,
    Saves,
    Scalar,
    Special,
    Unsupported,
    define,
)

SIMPLE = [p for p in TABLE.values() if p.kind not in ("composite", "random")]
COLLECTIVES = {
    "all_gather",
    "all_reduce",
    "barrier",
    "broadcast",
    "gather_bucket",
    "recv",
    "reduce_bucket",
    "reduce_scatter",
    "send",
}
ELSEWHERE = {"check"} | COLLECTIVES | {c.name for c in composite_cases.CASES}  # collectives: test_distributed_*.py


@pytest.mark.parametrize("prim", TABLE.values(), ids=lambda p: p.name)
def test_every_record_is_whole(prim):
    assert prim.kind in KINDS and prim.doc.strip().endswith((".", "?"))
    assert callable(prim.infer) and callable(prim.eager)
    assert callable(prim.vjp) or (isinstance(prim.vjp, NotDifferentiable) and prim.vjp.reason)
    assert isinstance(prim.nova, Scalar | Reduction | Indexing | Special | Collective | Composed | Unsupported)
    assert isinstance(prim.saves, Saves) and (
        not prim.saves.needed_for or len(prim.saves.needed_for) == len(prim.saves.operands)
    )
    assert prim.kind != "composite" or callable(prim.compose)
    if isinstance(prim.nova, Composed):
        assert callable(prim.compose)
    assert next(iter(inspect.signature(prim.eager).parameters)) == "xp" or prim.kind == "composite"


@pytest.mark.parametrize("prim", SIMPLE, ids=lambda p: p.name)
def test_every_simple_record_has_a_case(prim):
    assert prim.name in {c.primitive for c in CASES} | ELSEWHERE


def test_cases_name_primitives():
    assert {c.primitive for c in CASES} <= TABLE.keys()
    assert {b.primitive for b in ERRORS} <= TABLE.keys()
    names = [c.name for c in CASES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("prim", [p for p in SIMPLE if isinstance(p.nova, Scalar)], ids=lambda p: p.name)
def test_scalar_expressions_parse(prim):
    """Calls of dotted MLIR op names on a, b, c, numbers, and predicates; nothing else."""
    for text in (prim.nova.floating, prim.nova.integer, prim.nova.boolean):
        if text is None:
            continue
        for node in ast.walk(ast.parse(text, mode="eval")):
            if isinstance(node, ast.Call):
                assert isinstance(node.func, ast.Attribute) and not node.keywords
            elif isinstance(node, ast.Name):
                assert node.id in ("a", "b", "c", "inf", "nan", "arith", "math")
    assert prim.nova.compute in ("promoted", "result", "select")


def test_define_refuses_bad_records():
    parts = {"infer": None, "eager": None, "vjp": None, "nova": None, "doc": ""}
    with pytest.raises(ValueError, match="defined twice"):
        define("add", "elementwise", **parts)
    with pytest.raises(ValueError, match="unknown kind"):
        define("no_such", "strange", **parts)
    with pytest.raises(ValueError, match="needs `compose`"):
        define("no_such", "composite", **parts)
    assert "no_such" not in TABLE
