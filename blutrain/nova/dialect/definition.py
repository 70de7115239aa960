"""The text of the nova dialect in IRDL: one operation per record of the primitive table, and the structural operations
below.

What IRDL checks: number of operands and results, tensor operands, attributes that must be there, the types of
structural operations. What it cannot say (shape rules, state updates, isolation) is in verify.py.
"""

from __future__ import annotations

import inspect

from ...tensor.primitive import TABLE, Primitive

# IRDL operations carry no traits, so the block of a nova.kernel cannot end with an operation of ours: the verifier
# wants a terminator. gpu.yield is upstream's plain "these are the block's values" and accepts any parent and any
# types.
TERMINATOR = "gpu.yield"

STRUCTURAL = {
    # In a step: an update of state, a value check, a splat of a scalar.
    "assign": """
    %t = irdl.base "!builtin.tensor"
    irdl.operands(state: %t, value: %t)""",
    "check": """
    %flag = irdl.is tensor<i32>
    %s = irdl.base "#builtin.string"
    irdl.operands(flag: %flag)
    irdl.attributes {"message" = %s}""",
    "constant": """
    %t = irdl.base "!builtin.tensor"
    %any = irdl.any
    irdl.results(result: %t)
    irdl.attributes {"value" = %any}""",
    # linear + cross-entropy with both backward passes, whose logits nobody else reads.
    "linear_ce": """
    %t = irdl.base "!builtin.tensor"
    %u = irdl.base "!builtin.tensor"
    %i = irdl.base "#builtin.integer"
    %f = irdl.base "#builtin.float"
    %s = irdl.base "#builtin.string"
    irdl.operands(inputs: variadic %t)
    irdl.results(outputs: variadic %u)
    irdl.attributes {"ignore_index" = %i, "label_smoothing" = %f, "reduction" = %s}""",
    # A kernel, and what may stand in one beside linalg.
    "kernel": """
    %t = irdl.base "!builtin.tensor"
    %u = irdl.base "!builtin.tensor"
    %s = irdl.base "#builtin.string"
    %body = irdl.region
    irdl.operands(inputs: variadic %t)
    irdl.results(outputs: variadic %u)
    irdl.attributes {"anchor" = %s}
    irdl.regions(body: %body)""",
    "gather": """
    %table = irdl.base "!builtin.tensor"
    %ids = irdl.base "!builtin.tensor"
    %rows = irdl.base "!builtin.tensor"
    irdl.operands(table: %table, ids: %ids)
    irdl.results(rows: %rows)""",
    "scatter_add": """
    %t = irdl.base "!builtin.tensor"
    %u = irdl.base "!builtin.tensor"
    irdl.operands(inputs: variadic %t)
    irdl.results(table: %u)""",
    "random_bits": """
    %any = irdl.any
    %result = irdl.any
    irdl.operands(inputs: variadic %any)
    irdl.results(bits: %result)""",
}

ATTRIBUTES = """
  irdl.attribute @lowering_config {
    %config = irdl.base "#builtin.dictionary"
    irdl.parameters(config: %config)
  }
  irdl.attribute @layout {
    %order = irdl.base "#builtin.dense_array"
    %strides = irdl.base "#builtin.dense_array"
    irdl.parameters(order: %order, strides: %strides)
  }"""


def operation_names() -> list[str]:
    """Names of every operation of the dialect, without the `nova.` prefix."""
    return sorted({*TABLE, *STRUCTURAL})


def num_operands(prim: Primitive) -> int | None:
    """The number of operands of a record, from its shape rule; None where it varies."""
    count = 0
    for parameter in inspect.signature(prim.infer).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            return None
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            if parameter.default is not parameter.empty:
                return None
            count += 1
    return count


def num_results(prim: Primitive) -> int | None:
    """The number of results of a record; None where it varies with the attributes."""
    return None if "variable_results" in prim.tags else prim.num_results


def record_text(prim: Primitive) -> str:
    """The IRDL body of a record's operation: tensors in, tensors out."""
    lines = []
    for kind, letter, count in (("operands", "a", num_operands(prim)), ("results", "r", num_results(prim))):
        names = [f"{letter}{i}" for i in range(1 if count is None else count)]
        lines += [f'    %{name} = irdl.base "!builtin.tensor"' for name in names]
        if names:
            variadic = "variadic " if count is None else ""
            lines.append(f"    irdl.{kind}({', '.join(f'{name}: {variadic}%{name}' for name in names)})")
    return "\n".join(lines)


def dialect_text() -> str:
    """The whole dialect. A structural operation stands in for a record of the same name."""
    bodies = {name: record_text(prim) for name, prim in TABLE.items()} | STRUCTURAL
    operations = [f"  irdl.operation @{name} {{\n{body.strip(chr(10))}\n  }}" for name, body in sorted(bodies.items())]
    return "\n".join(["irdl.dialect @nova {", ATTRIBUTES.strip("\n"), *operations, "}"])
