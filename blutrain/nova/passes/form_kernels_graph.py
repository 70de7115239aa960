"""The step (or a kernel's body) as a plain Python graph: what form_kernels decides on and lower_to_linalg emits from.

Every operation becomes a `Node` with a loop nest: its axes, which axis each operand and result axis runs along, and
which axes are reduced, so elementwise, movement, reduction and contraction are read in one way. MLIR's bindings cost
microseconds a touch, so IR is read once.
"""

from __future__ import annotations

from collections.abc import Iterable

from mlir import ir

from ...tensor.dtype import compute_dtype, int64
from ...tensor.primitive import TABLE, Indexing, Primitive, Reduction, Scalar, Special, Unsupported
from ..dialect.convert import dtype_of, python_of
from ..dialect.definition import TERMINATOR
from .driver import PassFault

RECOMPUTE = "nova.recompute"  # attribute of operations that choose_saved repeats where their results are read
STORE = "nova.store"  # attribute of operations whose results are to be in memory
WITH_PRODUCT = "nova.with_product"  # attribute of sums of rows that the epilogue of the product is to make
MAP, VIEW, RESHAPE, REDUCE, CONTRACT = "map", "view", "reshape", "reduce", "contract"
GATHER, SCATTER, SCAN, LOOKUP, SINK = "gather", "scatter", "scan", "lookup", "sink"
PLACED = (LOOKUP, SCAN)  # read memory at other places than their own: their operands are no part of a nest

Affine = tuple[int, int]  # coefficient, offset of an index along one axis
IDENTITY: Affine = (1, 0)


class Value:
    """A tensor of the graph. `node` is None for an argument; `users` are the nodes that read it, in order."""

    __slots__ = ("dtype", "node", "number", "position", "shape", "users")

    def __init__(self, number: int, shape: tuple[int, ...], dtype, node: Node | None, position: int):
        self.number, self.shape, self.dtype, self.node, self.position = number, shape, dtype, node, position
        self.users: list[Node] = []

    @property
    def size(self) -> int:
        total = 1
        for extent in self.shape:
            total *= extent
        return total

    @property
    def bytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def type_text(self) -> str:
        return tensor_text(self.shape, self.dtype)


class Nest:
    """The loops of a node: extent of every axis; per operand the axis each of its dimensions runs along (None: the
    dimension has extent 1 or is read at one place) and how; the same for the results; and the axes that are
    reduced."""

    __slots__ = ("extents", "operands", "places", "reduced", "result")

    def __init__(self, extents, operands, result, reduced: Iterable[int] = (), places=None):
        self.extents: tuple[int, ...] = tuple(extents)
        self.operands: tuple[tuple[int | None, ...], ...] = tuple(tuple(o) for o in operands)
        self.result: tuple[int | None, ...] = tuple(result)
        self.reduced: frozenset[int] = frozenset(reduced)
        self.places: dict[tuple[int, int], Affine] = places or {}

    def is_flip(self, operand: int, dim: int, extent: int) -> bool:
        """Whether that dimension of an operand is read whole, backwards."""
        axis = self.operands[operand][dim]
        return self.places.get((operand, dim)) == (-1, extent - 1) and axis is not None and self.extents[axis] == extent


class Node:
    """One operation. `kind` says how it may be fused, `record` is its entry of the primitive table (None for
    structural ones). `is_late`: choose_saved put it there to be computed then, not where its operands are made.
    `is_stored`: its result is to be in memory. `with_product`: a sum of the rows of a product that is worth making with
    it. `is_memory`: it computes nothing, its result is a part of its operand's memory, or its operands are parts of its
    result's.
    """

    __slots__ = (
        "_location",
        "attrs",
        "is_late",
        "is_memory",
        "is_stored",
        "kind",
        "name",
        "nest",
        "number",
        "op",
        "operands",
        "record",
        "results",
        "with_product",
    )

    def __init__(self, number: int, op: ir.Operation, name: str, record: Primitive | None):
        self.number, self.op, self.name, self.record = number, op, name, record
        self.operands: list[Value] = []
        self.results: list[Value] = []
        self.attrs: dict = {}
        self.kind = MAP
        self.is_late = self.is_memory = self.is_stored = self.with_product = False
        self.nest: Nest | None = None
        self._location: str | None = None

    @property
    def location(self) -> str:
        """MLIR's text of the user's line."""
        if self._location is None:
            self._location = str(self.op.location)
        return self._location

    @property
    def result(self) -> Value:
        return self.results[0]


