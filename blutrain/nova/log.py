"""The log: what is pending since the last flush.

Events enter it in two ways. A known one is replayed: its results become pending tensors again. A new one is recorded:
user code runs on pending tensors with a live tape (log_recording.py). Where a new event follows replayed ones, the tape
of those is built from their steps first (`hydrate`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..tensor import dispatch
from ..tensor.aval import Aval
from ..tensor.tensor import Tensor
from .log_recording import EventRecording
from .retape import rebuild
from .slots import GradSlots
from .steps import Handle, Leaf, Step, alive, map_tree, memory, runtime_scalar
from .trace import Location

if TYPE_CHECKING:
    from .compiled import Compiled

_TENSOR = object()  # marks a tensor in a key: equal to nothing that user code can pass


class Log(EventRecording):
    """The events since the last flush.

    A value number stands for one memory, and a handle too; only after `target.copy_(x)` two handles have one number.
    owner: the compiled module whose options hold; lifts: floats of the event being recorded are run-time scalars;
    is_launched: its program runs, or has run; taped: the pending tensors
    have their tape; externals: value -> outside tensor, arrays: value -> what is bound in its place; fresh: outside tensors
    that the coming event brings in; live: value -> the tensors that stand for it; proxies: id of an outside tensor with a
    tape of its own -> leaf in its place; marked: real tensors that an event writes, pending until the flush; states: those
    of the module whose call is being recorded, by array: an alias of one (`detach`) is captured as that one.
    """

    owner: Compiled | None = None
    current: Step | None = None
    taped = True
    calls = next = 0
    has_backward = has_input_views = is_launched = lifts = False
    refused: tuple[str, Location] | None = None

    def __init__(self, device, root: Step, slots: GradSlots):
        self.device, self.slots = device, slots
        self.steps: list[Step] = []
        self.indexed: list[Step] = []
        self.position = root
        self.externals: dict[int, Tensor] = {}
        self.arrays: dict[int, Any] = {}
        self.values: dict[int, int] = {}
        self.array_values: dict[int, int] = {}
        self.fresh: dict[int, Tensor] = {}
        self.scalars: list[float | int] = []
        self.live: dict[int, list[weakref.ref]] = {}
        self.handles: list[weakref.ref] = []
        self.grad_tensors: dict[int, Tensor] = {}
        self.proxies: dict[int, Tensor] = {}
        self.marked: list[Tensor] = []
        self.states: dict[int, Tensor] = {}
        self._grads: dict[int, tuple[Tensor, int]] = {}
        self.draw_scalars: dict[int, tuple] = {}
        self.counts: list[Any] = []
        self.deferred = dispatch.tape.deferred(self.hydrate)

    # ---------------------------------------------------------------- operands

    def ref(self, tensor: Tensor) -> tuple:
        """The part of an event's key that stands for a tensor; one not seen in this log is noted as fresh."""
        if tensor._pending is not None:
            return _TENSOR, tensor._pending.value, tensor._requires_grad, tensor.grad_fn is None
        value = self.find(tensor)
        if value is not None:
            return _TENSOR, value, tensor._requires_grad, "real"
        self.fresh.setdefault(id(tensor), tensor)
        return self._new_ref(tensor, list(self.fresh.values()))

    def outside(self, value: int) -> Tensor:
        """The outside tensor that a value stands for, or will stand for when the coming event has brought it in."""
        return self.externals[value] if value in self.externals else list(self.fresh.values())[value - self.next]

    def _new_ref(self, tensor: Tensor, fresh: list[Tensor]) -> tuple:
        """`fresh`: the outside tensors of the event, this one among them. Which of them share memory is part of the key."""
        root, position = root_of(tensor), next(i for i, t in enumerate(fresh) if t is tensor)
        first = next(i for i, t in enumerate(fresh) if root_of(t) is root)
        aliased = None if tensor._base is None else self.find(tensor._base)
        has_tape = tensor.grad_fn is not None
        return _TENSOR, "new", position, tensor._aval, tensor.requires_grad, has_tape, first, aliased

    def find(self, tensor: Tensor) -> int | None:
        """The value that a real tensor, or an alias of one, stands for in this log; None if it is not known."""
        value = self.values.get(id(tensor))
        if value is not None:
            return value
        for step in self._indexed():
            value = step.index.get(id(tensor))
            if value is not None:
                return value
        value = self.array_values.get(id(tensor._array))
        for step in self._indexed():
            if value is not None:
                break
            value = step.by_array().get(id(tensor._array))
        return value

    def _indexed(self) -> Iterator[Step]:
        """The steps that read or wrote real tensors, newest first."""
        if self.current is not None and self.current.index:
            yield self.current
        yield from reversed(self.indexed)

    def reads(self, tensor: Tensor) -> bool:
        """Whether the log has read this tensor, or one that shares its memory."""
        root = root_of(tensor)
        read = [t for step in self.steps for _, t in step.captured]
        return self.find(tensor) is not None or any(root_of(t) is root for t in (*self.externals.values(), *read))

    def _shares_memory(self, tensor: Tensor) -> bool:
        """Whether the log has read another tensor that is a view of the memory of this one."""
        root, steps = root_of(tensor), [*self.steps, *([self.current] if self.current else [])]
        known = (*self.externals.values(), *(t for step in steps for _, t in step.captured))
        return any(root_of(t) is root and t._array is not tensor._array for t in known)

    def _bind(self, value: int, tensor: Tensor) -> None:
        """Remember an outside tensor; memory that others may change unseen, or that is not contiguous, is copied now."""
        self.externals[value] = tensor
        self.values[id(tensor)] = value
        array = tensor._array if tensor._pending is None else tensor._buffer()
        self.array_values[id(array)] = value
        if tensor._base is not None:
            self.has_input_views = True
        if tensor._foreign or not array.flags.c_contiguous:
            self.arrays[value] = array.copy(order="C")

    # ---------------------------------------------------------------- replay

    def replayable(self, key: tuple, floats: tuple = ()) -> Step | None:
        """The known step for `key`, if it may be replayed without running user code. floats: those that the key lacks."""
        if self.taped and self.steps:
            return None
        variants = self.position.children.get(key)
        if floats and variants:
            variants = [step for step in variants if floats in step.numbers]
        return variants[0] if variants and len(variants) == 1 and variants[0].verified else None

    def replay(self, step: Step, scalars: list[float | int]):
        """Take a known step: bind what the event brought in and hand out its results as pending tensors."""
        self.taped = False
        if step.operands:
            for value, tensor in zip(step.operands, self.fresh.values(), strict=True):
                self._bind(value, tensor)
            self.fresh = {}
        self.scalars += scalars
        if not step.is_plain:
            self._bind_state(step)
        self._enter(step)
        if step.updates and step.writes_inputs:
            self._renumber(step)
        if not step.is_plain:
            self._show_writes(step)
        result = step.result
        if type(result) is Leaf and not result.external:
            return self.pending(result.value, result.requires_grad)
        return None if result is None else self.revive(result)

    def _bind_state(self, step: Step) -> None:
        """Bind what a step reads that is not among its operands: gradients that are there, and random draws."""
        for leaf, value in step.grad_operands:
            grad = self.slots.get(self.leaf(leaf))
            assert grad is not None  # the key of the event says so
            self._bind(value, grad)
        for generator, count in step.draws:
            self.scalars += (generator.seed, generator.counter)
            generator.counter += count

    def _show_writes(self, step: Step) -> None:
        """What a step changes in place, or sets, shows in the tensors and modules that user code holds."""
        for state, tensor in step.written.items():
            self._mark(self.externals[state] if tensor is None else tensor, step.updates[state])
        for handle in alive(self.handles) if step.rebinds else ():
            if handle.log is self and handle.value in step.rebinds:
                self.rebind(handle, step.rebinds[handle.value])
        for module, name, tree in step.attributes:
            setattr(module(), name, self.revive(tree))

    def revive(self, tree):
        """A step's result with pending (or the original outside) tensors in place of its leaves; aliases are aliases."""
        made: dict[Leaf, Tensor] = {}

        def tensor(leaf: Leaf) -> Tensor:
            if leaf.external:
                return self.externals[leaf.value] if leaf.value in self.externals else self.captured(leaf.value)
            if leaf not in made:
                made[leaf] = self.pending(leaf.value, leaf.requires_grad)
            return made[leaf]

        return map_tree(tree, Leaf, tensor)

    def captured(self, value: int) -> Tensor:
        """The tensor read by reference that a value stands for."""
        steps = self.steps if self.current is None else (*self.steps, self.current)
        return next(t for step in reversed(steps) for v, t in step.captured if v == value)

    def pending(self, value: int, requires_grad: bool) -> Tensor:
        """A new pending tensor for a value of this log; an alias of one that is held."""
        refs, twin = self.live.get(value), None
        if refs is None:
            refs = self.live[value] = []
        else:
            twin = next((t for t in alive(refs) if t._pending is not None), None)
        if twin is None:
            handle = Handle(self, value)
            self.handles.append(weakref.ref(handle))
            tensor = Tensor._make_pending(self.aval(value), self.device, handle)
        else:
            tensor = twin._alias()
        if requires_grad:
            tensor._requires_grad, tensor.grad_fn = True, self.deferred
        refs.append(weakref.ref(tensor))
        return tensor

    def rebind(self, handle: Handle, value: int) -> None:
        """A memory was changed in place: what has this handle stands for another value."""
        if self.current is not None:
            self.current.rebind(handle.value, value)
        self.live.setdefault(value, []).extend(self.live.pop(handle.value, ()))
        handle.value = value

    def aval(self, value: int) -> Aval:
        """The aval of a value of this log."""
        step = self.position if self.current is None else self.current
        if value < step.first:
            step = next(s for s in reversed(self.steps) if s.first <= value)
        return step.avals[value - step.first]

    def leaf(self, leaf: Tensor | int) -> Tensor:
        """A leaf, or the one that was brought in as a value."""
        return self.externals[leaf] if isinstance(leaf, int) else leaf

    def leaf_name(self, leaf: Tensor) -> Tensor | int:
        """How a step names a leaf: see Step."""
        return next((value for value, tensor in self.externals.items() if tensor is leaf), leaf)

    def _enter(self, step: Step) -> None:
        self.steps.append(step)
        kind = step.key[0]
        if kind == "call":
            self.calls += 1
        elif kind == "backward" or step.key[:2] == ("grad", False):
            self.has_backward = True
        if step.index:
            self.indexed.append(step)
        if step.grads is not None:
            self._grads = step.grads
            if step.input_grads:
                inputs = [(self.externals[leaf], value) for leaf, value in step.input_grads]
                self._grads = {**step.grads, **{id(t): (t, v) for t, v in inputs}}
        self.position = step
        self.next = step.first + len(step.avals)

    def _mark(self, tensor: Tensor, value: int) -> None:
        """A real tensor is about to get a new value: whoever reads it, or its memory by an alias or view, waits for the flush."""
        if tensor._pending is None:
            tensor._versions().pending = True
            self.marked.append(tensor)
            tensor._pending = Handle(self, value, tensor._array)
        else:
            tensor._pending.value = value

    def unmark(self, keep: int = 0) -> None:
        """The flush is over (or the events after the first `keep` marks never were): their memory is what it is."""
        while len(self.marked) > keep:
            tensor = self.marked[-1]
            tensor._versions().pending = False
            if tensor._pending is not None:
                tensor._pending.log = tensor._pending = None
            self.marked.pop()
        for tensor in self.marked:  # (views share a version)
            tensor._versions().pending = True

    def _renumber(self, step: Step) -> None:
        """Outside tensors that the event wrote stand for their new values."""
        for value, tensor in self.externals.items():
            if value in step.updates:
                self._rewritten(tensor, step.updates[value])

    def _rewritten(self, tensor: Tensor, value: int) -> None:
        self.values[id(tensor)] = self.array_values[id(memory(tensor))] = value

    # ---------------------------------------------------------------- gradients

    @property
    def grads(self) -> dict[int, tuple[Tensor, int]]:
        """Pending gradients: id of the leaf -> (leaf, value)."""
        step = self.current
        return step.grads if step is not None and step.grads is not None else self._grads

    def grad_tensor(self, parameter: Tensor) -> Tensor | None:
        """The pending gradient of a parameter as a tensor (the same one each time), or None."""
        tensor = self.grad_tensors.get(id(parameter))
        if tensor is None and id(parameter) in self.grads:
            operands = (x for step in self.steps for x in step.grad_operands)
            added_to = next((self.externals[v] for leaf, v in operands if self.leaf(leaf) is parameter), None)
            tensor = self.pending(self.grads[id(parameter)][1], False) if added_to is None else added_to
            self.grad_tensors[id(parameter)] = tensor
        return tensor

    # ---------------------------------------------------------------- the tape

    def gate(self, tensor: Tensor) -> None:
        """Put a leaf in the place of an outside tensor that has an eager tape of its own: backward stops there."""
        if tensor._pending is None and tensor.grad_fn is not None and id(tensor) not in self.proxies:
            dispatch.tape.node_of(tensor)  # its nodes come before those that are recorded from now on
            self.proxies[id(tensor)] = dispatch.tape.gate(tensor)

    def reaches_gate(self, roots: list[Tensor]) -> bool:
        """Whether a backward from `roots` comes to an eager tape that an outside tensor brought along."""
        if all(t.grad_fn is None for t in self.externals.values()):
            return False
        edges = [edge for node in dispatch.tape.reachable(roots) for edge in node.edges]
        gates = {id(proxy) for proxy in self.proxies.values()}
        return any(isinstance(edge, Tensor) and id(edge) in gates for edge in edges)

    def hydrate(self) -> None:
        """Give the pending tensors of replayed steps their tape, so that new events can be recorded behind them."""
        tensors: dict[int, Any] = {v: runtime_scalar(x, v) for v, x in self.scalar_values().items()}
        for step in self.steps:
            tensors.update(step.captured)
        for value, tensor in self.externals.items():
            self.gate(tensor)
            tensors[value] = self.proxies.get(id(tensor), tensor)
        waiting: dict[int, list[Tensor]] = {}
        for value, refs in self.live.items():
            waiting[value] = [t for t in alive(refs) if t.grad_fn is self.deferred]
            if waiting[value]:
                tensors[value] = waiting[value][0]
            for tensor in waiting[value]:
                tensor.grad_fn, tensor._requires_grad = None, False
        self.taped = True
        rebuild(self.steps, tensors, lambda v: self.pending(v, False))
        for value, group in waiting.items():
            for tensor in group:
                twin = tensors[value]
                tensor.grad_fn, tensor._requires_grad, tensor._index = twin.grad_fn, twin._requires_grad, twin._index

    # ---------------------------------------------------------------- the flush

    def held(self) -> dict[int, list[Tensor]]:
        """The pending tensors that user code still holds, by value."""
        held: dict[int, list[Tensor]] = {}
        for value, refs in self.live.items():
            tensors = alive(refs)
            if tensors:
                held[value] = tensors
        return held

    def bindings(self) -> dict[int, Any]:
        """Arrays and numbers of everything that came from outside, by value."""
        result = {v: array_of(t) for step in self.steps for v, t in step.captured}
        result.update({v: self.arrays[v] if v in self.arrays else array_of(t) for v, t in self.externals.items()})
        result.update(self.scalar_values())
        return result

    def scalar_values(self) -> dict[int, float | int]:
        """The run-time scalars by value."""
        return dict(zip((v for step in self.steps for v in step.scalars), self.scalars, strict=True))

    def abandon(self, error: BaseException) -> None:
        """An exception came in the way of the flush, or left an event half entered: nothing of this log will be computed.

        (If it came when the program had been started, then the updates were made, and the step counts.)
        """
        for handle in alive(self.handles):
            if handle.log is self:
                handle.fail(error)
        self.unmark()
        if not self.is_launched:
            self.uncount()

    def uncount(self) -> None:
        """The optimizer step in this log did not happen."""
        for count in self.counts:
            count.value -= 1
        self.counts = []

    def write_back(self) -> None:
        """Copies that were updated in place of outside tensors go to their memory."""
        for value, tensor in self.externals.items():
            if any(value in step.updates for step in self.steps):
                if value in self.arrays:
                    tensor._array[...] = self.arrays[value]
                tensor._bump_version()

    def ungate(self) -> None:
        """Join the tape of this log to the eager tapes of its arguments again."""
        gates = {id(p): t for k, p in self.proxies.items() for t in self.externals.values() if id(t) == k}
        for node in self.live_nodes():
            for i, edge in enumerate(node.edges):
                if id(edge) in gates:
                    node.edges[i] = gates[id(edge)].grad_fn, gates[id(edge)]._index

    def live_nodes(self) -> list:
        """The nodes of the tape that made tensors still held."""
        todo = [t.grad_fn for refs in self.live.values() for t in alive(refs) if t.grad_fn is not None]
        found = {}
        while todo:
            node = todo.pop()
            if id(node) not in found:
                found[id(node)] = node
                todo += [edge[0] for edge in node.edges if type(edge) is tuple]
        return list(found.values())


def array_of(tensor: Tensor):
    """The array of a tensor that is not pending, or only waits to be written."""
    return tensor._buffer() if tensor._array is None else tensor._array


def root_of(tensor: Tensor) -> Any:
    """What stands for the memory of a tensor: the array of the one that it is a view of, which aliases of that one
    (`detach`, `.data`) have, too.
    """
    root = tensor if tensor._base is None else tensor._base
    return root if root._array is None else root._array
