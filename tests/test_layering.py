"""Which part imports which, how large files and functions are, what a plain import loads and costs."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "blutrain"
MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 80
STANDARD = sys.stdlib_module_names
# What each part may import: parts of blutrain, and packages from outside. A name ending in "*" allows what lies below.
FOUNDATION = {"blutrain.errors", "blutrain.config"}
MAY_IMPORT = {
    "errors": ({"blutrain.errors"}, set()),
    "config": (FOUNDATION, set()),
    "tensor": ({*FOUNDATION, "blutrain.tensor*"}, {"numpy", "ml_dtypes", "cupy", "cupyx"}),
    "autograd": ({*FOUNDATION, "blutrain.tensor*", "blutrain.autograd*"}, {"numpy"}),
    "nn": (
        {*FOUNDATION, "blutrain.tensor*", "blutrain.autograd*", "blutrain.nn*"},
        {"numpy", "safetensors", "ml_dtypes"},
    ),
    "optim": ({*FOUNDATION, "blutrain.tensor*", "blutrain.autograd*", "blutrain.optim*"}, {"numpy"}),
    "nova": (
        {*FOUNDATION, "blutrain.tensor*", "blutrain.nn*", "blutrain.nova*"},
        {"numpy", "ml_dtypes", "mlir", "cupy", "cuda"},
    ),
    "distributed": (
        {*FOUNDATION, *(f"blutrain.{part}*" for part in ("tensor", "autograd", "nn", "optim", "distributed"))},
        {"numpy", "ml_dtypes", "cupy", "mpi4py"},
    ),
}
# Imports that go the other way: Module.compile() loads nova, inside of a function; tools for developers.
LAZY = {
    ("nn/module.py", "blutrain.nova"),
    ("nova/aot.py", "blutrain.optim"),
    ("tensor/write_stub.py", "blutrain.autograd"),
}
# MLIR: below these and nowhere else, so that a program from the disk cache loads without it. The last line: tools.
MLIR = (
    "nova/import_trace.py", "nova/compile.py", "nova/kernel.py", "nova/kernel_reader.py", "nova/clone.py",
    "nova/contract/", "nova/dialect/", "nova/passes/", "nova/cpu/", "nova/gpu/",
    "nova/opt.py", "nova/check.py", "nova/reference.py",
)  # fmt: skip


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path, lazy: bool = True) -> set[str]:
    """Absolute names of the modules a file imports, without those that only type checkers see.

    lazy: those inside of functions, too.
    """
    module = path.relative_to(ROOT).with_suffix("").parts
    package = module[:-1]
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for other in child.orelse:
                    visit(other)
                continue
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not lazy:
                continue
            if isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = list(package[: len(package) - child.level + 1]) if child.level else []
                target = ".".join([*base, *([child.module] if child.module else [])])
                found.update(resolve(target, alias.name) for alias in child.names)
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


def resolve(module: str, name: str) -> str:
    """`from module import name` as the module that it loads."""
    if not module.startswith("blutrain"):
        return module
    below = ROOT.joinpath(*module.split("."), name)
    return f"{module}.{name}" if below.is_dir() or below.with_suffix(".py").exists() else module


def allowed(name: str, patterns: set[str]) -> bool:
    return any(name == p.rstrip("*") or (p.endswith("*") and name.startswith(p[:-1] + ".")) for p in patterns)


def test_parts_import_only_what_lies_below_them():
    wrong = []
    for path in sources():
        if path.parent == PACKAGE and path.name == "__init__.py":
            continue
        inside, outside = MAY_IMPORT[part_of(path)]
        for name in imports_of(path):
            top = name.split(".")[0]
            if top == "blutrain":
                if not allowed(name, inside) and (name_of(path), name) not in LAZY:
                    wrong.append(f"{name_of(path)} imports {name}")
            elif top not in STANDARD and top not in outside:
                wrong.append(f"{name_of(path)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_packages_that_are_not_always_there_are_imported_where_they_are_needed():
    """cupy, mpi4py, cuda: inside of functions, so that modules can be imported without them (not those for CuPy alone)."""
    optional = {"cupy", "cupyx", "mpi4py", "cuda", "nvidia"}
    wrong = [
        f"{name_of(path)} imports {name} at its top"
        for path in sources()
        if not name_of(path).startswith("tensor/cuda/")
        for name in imports_of(path, lazy=False)
        if name.split(".")[0] in optional
    ]
    assert not wrong, "\n".join(wrong)


def test_mlir_is_imported_below_the_compiler_only():
    wrong = [
        f"{name_of(path)} imports {name}"
        for path in sources()
        for name in imports_of(path)
        if name.split(".")[0] == "mlir" and not name_of(path).startswith(MLIR)
    ]
    assert not wrong, "\n".join(wrong)


def test_nobody_but_examples_and_tests_imports_nova_or_distributed():
    wrong = [
        f"{name_of(path)} imports {name}"
        for path in sources()
        for name in imports_of(path)
        for part in ("nova", "distributed")
        if allowed(name, {f"blutrain.{part}*"}) and part_of(path) not in (part, "__init__")
        if (name_of(path), name) not in LAZY
    ]
    assert not wrong, "\n".join(wrong)


# -------------------------------------------------------------------- sizes


def test_files_fit_a_reader():
    large = {name_of(p): n for p in sources() if (n := len(p.read_text().splitlines())) > MAX_FILE_LINES}
    assert not large, f"over {MAX_FILE_LINES} lines: {large}"


def test_functions_fit_a_screen():
    large = []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    large.append(f"{name_of(path)}:{node.lineno} {node.name} has {lines} lines")
    assert not large, "\n".join(large)


def test_no_file_is_called_after_nothing():
    names = {p.stem for p in sources()}
    assert not names & {"utils", "helpers", "misc", "common", "manager"}


# -------------------------------------------------------------------- what an import does


def python(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    ).stdout


@pytest.mark.parametrize("unused", ["mlir", "cupy", "mpi4py", "safetensors", "ctypes.util", "blutrain.nova"])
def test_import_loads_only_what_it_needs(unused):
    loaded = json.loads(python("import sys, json, blutrain; print(json.dumps(sorted(sys.modules)))"))
    assert unused not in loaded


def test_eager_training_loads_no_compiler():
    code = """
import json, sys
import blutrain as bt
from blutrain import nn, optim
model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
optimizer = optim.AdamW(model.parameters(), lr=1e-3)
model(bt.ones(3, 4)).square().mean().backward()
optimizer.step()
print(json.dumps(sorted(sys.modules)))
"""
    loaded = json.loads(python(code))
    assert not [name for name in loaded if name.split(".")[0] in ("mlir", "cupy") or name.startswith("blutrain.nova")]


def test_import_adds_under_150_ms_to_numpys():
    """Medians of interleaved runs, each in a new process that times its import itself: its own time on the processor, to
    which other processes do not add.
    """
    timed = "import time; t = time.process_time(); import {}; print(time.process_time() - t)"
    python("import blutrain")  # compiles the bytecode
    times = {"numpy": [], "blutrain": []}
    for _ in range(5):
        for name, seconds in times.items():
            seconds.append(float(python(timed.format(name))))
    medians = {name: sorted(seconds)[len(seconds) // 2] for name, seconds in times.items()}
    assert medians["blutrain"] - medians["numpy"] < 0.150, medians
