"""The log: what is pending, and the tree of event sequences seen so far.

A `Step` is one event (a module call, an operation on a pending tensor, a backward, an optimizer step, ...) after the events that lead to
it; its children are the events seen next. It keeps what the event added to the trace, so that a known event need not run user code:
its results become pending tensors again ("replay"). A new event is recorded: user code runs on pending tensors with a live tape. Where a
new event follows replayed ones, the tape of those is built from their steps first (`hydrate`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import message
from ..tensor import dispatch
from ..tensor.aval import Aval
from ..tensor.tensor import Tensor, aval_of, storage_epoch
from .refuse import refuse
from .trace import Constant, Location, Node, freeze

MAX_VARIANTS = 2  # programs for calls with equal keys that record different things


class Handle:
    """Makes tensors pending: the log that owns them and the number of their value there; after the flush, the array or the error.

    A tensor and the aliases that autograd saves of it share one handle. `viewed`: another pending tensor is a view of this one (or the
    other way round), so that a change in place of one would have to show in the other.
    """

    __slots__ = ("__weakref__", "array", "error", "log", "value", "viewed")

    def __init__(self, log: Log, value: int):
        self.log, self.value = log, value
        self.array = self.error = None
        self.viewed = False


class RuntimeFloat(float):
    """A Python float that is read at each replay; `value` is its number in the trace."""

    value: int


class RuntimeInt(int):
    """A Python int that is read at each replay (seeds, draw numbers); `value` is its number in the trace."""

    value: int


class Leaf(NamedTuple):
    """Stands in a step's result for a tensor: a pending one (`external` false) or a tensor that came in from outside."""

    value: int
    requires_grad: bool
    external: bool = False


@dataclass(slots=True, eq=False)
class FunctionCall:
    """A custom autograd Function on the tape: its node and the value numbers of its operands and results."""

    node: Any
    operands: tuple[int | None, ...]
    results: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Step:
    """One event in the tree of sequences, and what it adds to the trace.

    operands: values of the tensors the event brought in, in order; captured: tensors read by reference (parameters, buffers, moments);
    grad_operands: (parameter, value) where the gradient already in `p.grad` is added to; scalars: run-time scalars, those of the event
    before those of random draws; draws: (generator, count); taped: for each entry of `items` whether it is on the tape.
    """

    key: tuple
    parent: Step | None
    first: int = 0
    avals: list[Aval] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    items: list[Node | FunctionCall] = field(default_factory=list)
    taped: list[bool] = field(default_factory=list)
    operands: list[int] = field(default_factory=list)
    captured: list[tuple[int, Tensor]] = field(default_factory=list)
    index: dict[int, int] = field(default_factory=dict)
    grad_operands: list[tuple[Tensor, int]] = field(default_factory=list)
    scalars: list[int] = field(default_factory=list)
    draws: list[tuple[Any, int]] = field(default_factory=list)
    updates: dict[int, int] = field(default_factory=dict)
    rebinds: list[tuple[int, int]] = field(default_factory=list)
    result: Any = None
    attributes: list[tuple[Any, str, Any]] = field(default_factory=list)
    grads: dict[int, tuple[Tensor, int]] | None = None
    boundary: list[tuple[int, int]] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    optimizer: Any = None
    buckets: list[Any] = field(default_factory=list)
    consumed: Any = None
    verified: bool = False
    children: dict[tuple, list[Step]] = field(default_factory=dict)
    leaves: dict[tuple, list[Tensor]] = field(default_factory=dict)
    executable: Any = None
    _arrays: dict[int, int] = field(default_factory=dict)
    _arrays_epoch: int = -1

    def by_array(self) -> dict[int, int]:
        """id of the array -> value, for what was captured: an alias (what autograd saved of a parameter) has its array."""
        if self._arrays_epoch != storage_epoch.value:
            self._arrays = {id(t._array): self.index[id(t)] for _, t in self.captured if id(t) in self.index}
            self._arrays_epoch = storage_epoch.value
        return self._arrays

    @property
    def has_gradients(self) -> bool:
        """Whether a backward is part of the sequence that ends here, or may follow."""
        step = self
        while step.parent is not None:
            if step.key[0] == "call" and step.key[2][1]:
                return True
            step = step.parent
        return False

    @property
    def is_unstable(self) -> bool:
        """Whether a call on the way here keeps recording something new: a program would rarely serve twice."""
        step = self
        while step.parent is not None:
            if len(step.parent.children[step.key]) > MAX_VARIANTS:
                return True
            step = step.parent
        return False

    def digest(self) -> tuple:
        """What must be equal for two recordings of one event to be the same program text."""
        captured = tuple((v, id(t)) for v, t in self.captured)
        return (tuple(n.key() for n in self.nodes), tuple(self.avals), captured, freeze(self.updates), repr(self.result),
                tuple(self.scalars))  # fmt: skip


