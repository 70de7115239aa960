"""Error messages, the user's line, and the switches of config."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import blutrain as bt
from blutrain import config, errors


def test_a_message_has_all_its_parts():
    text = errors.message("op", "a rule", expected="this", got="that", location=("file.py", 3), help="do so")
    assert text == "op: a rule\n  expected: this\n  got: that\n  at file.py:3\n  help: do so"


def test_the_users_line_is_found():
    file, line = errors.user_location()
    assert file == __file__ and line > 0
    with pytest.raises(ValueError) as info:
        bt.ones(2) @ bt.ones(3)  # this line
    at = next(row for row in str(info.value).splitlines() if row.startswith("  at "))
    with open(__file__) as source:
        number = next(i for i, row in enumerate(source, 1) if "# this line" in row)
    assert at == f"  at {__file__}:{number}"


def test_a_compiler_fault_says_where_and_how_to_replay():
    text = str(errors.NovaError("broke", stage="pass", op="add", location="a.py:1", dump="/tmp/x"))
    assert text.splitlines() == ["nova/pass: broke", "  operation: add", "  at a.py:1", "  reproducer: /tmp/x"]


def test_scopes_nest_and_end():
    assert config.get("NOVA_DEBUG") == 0
    with config.scope(NOVA_DEBUG=2, matmul_precision="tf32"):
        with config.scope(NOVA_DEBUG=5):
            assert config.get("NOVA_DEBUG") == 5
        assert config.get("NOVA_DEBUG") == 2 and config.get("matmul_precision") == "tf32"
        with pytest.raises(KeyError), config.scope(NOVA_CHECK=True):
            raise KeyError
        assert config.get("NOVA_CHECK") is False
    assert config.get("NOVA_DEBUG") == 0 and config.get("matmul_precision") == "f32"


@pytest.mark.parametrize(
    "settings, text",
    [
        ({"NOVA_DEBUG": 6}, "an integer from 0 to 5"),
        ({"NOVA_DEBUG": "x"}, "an integer from 0 to 5"),
        ({"NOVA_CHECK": "yes"}, "0 or 1"),
        ({"matmul_precision": "f16"}, "f32 or tf32"),
        ({"NOVA_DEBUGG": 1}, "did you mean NOVA_DEBUG"),
        ({"detect_anomly": 1}, "did you mean detect_anomaly"),
        ({"num_threads": -1}, "an integer from 0"),
    ],
)
def test_bad_settings(settings, text):
    before = {name: config.get(name) for name in config.SWITCHES}
    with pytest.raises(ValueError, match=text):
        config.set(NOVA_EXPLAIN=True, **settings)
    assert {name: config.get(name) for name in config.SWITCHES} == before


def imported(**environment: str) -> subprocess.CompletedProcess:
    code = "import blutrain; print(blutrain.config.get('NOVA_DEBUG'), blutrain.config.get('num_threads'))"
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("NOVA_", "BLUTRAIN_"))}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**variables, **environment}, timeout=60
    )


def test_the_environment():
    assert imported(NOVA_DEBUG="3", BLUTRAIN_NUM_THREADS="2").stdout.split() == ["3", "2"]
    unknown = imported(NOVA_DEBUGG="1")
    assert (
        unknown.returncode
        and "unknown environment variable NOVA_DEBUGG" in unknown.stderr
        and "did you mean NOVA_DEBUG" in unknown.stderr
        and "\n  at <string>:" in unknown.stderr
    )
    bad = imported(NOVA_DEBUG="9")
    assert bad.returncode and "NOVA_DEBUG has no such value" in bad.stderr


def test_every_switch_is_described():
    text = config.describe()
    for switch in config.SWITCHES.values():
        assert switch.environment in text and switch.doc.endswith(".")
