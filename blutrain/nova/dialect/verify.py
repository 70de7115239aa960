"""The rules of nova IR: `verify(module)` raises `VerifyError` at the first operation that breaks one.

- Every operation of a step is a record's, a structural one, or func.return; each has the operands, results and
  attributes its definition says.
- The result types of a record's operation are what the record's own shape rule gives for its operands and attributes.
- `nova.assign` writes an argument of role state, each at most once, with a value of its type; nothing follows the
  assigns but func.return.
- `nova.constant` has a value of its element type.
- `nova.kernel` is isolated: one block whose arguments have the operands' types, which uses nothing from outside and
  yields the results' types.

The driver runs it after every pass in tests and when debugging; MLIR's own verifier runs always.
"""

from __future__ import annotations

from mlir import ir

from ...tensor.primitive import TABLE
from .convert import user_lines
from .definition import STRUCTURAL, TERMINATOR, Structural
from .graph import Graph, attributes


class VerifyError(Exception):
    """A rule that `op` breaks; `lines` are the user's lines it comes from."""

    def __init__(self, op: ir.Operation, rule: str):
        self.op_text = first_line(op)
        self.lines = user_lines(op.location)
        at = f"\n  at {', '.join(self.lines)}" if self.lines else ""
        super().__init__(f"{op.name}: {rule}\n  in: {self.op_text}{at}")


def first_line(op: ir.Operation) -> str:
    """The text of `op` without its regions."""
    return str(op.get_asm(assume_verified=True, skip_regions=True)).strip().split("\n")[0]


def verify(module: ir.Module) -> None:
    """Check every operation of the step function."""
    graph = Graph(module)
    assigned: set[int] = set()
    for op in graph.operations():
        name = op.name.removeprefix("nova.")
        if name == op.name:
            if name != "func.return":
                raise VerifyError(op, "not an operation of a step")
        elif name in STRUCTURAL:
            _verify_structural(op, STRUCTURAL[name])
        elif name in TABLE:
            _verify_record(graph, op, TABLE[name])
        else:
            raise VerifyError(op, "neither a primitive nor a structural operation has this name")
        if name == "assign":
            _verify_assign(graph, op, assigned)
        elif assigned and name != "func.return":
            raise VerifyError(op, "an operation behind a nova.assign: assigns end the step")
        if name in _RULES:
            _RULES[name](op)


def _verify_structural(op: ir.Operation, definition: Structural) -> None:
    for kind, allowed, values in (
        ("operands", definition.operands, op.operands),
        ("results", definition.results, op.results),
    ):
        if allowed is not None and len(values) not in allowed:
            raise VerifyError(op, f"it has {' or '.join(map(str, allowed))} {kind}, this one {len(values)}")
    for name, kind in definition.attributes.items():
        if name not in op.attributes or not isinstance(op.attributes[name], kind):
            raise VerifyError(op, f"it has an attribute {name!r} of kind {kind.__name__}")
    if len(op.regions) != definition.num_regions:
        raise VerifyError(op, f"it has {definition.num_regions} regions, this one {len(op.regions)}")


def _verify_record(graph: Graph, op: ir.Operation, prim) -> None:
    avals = [graph.aval(v) for v in op.operands]
    if all(a.weak for a in avals):
        avals = [a._replace(weak=False) for a in avals]
    try:
        expected = prim.infer(*avals, **attributes(op))
    except Exception as fault:
        raise VerifyError(op, f"the shape rule refuses it: {fault}") from fault
    expected = (expected,) if prim.num_results == 1 else expected
    got = [graph.aval(r) for r in op.results]
    if [(a.shape, a.dtype) for a in expected] != [(a.shape, a.dtype) for a in got]:
        wanted, found = (", ".join(str(a._replace(weak=False)) for a in x) for x in (expected, got))
        raise VerifyError(op, f"the shape rule gives {wanted or 'nothing'}, the operation has {found or 'nothing'}")


def _verify_assign(graph: Graph, op: ir.Operation, assigned: set[int]) -> None:
    state, value = op.operands
    if not isinstance(state.owner, ir.Block) or graph.roles[state.arg_number] != "state":
        raise VerifyError(op, 'the target is not an argument with nova.role = "state"')
    if state.arg_number in assigned:
        raise VerifyError(op, f"argument {state.arg_number} is assigned twice")
    if state.type != value.type:
        raise VerifyError(op, f"a {value.type} does not fit the state's {state.type}")
    assigned.add(state.arg_number)


def _verify_constant(op: ir.Operation) -> None:
    value, element = op.attributes["value"], ir.RankedTensorType(op.result.type).element_type
    if not isinstance(value, (ir.BoolAttr, ir.IntegerAttr, ir.FloatAttr)) or value.type != element:
        raise VerifyError(op, f"the value {value} is not a {element}")


def _verify_check(op: ir.Operation) -> None:
    if str(op.operands[0].type) != "tensor<i32>":
        raise VerifyError(op, f"the flag is a tensor<i32>, not a {op.operands[0].type}")


def _verify_kernel(op: ir.Operation) -> None:
    blocks = list(op.regions[0].blocks)
    if len(blocks) != 1:
        raise VerifyError(op, f"a kernel has one block, this one has {len(blocks)}")
    block = blocks[0]
    if [a.type for a in block.arguments] != [v.type for v in op.operands]:
        raise VerifyError(op, "the block's arguments differ in type from the operands")
    *body, last = [inner.operation for inner in block.operations]
    if last.name != TERMINATOR:
        raise VerifyError(op, f"the block ends with {last.name}, not with {TERMINATOR}")
    if [v.type for v in last.operands] != [r.type for r in op.results]:
        raise VerifyError(op, "the yielded values differ in type from the results")
    inside: set[ir.Value] = set(block.arguments)
    for inner in (*body, last):
        if any(v not in inside for v in inner.operands) or _captures(inner, inside):
            raise VerifyError(inner, "a kernel is isolated: it uses a value from outside")
        inside.update(inner.results)


def _captures(op: ir.Operation, inside: set[ir.Value]) -> bool:
    """Whether the regions of `op` use a value that is neither theirs nor in `inside`."""
    for region in op.regions:
        for block in region.blocks:
            known = inside | set(block.arguments)
            for inner in block.operations:
                if any(v not in known for v in inner.operands) or _captures(inner.operation, known):
                    return True
                known.update(inner.results)
    return False


_RULES = {"constant": _verify_constant, "check": _verify_check, "kernel": _verify_kernel}
