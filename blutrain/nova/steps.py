"""What was recorded: the tree of event sequences, and the pending tensors that stand for its values.

A `Step` is one event (a module call, an operation on a pending tensor, a backward, an optimizer step, ...) after the
events that lead to it; its children are the events seen next. It keeps what the event added to the trace, so that a
known event need not run user code.
"""

from __future__ import annotations

import copy
import functools
import itertools
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ..errors import message
from ..tensor.aval import Aval
from ..tensor.tensor import Epoch, Tensor, storage_epoch, structure_epoch, write_epoch
from .lifted import MAX_FLOATS
from .trace import Node, freeze

if TYPE_CHECKING:
    from .log import Log

MAX_VARIANTS = 2  # programs for calls with equal keys that record different things
MAX_CHILDREN = 64  # kinds of events remembered after one sequence; the oldest is forgotten
_numbers = itertools.count()


class Handle:
    """Makes tensors pending: the log that owns them and the number of their value there.

    After the flush it holds the array or the error instead; it has the array from the start for a real tensor that an
    event writes. A tensor and its aliases (what `detach` gives, what autograd saves of a result) share one
    handle, as they share memory.
    """

    __slots__ = ("__weakref__", "array", "error", "log", "value")

    def __init__(self, log: Log | None, value: int, array=None):
        self.log, self.value, self.array = log, value, array
        self.error: Exception | None = None

    def fail(self, cause: BaseException) -> None:
        """The event or step that would have made the value raised."""
        self.log = None
        self.error = RuntimeError(
            message("read", "this tensor was never computed: the step that would have made it raised")
        )
        self.error.__cause__ = cause


class RuntimeFloat(float):
    """A Python float that is read at each replay; `value` is its number in the trace."""

    value: int


class RuntimeInt(int):
    """A Python int that is read at each replay (seeds, draw numbers); `value` is its number in the trace."""

    value: int


def runtime_scalar(number: float | int, value: int) -> RuntimeFloat | RuntimeInt:
    """`number` as the run-time scalar with number `value`."""
    result = RuntimeFloat(number) if isinstance(number, float) else RuntimeInt(number)
    result.value = value
    return result


class Leaf(NamedTuple):
    """Stands in a step's result for a tensor: a pending one (`external` false) or a tensor that came in from outside."""

    value: int
    requires_grad: bool
    external: bool = False


@dataclass(slots=True, eq=False)
class FunctionCall:
    """A call of a custom autograd Function: its node (a pattern for others), the values of its operands and results,
    which results are on the tape, and what its context holds, with leaves in place of tensors.
    """

    node: Any
    operands: tuple[int | None, ...]
    results: tuple[int, ...]
    linked: tuple[bool, ...]
    saved: Any
    attributes: Any


class Taped(NamedTuple):
    """An operation that is on the tape: which operands a gradient flows to, and the values its derivative keeps."""

    item: Node | FunctionCall
    wants: tuple[bool, ...]
    kept: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Leaves:
    """The leaves that a backward reaches: tensors that it captured, and the values of those that were brought in.

    clean, unhooked: the epochs when the tensors were last found without gradients and without hooks. reducers: what
    averages gradients of the tensors over processes, or did before a no_sync(); reduced: the epoch when they were found.
    """

    tensors: list[Tensor]
    inputs: tuple[int, ...]
    clean: int = -1
    unhooked: int = -1
    reducers: tuple = ()
    reduced: int = -1

    def find_reducers(self) -> tuple:
        if self.reduced != structure_epoch.value:
            every = {id(t._hooks.reducer): t._hooks.reducer for t in self.tensors if t._hooks is not None}
            self.reducers = tuple(reducer for reducer in every.values() if reducer is not None)
            self.reduced = structure_epoch.value
        return self.reducers


class Cell(Epoch):
    """Where a sequence notes when it last wrote. is_whole: it is the cell of all versions that the sequence writes."""

    __slots__ = ("is_whole",)

    def __init__(self):
        super().__init__()
        self.is_whole = False