class Log:
    """The events since the last flush."""

    def __init__(self, device, root: Step):
        self.device = device
        self.steps: list[Step] = []
        self.position = root
        self.current: Step | None = None
        self.taped = True
        self.next = 0
        self.avals: list[Aval] = []
        self.externals: dict[int, Tensor] = {}
        self.arrays: dict[int, Any] = {}
        self.values: dict[int, int] = {}
        self.array_values: dict[int, int] = {}
        self.fresh: dict[int, Tensor] = {}
        self.scalars: list[float | int] = []
        self.live: dict[int, list[weakref.ref]] = {}
        self.grad_tensors: dict[int, Tensor] = {}
        self.proxies: dict[int, Tensor] = {}
        self.handles: list[weakref.ref] = []
        self.draw_scalars: dict[int, tuple] = {}
        self.counts: list[Any] = []
        self.recorded_buckets: list[Any] = []
        self.owner: Any = None
        self.has_backward = False
        self.refused: tuple[str, Location] | None = None

    # ---------------------------------------------------------------- operands

    def ref(self, tensor: Tensor):
        """The part of an event's key that stands for a tensor operand; a tensor not seen in this log is noted as fresh."""
        if tensor._pending is not None:
            return tensor._pending.value
        value = self.find(tensor)
        if value is not None:
            return value, tensor.requires_grad
        self.fresh.setdefault(id(tensor), tensor)
        position = list(self.fresh).index(id(tensor))
        base = tensor._base
        aliased = None if base is None else self.find(base)
        return (
            "new",
            position,
            tensor._aval,
            tensor.requires_grad,
            tensor.grad_fn is not None,
            base is not None,
            aliased,
        )

    def find(self, tensor: Tensor) -> int | None:
        """The value that a real tensor, or an alias of one, stands for in this log; None if it is not known."""
        value = self.values.get(id(tensor))
        if value is not None:
            return value
        steps = self.steps if self.current is None else (*self.steps, self.current)
        for step in reversed(steps):
            value = step.index.get(id(tensor))
            if value is not None:
                return value
        value = self.array_values.get(id(tensor._array))
        for step in reversed(steps):
            if value is not None:
                break
            value = step.by_array().get(id(tensor._array))
        return value

    def reads(self, tensor: Tensor) -> bool:
        """Whether the log has read this tensor, or one that shares its memory."""
        root = _root(tensor)
        read = [t for step in self.steps for _, t in step.captured]
        return self.find(tensor) is not None or any(_root(t) is root for t in (*self.externals.values(), *read))

    def _bind(self, value: int, tensor: Tensor) -> None:
        """Remember an outside tensor; memory that user code may change unseen, or that is not contiguous, is copied now."""
        self.externals[value] = tensor
        array = tensor._buffer()
        self.array_values[id(array)] = value
        if tensor._foreign or not array.flags.c_contiguous:
            self.arrays[value] = array.copy(order="C")

    # ---------------------------------------------------------------- replay

    def replayable(self, key: tuple) -> Step | None:
        """The known step for `key`, if it may be replayed without running user code."""
        if self.taped and self.steps:
            return None
        variants = self.position.children.get(key)
        return variants[0] if variants and len(variants) == 1 and variants[0].verified else None

    def replay(self, step: Step, scalars: list[float | int]):
        """Take a known step: bind what the event brought in and hand out its results as pending tensors."""
        self.taped = False
        for value, tensor in zip(step.operands, self.fresh.values(), strict=True):
            self._bind(value, tensor)
            self.values[id(tensor)] = value
        for parameter, value in step.grad_operands:
            self._bind_grad(value, parameter)
        self.fresh = {}
        self.scalars += scalars
        for generator, count in step.draws:
            self.scalars += (generator.seed, generator.counter)
            generator.counter += count
        self._enter(step)
        for old, new in step.rebinds:
            for tensor in alive(self.live.get(old, ())):
                self._attach(tensor, new)
        for module, name, tree in step.attributes:
            module.__dict__[name] = self.revive(tree)
        return self.revive(step.result)

    def revive(self, tree):
        """A step's result with pending (or the original outside) tensors in place of its leaves."""
        return map_tree(
            tree, Leaf, lambda x: self.externals[x.value] if x.external else self.pending(x.value, x.requires_grad)
        )

    def pending(self, value: int, requires_grad: bool) -> Tensor:
        """A new pending tensor for a value of this log."""
        tensor = Tensor._make_pending(self.aval(value), self.device, None)
        tensor.requires_grad = requires_grad
        self._attach(tensor, value)
        return tensor

    def _attach(self, tensor: Tensor, value: int) -> None:
        handle = tensor._pending = Handle(self, value)
        self.handles.append(weakref.ref(handle))
        self.live.setdefault(value, []).append(weakref.ref(tensor))

    def aval(self, value: int) -> Aval:
        """The aval of a value of this log."""
        for step in (self.current, *reversed(self.steps)):
            if step is not None and step.first <= value:
                return step.avals[value - step.first]
        raise IndexError(value)

    def _enter(self, step: Step) -> None:
        self.steps.append(step)
        self.position = step
        self.next = step.first + len(step.avals)
        self.has_backward |= step.key[0] == "backward"

    # ---------------------------------------------------------------- recording

    def record(
        self, key: tuple, scalars: list[float | int], body: Callable[[list], Any], variant_of: Step | None = None
    ):
        """Record a new event: `body(runtime scalars)` runs user code; its result is the event's.

        An exception in `body` leaves the log as it was before the event.
        """
        if not self.taped:
            self.hydrate()
        step = self.current = Step(key, self.position, first=self.next)
        saved = dict(self.values), dict(self.externals), list(self.scalars), self.next
        try:
            for tensor in self.fresh.values():
                value = self._new_value(tensor._aval)
                step.operands.append(value)
                self._bind(value, tensor)
                self.values[id(tensor)] = value
            self.fresh = {}
            result = body([self.scalar(x) for x in scalars])
            step.result = self.freeze_result(result)
        except BaseException:
            self.values, self.externals, self.scalars, self.next = saved
            self.fresh = {}
            raise
        finally:
            self.current = None
        self._enter(self._known_variant(step))
        return result

    def _known_variant(self, step: Step) -> Step:
        """The step of an earlier, equal recording (now verified), or `step` entered as a new variant."""
        variants = self.position.children.setdefault(step.key, [])
        digest = step.digest()
        for other in variants:
            if other.digest() == digest:
                other.verified = True
                return other
        if variants and step.key[0] == "call":
            self._warn_unstable(variants[0], step)
        variants.append(step)
        return step

    def _warn_unstable(self, first: Step, second: Step) -> None:
        """The same call recorded something else: forward depends on a value that is not part of the key."""
        pairs = zip(first.nodes, second.nodes, strict=False)
        node = next((b for a, b in pairs if a.key() != b.key()), second.nodes[-1] if second.nodes else None)
        strict = self.owner is not None and self.owner.options.strict
        refuse(
            "unstable",
            node.location if node else "<empty>",
            strict=strict,
            detail=f"first in {node.prim.name}" if node else "",
        )

    def scalar(self, number: float | int):
        """A run-time scalar of the event being recorded."""
        kind = RuntimeFloat if isinstance(number, float) else RuntimeInt
        result = kind(number)
        result.value = self._new_value(aval_of(number))
        self.current.scalars.append(result.value)
        self.scalars.append(number)
        return result

    def _new_value(self, aval: Aval) -> int:
        self.current.avals.append(aval)
        self.next += 1
        return self.next - 1

    def operand(self, x) -> int | Constant:
        """The value number (or constant) of an operand; a real tensor not seen before is captured by reference."""
        if not isinstance(x, Tensor):
            return x.value if isinstance(x, (RuntimeFloat, RuntimeInt)) else Constant(x)
        if x._pending is not None:
            return x._pending.value
        value = self.find(x)
        return self.capture(x) if value is None else value

    def capture(self, tensor: Tensor) -> int:
        """Enter a real tensor that is read by reference (a parameter, buffer or moment)."""
        value = self._new_value(tensor._aval)
        step = self.current
        step.captured.append((value, tensor))
        step.index[id(tensor)] = value
        step._arrays_epoch = -1
        return value

    def grad_operand(self, parameter: Tensor) -> int:
        """Enter the gradient that `parameter` holds already; each replay takes the one it holds then."""
        value = self._new_value(parameter._grad._aval)
        self.current.grad_operands.append((parameter, value))
        self._bind_grad(value, parameter)
        return value

    def _bind_grad(self, value: int, parameter: Tensor) -> None:
        self.externals[value] = parameter._grad
        self.values[id(parameter._grad)] = value

    def primitive(self, prim, operands, attrs, location: Location):
        """Record one primitive inside the current event; returns pending tensors, linked to the tape."""
        result_avals = prim.infer(*[aval_of(x) for x in operands], **attrs)
        result_avals = result_avals if prim.num_results != 1 else (result_avals,)
        numbers = tuple(self.operand(x) for x in operands)
        results = tuple(self._new_value(a) for a in (result_avals or ()))
        node = Node(prim, numbers, attrs, results, location)
        step = self.current
        step.nodes.append(node)
        tensors = tuple(self.pending(v, False) for v in results)
        if "view" in prim.tags:
            for tensor in (operands[0], *tensors):
                if tensor._pending is not None:
                    tensor._pending.viewed = True
        if tensors:
            dispatch.tape.record(prim, [self.proxies.get(id(x), x) for x in operands], tensors, attrs)
        step.items.append(node)
        step.taped.append(any(t.requires_grad for t in tensors))
        return tensors[0] if prim.num_results == 1 else tensors

    def assign(self, target: Tensor, value: Tensor) -> None:
        """Record an update in place: of a pending tensor (it stands for the new value from now on) or of a real one (an update)."""
        number = self.operand(value)
        if target._pending is not None:
            step = self.current
            step.rebinds.append((target._pending.value, number))
            for key, tensor in self.grad_tensors.items():
                if tensor is target:
                    step.grads = {**self.grads, key: (self.grads[key][0], number)}
            self._attach(target, number)
            return
        old = self.operand(target)
        state = next((s for step in (*self.steps, self.current) for s, new in step.updates.items() if new == old), old)
        step = self.current
        step.updates[state] = number
        step.index[id(target)] = number
        step._arrays_epoch = -1
        self.values.pop(id(target), None)
        self.array_values.pop(id(target._array), None)

    def freeze_result(self, tree):
        """A result with leaves in place of its tensors."""

        def leaf(t: Tensor) -> Leaf:
            if t._pending is not None:
                return Leaf(t._pending.value, t.requires_grad)
            return Leaf(self.operand(t), t.requires_grad, external=True)

        return map_tree(tree, Tensor, leaf)

    # ---------------------------------------------------------------- the end

    def wanted(self) -> set[int]:
        """Values that somebody still holds: pending tensors (and what autograd saved), and gradients nobody consumed."""
        alive = {h.value for h in (r() for r in self.handles) if h is not None}
        return alive | {value for _, value in self.grads.values()}

    def residuals(self) -> list[int]:
        """While a tape is live: the values it keeps for a backward that may still come."""
        if not self.taped:
            return []
        held = [t for refs in self.live.values() for t in (r() for r in refs) if t is not None and t.requires_grad]
        todo = [t.grad_fn for t in held if t.grad_fn is not None]
        seen, kept = set(), set()
        while todo:
            node = todo.pop()
            if id(node) not in seen:
                seen.add(id(node))
                kept.update(t._pending.value for t in node.kept() if t._pending is not None and t._pending.log is self)
                todo += [e[0] for e in node.edges if type(e) is tuple]
        return sorted(kept)

    def ungate(self) -> None:
        """Join the tape of this log to the eager tapes of its arguments again."""
        if not self.taped or not self.proxies:
            return
        gates = {id(p): t for k, p in self.proxies.items() for t in self.externals.values() if id(t) == k}
        todo = [
            t.grad_fn
            for refs in self.live.values()
            for t in (r() for r in refs)
            if t is not None and t.grad_fn is not None
        ]
        seen = set()
        while todo:
            node = todo.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            for i, edge in enumerate(node.edges):
                if type(edge) is tuple:
                    todo.append(edge[0])
                elif id(edge) in gates:
                    node.edges[i] = gates[id(edge)].grad_fn, gates[id(edge)]._index

    def bindings(self) -> dict[int, Any]:
        """Arrays and numbers of everything that came from outside, by value."""
        result = {v: t._buffer() for step in self.steps for v, t in step.captured}
        result.update({v: self.arrays[v] if v in self.arrays else t._buffer() for v, t in self.externals.items()})
        result.update(zip((v for step in self.steps for v in step.scalars), self.scalars, strict=True))
        return result

    def resolve(self, results: dict[int, Any]) -> None:
        """Give every pending tensor its array."""
        for handle in alive(self.handles):
            handle.array, handle.log = results[handle.value], None
        for refs in self.live.values():
            for tensor in alive(refs):
                if tensor._pending is not None:
                    tensor._array, tensor._pending = tensor._pending.array, None

    def resolved(self, value: int) -> Tensor | None:
        """A tensor of user code that stood for `value`, if it is still held."""
        return next(iter(alive(self.live.get(value, ()))), None)

    def fail(self, error: BaseException) -> None:
        """The flush raised: pending tensors keep the error for whoever reads them."""
        for handle in alive(self.handles):
            handle.error, handle.log = error, None

    # ---------------------------------------------------------------- hydrate

    def hydrate(self) -> None:
        """Give the pending tensors of replayed steps their tape, so that new events can be recorded behind them."""
        tensors: dict[int, Tensor] = {}
        for value, refs in self.live.items():
            for tensor in alive(refs):
                tensors.setdefault(value, tensor)
        for step in self.steps:
            for value, tensor in step.captured:
                tensors[value] = tensor
        for value, tensor in self.externals.items():
            tensors[value] = self.proxies.get(id(tensor), tensor)
        for step in self.steps:
            for item, taped in zip(step.items, step.taped, strict=True):
                if taped:
                    self._hydrate_item(item, tensors)
            for value in step.freed:
                if value in tensors:
                    dispatch.tape.release(tensors[value])
        for value, refs in self.live.items():
            for tensor in alive(refs):
                twin = tensors[value]
                if twin is not tensor:
                    tensor.grad_fn, tensor.requires_grad = twin.grad_fn, twin.requires_grad
        self.taped = True

    def _hydrate_item(self, item: Node | FunctionCall, tensors: dict[int, Tensor]) -> None:
        def tensor(v):
            if v not in tensors:
                tensors[v] = self.pending(v, False)
            return tensors[v]

        results = tuple(tensor(v) for v in item.results)
        if isinstance(item, FunctionCall):
            dispatch.tape.relink(item.node, [None if v is None else tensor(v) for v in item.operands], results)
            return
        operands = [x.value if isinstance(x, Constant) else tensor(x) for x in item.operands]
        dispatch.tape.record(item.prim, operands, results, item.attrs, item.location)

    # ---------------------------------------------------------------- gradients

    @property
    def grads(self) -> dict[int, tuple[Tensor, int]]:
        """Pending gradients: id of the parameter -> (parameter, value)."""
        for step in (self.current, *reversed(self.steps)):
            if step is not None and step.grads is not None:
                return step.grads
        return {}

    def grad_tensor(self, parameter: Tensor) -> Tensor | None:
        """The pending gradient of a parameter as a tensor (the same one each time), or None."""
        tensor = self.grad_tensors.get(id(parameter))
        if tensor is None and id(parameter) in self.grads:
            tensor = self.grad_tensors[id(parameter)] = self.pending(self.grads[id(parameter)][1], False)
        return tensor