class StepGraph:
    """Arguments, nodes in program order, and the values that leave (operands of the closing return or yield)."""

    def __init__(self, block: ir.Block):
        self.values: list[Value] = []
        self.nodes: list[Node] = []
        self.outputs: list[Value] = []
        self._known: dict[ir.Value, Value] = {}
        self._types: dict[ir.Type, tuple] = {}
        self.arguments = [self._value(a, None, i) for i, a in enumerate(block.arguments)]
        for op in block.operations:
            self._read(op.operation)
        del self._known

    def _read(self, op: ir.Operation) -> None:
        name = op.name
        operands = [self._known[v] for v in op.operands]
        if name in ("func.return", TERMINATOR):
            self.outputs = operands
            return
        short = name.removeprefix("nova.")
        node = Node(len(self.nodes), op, short, TABLE.get(short))
        node.operands = operands
        found = op.attributes
        node.attrs = {key: python_of(found[key]) for key in found if "." not in key}
        node.is_stored = STORE in found
        node.is_late, node.with_product = RECOMPUTE in found, WITH_PRODUCT in found
        node.results = [self._value(r, node, i) for i, r in enumerate(op.results)]
        self.nodes.append(node)
        for operand in dict.fromkeys(operands):
            operand.users.append(node)
        classify(node)

    def _value(self, value: ir.Value, node: Node | None, position: int) -> Value:
        type_ = value.type
        described = self._types.get(type_)
        if described is None:
            described = self._types[type_] = (tuple(type_.shape), dtype_of(type_.element_type))
        shape, dtype = described
        made = Value(len(self.values), shape, dtype, node, position)
        self.values.append(made)
        self._known[value] = made
        return made


def widened_factors(node: Node) -> tuple[Value, ...] | None:
    """The narrow floats that the factors of a product are widened from, all of one type: a product of those, computed
    wide. None where they are not such.
    """
    made = [value.node for value in node.operands]
    if not all(m is not None and m.name == "cast" for m in made):
        return None
    behind = tuple(m.operands[0] for m in made)
    is_narrow = behind[0].dtype.is_narrow and compute_dtype(behind[0].dtype) is node.result.dtype
    return behind if is_narrow and len({value.dtype for value in behind}) == 1 else None


def tensor_text(shape, dtype) -> str:
    """MLIR's spelling of a tensor type in a step."""
    short = f"ui{dtype.short[1:]}" if dtype.short.startswith("u") else dtype.short
    return f"tensor<{''.join(f'{extent}x' for extent in shape)}{short}>"


def classify(node: Node) -> None:
    """Fill in kind and nest. Raises PassFault for an operation that no rule covers."""
    if node.record is None or node.name in _STRUCTURAL:
        rule = _STRUCTURAL.get(node.name)
        if rule is None:
            raise PassFault(node.op, f"{node.name} is not an operation that kernels are formed from")
        rule(node)
        return
    lowering = node.record.nova
    if isinstance(lowering, Scalar):
        _elementwise(node)
    elif isinstance(lowering, Reduction):
        _reduction(node)
    elif isinstance(lowering, (Indexing, Special)) and lowering.rule in _RULES:
        _RULES[lowering.rule](node)
    else:
        reason = lowering.reason if isinstance(lowering, Unsupported) else f"no kernel computes it ({lowering})"
        raise PassFault(node.op, f"{node.name} cannot be compiled: {reason}")


# --- nests by rule


def _elementwise(node: Node) -> None:
    """Operands broadcast against the result, aligned at the last dimension."""
    shape = node.result.shape
    node.kind = MAP
    node.nest = Nest(shape, (broadcast_axes(v.shape, shape) for v in node.operands), range(len(shape)))


def broadcast_axes(shape: tuple[int, ...], target: tuple[int, ...]) -> list[int | None]:
    first = len(target) - len(shape)
    return [first + i if extent == target[first + i] else None for i, extent in enumerate(shape)]


def _reduction(node: Node) -> None:
    shape = node.operands[0].shape
    dims = node.attrs["dims"] if "dims" in node.attrs else node.attrs["dim"]
    dims = (dims,) if isinstance(dims, int) else dims
    dims = frozenset(range(len(shape)) if dims is None else (d % len(shape) for d in dims))
    kept = node.attrs.get("keepdim", False)
    result = [None if d in dims else d for d in range(len(shape)) if kept or d not in dims]
    node.kind = REDUCE
    node.nest = Nest(shape, [range(len(shape))], result, dims)