class Writes:
    """The tensors that a sequence writes by reference, and when it last did. It outlives the sequence: whether a tensor was
    written is no matter of who has been collected.
    """

    __slots__ = ("cell", "ran", "refs", "versions")

    def __init__(self, tensors: list[Tensor]):
        self.ran, self.refs, self.versions = 0, [weakref.ref(t) for t in tensors], [t._versions() for t in tensors]
        self.cell = Cell()

    def note(self, clock: int) -> None:
        """It wrote: one number, unless another sequence wrote some of the tensors since."""
        self.ran = clock
        write_epoch.bump()
        cell = self.cell
        cell.value = write_epoch.value
        if cell.is_whole:
            return
        for version in self.versions:
            if isinstance(version.steps, Cell):
                version.steps.is_whole = False
            version.steps = cell
        cell.is_whole = True


@dataclass(eq=False)
class Step:
    """One event in the tree of sequences, and what it adds to the trace.

    operands: values of the tensors the event brought in, in order; captured: tensors read by reference (parameters,
    buffers, moments), index: their values by id; grad_operands: (leaf, value) where the gradient already in `leaf.grad`
    is added to; scalars: run-time scalars, those of the event before those of random draws; draws: (generator, count);
    views: values that share memory with another one, with the node that made them; updates: state -> new value, written:
    which states user code may read before the flush, with the captured tensor (None: an outside one); grads: pending
    gradients, id of the leaf -> (leaf, value), input_grads: those of leaves that were brought in, as (leaf, value);
    freed: roots of graphs that a backward used up; attributes: (module, name, tree) set by forward; boundary:
    (value, gradient) where backward reached an eager tape; buckets, consumed: of an optimizer's step; verified:
    recorded the same twice; numbers: its scalars for lifted floats; is_provisional: the key is not yet that of
    later calls; has_effects: the body changed what a replay would not. Of events that may come next: leaves of a
    backward, rests: by optimizer (its id) what it was, the key of its step, its parameters without a pending
    gradient, clipped: those of a list (their ids) with one. outcomes: what a flush here has to give, for what was
    held; wrote: what the sequence that ends here writes.

    A leaf that was brought in is named by its value: it is another tensor each time.
    """

    key: tuple
    parent: Step | None
    first: int = 0
    number: int = field(default_factory=_numbers.__next__)
    avals: list[Aval] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    taped: list[Taped] = field(default_factory=list)
    operands: list[int] = field(default_factory=list)
    captured: list[tuple[int, Tensor]] = field(default_factory=list)
    index: dict[int, int] = field(default_factory=dict)
    grad_operands: list[tuple[Tensor | int, int]] = field(default_factory=list)
    scalars: list[int] = field(default_factory=list)
    draws: list[tuple[Any, int]] = field(default_factory=list)
    views: dict[int, Node] = field(default_factory=dict)
    updates: dict[int, int] = field(default_factory=dict)
    rebinds: dict[int, int] = field(default_factory=dict)
    written: dict[int, Tensor | None] = field(default_factory=dict)
    result: Any = None
    attributes: list[tuple[weakref.ref, str, Any]] = field(default_factory=list)
    grads: dict[int, tuple[Tensor, int]] | None = None
    input_grads: list[tuple[int, int]] = field(default_factory=list)
    boundary: list[tuple[int, int]] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    buckets: list[Any] = field(default_factory=list)
    consumed: Any = None
    verified: bool = False
    is_provisional: bool = False
    has_effects: bool = False
    children: dict[tuple, list[Step]] = field(default_factory=dict)
    leaves: dict[tuple, Leaves] = field(default_factory=dict)
    numbers: dict[tuple, list[float | int]] = field(default_factory=dict)
    rests: dict[int, tuple[tuple, tuple, list[Tensor]]] = field(default_factory=dict)
    clipped: dict[tuple, tuple[int, list[Tensor], list[Tensor]]] = field(default_factory=dict)
    graphs: dict[tuple[frozenset[int], tuple[int, ...]], Any] = field(default_factory=dict)
    outcomes: dict[tuple, Any] = field(default_factory=dict)
    executable: Any = None
    wrote: Writes | None = None
    _arrays: dict[int, int] = field(default_factory=dict)
    _arrays_epoch: int = -1

    def capture(self, tensor: Tensor, value: int) -> None:
        """Enter a tensor that is read by reference."""
        self.captured.append((value, tensor))
        self.index[id(tensor)] = value
        self._arrays_epoch = -1

    def rebind(self, old: int, new: int) -> None:
        """A pending tensor that stood for `old` before the event, or came to stand for it in it, stands for `new`."""
        for value, now in self.rebinds.items():
            if now == old:
                self.rebinds[value] = new
        self.rebinds[old] = new

    def by_array(self) -> dict[int, int]:
        """id of the array -> value, for what was captured: an alias (`detach`, what autograd saved) has its array."""
        if self._arrays_epoch != storage_epoch.value:
            self._arrays = {id(t._array): self.index[id(t)] for _, t in self.captured if id(t) in self.index}
            self._arrays_epoch = storage_epoch.value
        return self._arrays

    def rewrite(self, tensor: Tensor, value: int) -> None:
        """A real tensor stands for `value` from now on."""
        self.index[id(tensor)] = value
        self._arrays_epoch = -1

    @property
    def has_collectives(self) -> bool:
        """Whether the event has to meet other processes: bucket reductions end a backward, others stand in a body."""
        return any("collective" in node.prim.tags for node in reversed(self.nodes))

    @property
    def has_gradients(self) -> bool:
        """Whether a backward is part of the sequence that ends here, or may follow."""
        return any(step.key[0] == "call" and step.key[2][1] for step in self.path())

    @property
    def is_unstable(self) -> bool:
        """Whether a program for the sequence that ends here would rarely serve twice.

        A call on the way keeps recording something new, or its key will have another form from the next time on.
        """
        return any(s.is_provisional or len(s.parent.children.get(s.key, ())) > MAX_VARIANTS for s in self.path())

    def tree(self):
        """This step and all that follow it."""
        todo = [self]
        while todo:
            step = todo.pop()
            yield step
            todo += [child for variants in list(step.children.values()) for child in variants]

    @functools.cached_property
    def is_plain(self) -> bool:
        """Whether a replay of this event only brings tensors and numbers in and hands out its result."""
        return not (self.grad_operands or self.draws or self.written or self.rebinds or self.attributes)

    @functools.cached_property
    def writes_inputs(self) -> bool:
        """Whether the sequence that ends here writes to tensors that were brought in."""
        updated = {v for step in self.path() for v in step.updates}
        return any(v in updated for step in self.path() for v in (*step.operands, *(v for _, v in step.grad_operands)))

    @functools.cached_property
    def has_input_grads(self) -> bool:
        """Whether the sequence that ends here gives gradients to leaves that were brought in."""
        return any(step.input_grads for step in self.path())

    @functools.cached_property
    def adds_to_grads(self) -> bool:
        """Whether the sequence that ends here reads gradients that were there before."""
        return any(step.grad_operands for step in self.path())

    @functools.cached_property
    def writes(self) -> bool:
        """Whether the sequence that ends here writes to states."""
        return any(step.updates for step in self.path())

    @functools.cached_property
    def has_views(self) -> bool:
        """Whether a value of the sequence that ends here is a view of another."""
        return any(step.views for step in self.path())

    def path(self):
        """This step and those before it, without the root."""
        step = self
        while step.parent is not None:
            yield step
            step = step.parent

    def known_child(self, step: Step) -> Step | None:
        """The child that recorded the same as `step` before; it is verified by that, if it only computes."""
        digest = step.digest()
        for other in self.children.get(step.key, ()):
            if other.digest() == digest:
                other.verified = not step.has_effects
                return other
        return None

    def remember(self, floats: tuple, numbers: list[float | int]) -> None:
        """Note which scalars lifted floats give (lifted.py); the oldest are forgotten where there are too many."""
        self.numbers[floats] = numbers
        while len(self.numbers) > MAX_FLOATS:
            self.numbers.pop(next(iter(self.numbers)), None)

    def add_child(self, step: Step) -> Step:
        """Enter a new child; the oldest kind of event is forgotten where there are too many."""
        self.children.setdefault(step.key, []).append(step)
        while len(self.children) > MAX_CHILDREN:
            self.children.pop(next(iter(self.children)), None)
        return step

    def digest(self) -> tuple:
        """What must be equal for two recordings of one event to be the same program text."""
        captured = tuple((v, id(t)) for v, t in self.captured)
        tape = tuple((entry.wants, entry.kept, _contents(entry.item)) for entry in self.taped)
        attributes = tuple((id(m()), name, repr(tree)) for m, name, tree in self.attributes)
        return (tuple(n.key() for n in self.nodes), tuple(self.avals), captured, freeze(self.updates),
                repr(self.result), attributes, tuple(self.scalars), tuple(self.operands), tape)  # fmt: skip


