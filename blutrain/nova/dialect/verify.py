"""What IRDL cannot check: `verify(module)` raises `VerifyError` at the first operation that breaks a rule.

- The result types of a record's operation are what the record's own shape rule gives for its operands and attributes.
- `nova.assign` writes an argument of role state, each at most once; nothing follows the assigns but func.return.
- `nova.constant` has a value of its element type.
- `nova.kernel` is isolated: one block whose arguments have the operands' types, which uses nothing from outside and
  yields the results' types.

The driver runs it after every pass in tests and when debugging; MLIR's own verifier runs always.
"""

from __future__ import annotations

from mlir import ir

from ...tensor.primitive import TABLE
from .convert import user_lines
from .definition import STRUCTURAL, TERMINATOR
from .graph import Graph, attributes


class VerifyError(Exception):
    """A rule that `op` breaks; `lines` are the user's lines it comes from."""

    def __init__(self, op: ir.Operation, rule: str):
        self.op_text = (
            op.get_asm(assume_verified=True, print_generic_op_form=True, skip_regions=True).split("\n")[0].strip()
        )
        self.lines = user_lines(op.location)
        at = f"\n  at {', '.join(self.lines)}" if self.lines else ""
        super().__init__(f"{op.name}: {rule}\n  in: {self.op_text}{at}")


def verify(module: ir.Module) -> None:
    """Check every operation of the step function."""
    graph = Graph(module)
    assigned: set[int] = set()
    for op in graph.operations():
        name = op.name.removeprefix("nova.")
        if name == "assign":
            _verify_assign(graph, op, assigned)
        elif assigned and op.name != "func.return":
            raise VerifyError(op, "an operation behind a nova.assign: assigns end the step")
        elif name == "constant":
            _verify_constant(op)
        elif name == "kernel":
            _verify_kernel(op)
        elif op.name.startswith("nova.") and name not in STRUCTURAL:
            _verify_record(graph, op, TABLE[name])


def _verify_record(graph: Graph, op: ir.Operation, prim) -> None:
    avals = [graph.aval(v) for v in op.operands]
    if all(a.weak for a in avals):
        avals = [a._replace(weak=False) for a in avals]
    try:
        expected = prim.infer(*avals, **attributes(op))
    except Exception as fault:
        raise VerifyError(op, f"the shape rule refuses it: {fault}") from fault
    expected = expected if prim.num_results != 1 else (expected,)
    got = tuple(graph.aval(r) for r in op.results)
    if tuple((a.shape, a.dtype) for a in expected) != tuple((a.shape, a.dtype) for a in got):
        wanted, found = (", ".join(str(a._replace(weak=False)) for a in x) for x in (expected, got))
        raise VerifyError(op, f"the shape rule gives {wanted}, the operation has {found}")


def _verify_assign(graph: Graph, op: ir.Operation, assigned: set[int]) -> None:
    state = op.operands[0]
    if not isinstance(state.owner, ir.Block) or graph.roles[state.arg_number] != "state":
        raise VerifyError(op, 'the target is not an argument with nova.role = "state"')
    if state.arg_number in assigned:
        raise VerifyError(op, f"argument {state.arg_number} is assigned twice")
    assigned.add(state.arg_number)


def _verify_constant(op: ir.Operation) -> None:
    value, element = op.attributes["value"], op.result.type.element_type
    if not isinstance(value, (ir.BoolAttr, ir.IntegerAttr, ir.FloatAttr)) or value.type != element:
        raise VerifyError(op, f"the value {value} is not a {element}")


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
    inside = set(block.arguments)
    for inner in body:
        inside.update(inner.results)
    for inner in (*body, last):
        if any(v not in inside for v in inner.operands) or _captures(inner, inside):
            raise VerifyError(inner, "a kernel is isolated: it uses a value from outside")


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