def _transpose(node: Node) -> None:
    shape, perm = node.result.shape, node.attrs["perm"]
    axes: list[int | None] = [None] * len(perm)
    for position, source in enumerate(perm):
        axes[source] = position
    _view(node, axes)
    node.nest = Nest(shape, [axes], range(len(shape)))


def _view(node: Node, axes, places=None) -> None:
    shape = node.result.shape
    node.kind = VIEW
    node.nest = Nest(shape, [axes], range(len(shape)), places=places)


def _expand(node: Node) -> None:
    _view(node, broadcast_axes(node.operands[0].shape, node.result.shape))


def _slice(node: Node) -> None:
    shape, target = node.operands[0].shape, node.result.shape
    starts, steps = node.attrs["starts"], node.attrs["steps"]
    places = {(0, d): (steps[d], starts[d]) for d in range(len(shape)) if shape[d] != target[d] or steps[d] != 1}
    _view(node, range(len(shape)), places)


def _flip(node: Node) -> None:
    shape = node.result.shape
    _view(node, range(len(shape)), {(0, d % len(shape)): (-1, shape[d % len(shape)] - 1) for d in node.attrs["dims"]})


def _reshape(node: Node) -> None:
    node.kind = RESHAPE


def _contract(node: Node) -> None:
    """matmul as NumPy's: leading dimensions broadcast, a vector has no row or column dimension."""
    a, b = (v.shape for v in node.operands)
    result = node.result.shape
    rows, columns = int(len(a) > 1), int(len(b) > 1)
    batch = result[: len(result) - rows - columns]
    m, n, k = len(batch), len(batch) + rows, len(batch) + rows + columns
    left = [*broadcast_axes(a[: len(a) - 1 - rows], batch), *([m] * rows), k]
    right = [*broadcast_axes(b[: len(b) - 1 - columns], batch), k, *([n] * columns)]
    node.kind = CONTRACT
    node.nest = Nest((*result, a[-1]), [left, right], range(len(result)), {k})


def _lookup(node: Node) -> None:
    """Reads operands at computed places (concat, pad, general indexing): a map of its result whose operands are
    memory.
    """
    shape = node.result.shape
    node.kind = LOOKUP
    node.nest = Nest(shape, [[None] * len(v.shape) for v in node.operands], range(len(shape)))


def _scan(node: Node) -> None:
    _lookup(node)
    node.kind = SCAN


def _take(node: Node) -> None:
    """Rows of a matrix by i64 indices have a generator (gather); other forms are lookups."""
    table, ids = node.operands
    if node.attrs["dim"] != 0 or len(table.shape) != 2 or table.shape[1] < 2 or ids.dtype is not int64:
        _lookup(node)
        return
    shape = node.result.shape
    node.kind = GATHER
    node.nest = Nest(shape, [[None, len(shape) - 1], range(len(shape) - 1)], range(len(shape)))


def _index_add(node: Node) -> None:
    """Rows added to a matrix by i64 indices (scatter). Errors: PassFault for other forms."""
    table, ids, _ = node.operands
    if node.attrs["dim"] != 0 or len(table.shape) != 2 or ids.dtype is not int64:
        raise PassFault(node.op, "index_add cannot be compiled: only rows of a matrix by int64 indices have a kernel")
    node.kind = SCATTER
    node.nest = Nest(table.shape, [[0, 1], [None] * len(ids.shape), [None] * len(ids.shape) + [1]], range(2))


def _sink(node: Node) -> None:
    node.kind = SINK


_STRUCTURAL = {
    "constant": _elementwise,
    "bucket_ready": _lookup,
    "bucket_wait": _lookup,
    "assign": _sink,
    "check": _sink,
}
_RULES = {
    "transpose": _transpose,
    "expand": _expand,
    "slice": _slice,
    "flip": _flip,
    "reshape": _reshape,
    "matmul": _contract,
    "cast": _elementwise,
    "full": _elementwise,
    "iota": _elementwise,
    "concat": _lookup,
    "pad": _lookup,
    "slice_update": _lookup,
    "slice_scatter": _lookup,
    "take": _take,
    "gather": _lookup,
    "index_add": _index_add,
    "cumsum": _scan,
    "random_bits": _elementwise,
    "wrap_index": _elementwise,
}