def _contents(item: Node | FunctionCall) -> Any:
    """The plain values in what a custom Function keeps for its backward."""
    if isinstance(item, Node):
        return None
    return freeze((item.linked, item.saved, item.attributes), lambda value, kind: kind)


def memory(tensor: Tensor):
    """The array of a tensor that has one, without computing anything; None of a tensor that a recorded event makes."""
    return tensor._array if tensor._pending is None else tensor._pending.array


def alive(refs) -> list:
    """What weak references still point at."""
    return [x for r in refs if (x := r()) is not None]


def has_hooks(tensor: Tensor) -> bool:
    """Whether user code waits for the gradient of a leaf."""
    return tensor._hooks is not None and tensor._hooks.any()


def map_tree(tree, kind: type | tuple, function: Callable):
    """Apply `function` to every `kind` in nested tuples, lists, dicts, namespaces and dataclasses, and in attributes of
    subclasses of these; other leaves stay as they are.
    """
    if isinstance(tree, kind):
        return function(tree)
    if isinstance(tree, tuple):
        items = [map_tree(x, kind, function) for x in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    if isinstance(tree, list):
        items = [map_tree(x, kind, function) for x in tree]
        return items if type(tree) is list else _copied(tree, kind, function, lambda new: _set_items(new, items))
    if isinstance(tree, dict):
        entries = {k: map_tree(v, kind, function) for k, v in tree.items()}
        return entries if type(tree) is dict else _copied(tree, kind, function, lambda new: _set_entries(new, entries))
    if is_dataclass(tree) and not isinstance(tree, type):
        values = [(f.name, map_tree(getattr(tree, f.name), kind, function)) for f in fields(tree)]
        return _copied(tree, kind, function, lambda new: [object.__setattr__(new, *x) for x in values])
    if isinstance(tree, types.SimpleNamespace):
        return _copied(tree, kind, function, lambda new: None)
    return tree


def _copied(tree: Any, kind: type | tuple, function: Callable, change: Callable):
    """A copy of a container of the user's, with what it holds in attributes mapped and the rest changed by `change`."""
    cls: Any = type(tree)
    try:
        new = copy.copy(tree)
    except Exception:  # its class does not like to be copied
        new = cls.__new__(cls)
    attributes = {k: map_tree(v, kind, function) for k, v in getattr(tree, "__dict__", {}).items()}
    if attributes:
        vars(new).update(attributes)
    change(new)
    return new


def _set_items(new: list, items: list) -> None:
    list.__setitem__(new, slice(None), items)


def _set_entries(new: dict, entries: dict) -> None:
    """Set entries whatever the user's class made of `d[key] = value`."""
    base = cast(Any, OrderedDict if isinstance(new, OrderedDict) else dict)
    for key, value in entries.items():
        base.__setitem__(new, key, value)
