"""The driver and the command line: dumps, timing, errors that name pass and line, reproducers that replay."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from mlir import ir

from blutrain.errors import NovaError
from blutrain.nova import opt
from blutrain.nova.dialect import create_context
from blutrain.nova.passes import dce, driver
from blutrain.nova.passes.driver import PassFault, Settings, run_passes

T = "tensor<4xf32>"
STEP = f"""func.func @step(%x: {T}) -> {T} {{
  %0 = "nova.exp"(%x) : ({T}) -> {T} loc("train.py":7:0)
  %1 = "nova.exp"(%x) : ({T}) -> {T} loc("train.py":8:0)
  %2 = "nova.add"(%0, %1) : ({T}, {T}) -> {T} loc("train.py":9:0)
  return %2 : {T}
}}"""


@pytest.fixture
def module():
    with create_context():
        yield ir.Module.parse(STEP)


def test_dumps_are_numbered_and_only_of_changes(module, tmp_path):
    report = run_passes(module, ("dce", "cse", "dce"), None, Settings(dump=str(tmp_path)))
    assert [Path(p).name for p in report.dumps] == ["00-import.mlir", "02-cse.mlir"]
    assert list(report.milliseconds) == ["01-dce", "02-cse", "03-dce"]
    text = (tmp_path / "02-cse.mlir").read_text()
    assert text.count("nova.exp") == 1 and "train.py" in text


def test_a_fault_names_pass_operation_and_line(module, tmp_path, monkeypatch):
    def broken(module, facts):
        op = module.body.operations[0].regions[0].blocks[0].operations[1]
        raise PassFault(op.operation, "cannot deal with it")

    monkeypatch.setattr(dce, "run", broken)
    with pytest.raises(NovaError) as caught:
        run_passes(module, ("cse", "dce"), None, Settings(dump=str(tmp_path)))
    fault = caught.value
    assert fault.stage == "dce" and fault.location == "train.py:9" and "nova.add" in fault.op
    assert "cannot deal with it" in str(fault)


def test_other_exceptions_keep_their_type_and_cause(module, monkeypatch):
    monkeypatch.setattr(dce, "run", lambda module, facts: {}["missing"])
    with pytest.raises(NovaError, match="nova/dce: KeyError: 'missing'") as caught:
        run_passes(module, ("dce",), None)
    assert isinstance(caught.value.__cause__, KeyError)


def test_invalid_ir_after_a_pass_is_found(module, monkeypatch):
    def wrong_type(module, facts):
        block = module.body.operations[0].regions[0].blocks[0]
        with ir.Location.file("train.py", 12, 0), ir.InsertionPoint.at_block_begin(block):
            ir.Operation.create("nova.exp", results=[ir.Type.parse("tensor<5xf32>")], operands=[block.arguments[0]])

    monkeypatch.setattr(dce, "run", wrong_type)
    with pytest.raises(NovaError, match="the shape rule gives") as caught:
        run_passes(module, ("dce",), None, Settings(verify=True))
    assert caught.value.location == "train.py:12"


def test_the_pass_that_left_invalid_ir_is_found_by_a_second_run(module, monkeypatch):
    """Nothing is verified, or copied, between passes that do not fail."""

    def misplaced(module, facts):
        block = module.body.operations[0].regions[0].blocks[0]
        block.operations[0].operation.move_after(block.operations[1].operation)

    checks = []
    monkeypatch.setattr(driver, "verify", lambda module: checks.append(module))
    monkeypatch.setattr(dce, "run", misplaced)
    with pytest.raises(NovaError, match="does not dominate this use") as caught:
        run_passes(module, ("cse", "dce", "cse"), None)
    assert caught.value.stage == "dce" and "train.py:9" in str(caught.value) and not checks
    path = re.search(r"opt (\S+) --passes=dce", str(caught.value)).group(1)
    assert Path(path).read_text().count("nova.exp") == 1, "the IR before the failing pass"


def test_a_fault_that_does_not_come_again_names_all_passes(module, monkeypatch):
    faults = [KeyError("once")]
    monkeypatch.setattr(dce, "run", lambda module, facts: None if not faults else (_ for _ in ()).throw(faults.pop()))
    with pytest.raises(NovaError, match="KeyError: 'once'") as caught:
        run_passes(module, ("cse", "dce"), None)
    assert caught.value.stage == "cse,dce"


def test_the_reproducer_replays(module, tmp_path, monkeypatch, capsys):
    def broken(module, facts):
        raise PassFault(module.body.operations[0].operation, "always")

    monkeypatch.setattr(dce, "run", broken)
    with pytest.raises(NovaError) as caught:
        run_passes(module, ("cse", "dce"), None, Settings(dump=str(tmp_path)))
    command = re.search(r"python -m blutrain\.nova\.opt (.*)", str(caught.value)).group(1).split()
    assert Path(command[0]).read_text().count("nova.exp") == 1, "the IR before the failing pass"
    assert opt.main(command) == 1
    assert "always" in capsys.readouterr().err
    monkeypatch.undo()
    assert opt.main(command) == 0
    assert "nova.exp" in capsys.readouterr().out


def test_an_unknown_pass(module):
    with pytest.raises(ValueError, match="no pass is called 'fuse_all'"):
        run_passes(module, ("fuse_all",), None)
    assert driver.find_pass("cse").NAME == "cse"


def test_opt_as_a_command(tmp_path):
    path = tmp_path / "step.mlir"
    path.write_text(STEP)
    command = [sys.executable, "-m", "blutrain.nova.opt", str(path), "--passes=canonicalize,cse", "--timing"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("nova.exp") == 1 and "train.py" in done.stdout
    assert "02-cse" in done.stderr


def test_opt_reports_bad_ir(tmp_path, capsys):
    path = tmp_path / "step.mlir"
    path.write_text(STEP.replace('"nova.add"', '"nova.nope"'))
    assert opt.main([str(path), "--passes=cse"]) == 1
    assert "train.py:9" in capsys.readouterr().err