def alive(refs) -> list:
    """What weak references still point at."""
    return [x for x in (r() for r in refs) if x is not None]


def _root(tensor: Tensor) -> Tensor:
    """The tensor whose memory this one shares."""
    return tensor if tensor._base is None else tensor._base


def map_tree(tree, kind: type, function: Callable):
    """Apply `function` to every `kind` in nested tuples, lists and dicts; other leaves stay as they are."""
    if isinstance(tree, kind):
        return function(tree)
    if isinstance(tree, tuple):
        items = [map_tree(x, kind, function) for x in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    if isinstance(tree, list):
        return [map_tree(x, kind, function) for x in tree]
    if isinstance(tree, dict):
        return {k: map_tree(v, kind, function) for k, v in tree.items()}
    return tree


def operand_key(log: Log, tree):
    """A hashable description of an event's arguments, with tensors as references into the log.

    Errors: TypeError for a leaf that is not hashable (its value could not be compared at the next call).
    """
    frozen = freeze(map_tree(tree, Tensor, log.ref))
    try:
        hash(frozen)
    except TypeError:
        raise TypeError(message("compile", "an argument of a compiled call is neither a tensor nor hashable",
                                got=repr(tree)[:200], help="pass tensors or plain Python values")) from None  # fmt: skip
    return frozen
