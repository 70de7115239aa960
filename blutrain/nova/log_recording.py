"""The part of the log that records new events: user code runs on pending tensors, and a step notes what it did."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from ..tensor import dispatch
from ..tensor.aval import Aval
from ..tensor.primitive import TABLE
from ..tensor.tensor import Tensor, aval_of
from .lifted import ARITHMETIC
from .refuse import refuse
from .steps import (
    MAX_VARIANTS,
    FunctionCall,
    Handle,
    Leaf,
    RuntimeFloat,
    RuntimeInt,
    Step,
    Taped,
    alive,
    map_tree,
    memory,
    runtime_scalar,
)
from .trace import Constant, Location, Node

if TYPE_CHECKING:
    from .compiled import Compiled
    from .slots import GradSlots


class EventRecording:
    """Base of Log; what stands here needs the rest of it."""

    if TYPE_CHECKING:
        owner: Compiled | None
        slots: GradSlots
        steps: list[Step]
        position: Step
        current: Step | None
        taped: bool
        lifts: bool
        draw_scalars: dict[int, tuple]
        next: int
        externals: dict[int, Tensor]
        arrays: dict[int, Any]
        values: dict[int, int]
        array_values: dict[int, int]
        fresh: dict[int, Tensor]
        scalars: list[float | int]
        live: dict[int, list[weakref.ref]]
        handles: list[weakref.ref]
        grad_tensors: dict[int, Tensor]
        proxies: dict[int, Tensor]
        marked: list[Tensor]
        states: dict[int, Tensor]
        grads: dict[int, tuple[Tensor, int]]
        refused: tuple[str, Location] | None

        def find(self, tensor: Tensor) -> int | None: ...
        def pending(self, value: int, requires_grad: bool) -> Tensor: ...
        def rebind(self, handle: Handle, value: int) -> None: ...
        def captured(self, value: int) -> Tensor: ...
        def leaf_name(self, leaf: Tensor) -> Tensor | int: ...
        def hydrate(self) -> None: ...
        def unmark(self, keep: int = 0) -> None: ...
        def _bind(self, value: int, tensor: Tensor) -> None: ...
        def _enter(self, step: Step) -> None: ...
        def _mark(self, tensor: Tensor, value: int) -> None: ...
        def _rewritten(self, tensor: Tensor, value: int) -> None: ...
        def _shares_memory(self, tensor: Tensor) -> bool: ...

    # ---------------------------------------------------------------- events

    def record(self, key: tuple, scalars: list[float | int], body: Callable[[list], Any], floats: tuple = ()):
        """Record a new event: `body(runtime scalars)` runs user code; its result is the event's. floats: see lifted.py.

        An exception in `body` leaves the log as it was before the event.
        """
        if not self.taped:
            self.hydrate()
        step = self.current = Step(key, self.position, first=self.next)
        before, handles = self._state(), [(h, h.value) for h in alive(self.handles)]
        marks = [t._pending.value for t in self.marked]
        try:
            for tensor in self.fresh.values():
                value = self._new_value(tensor._aval)
                step.operands.append(value)
                self._bind(value, tensor)
            self.fresh = {}
            self.lifts = bool(floats)
            result = body([self.scalar(x) for x in scalars])
            if self.refused is not None:
                return result
            numbers = self._lifted_numbers(step) if floats else []
            step.result = self.freeze_result(result)
            self._name_gradients(step)
            known = self.position.known_child(step)
            others = self.position.children.get(step.key, [])
            is_new = known is None and step.key[0] == "call" and (step.has_effects or not floats)
            if is_new and len(others) >= (MAX_VARIANTS if step.has_effects else 1):
                self._warn_unstable(others[0], step)
        except BaseException as error:
            self._undo(before, handles, error)
            self.unmark(len(marks))
            for tensor, value in zip(self.marked, marks, strict=True):
                tensor._pending.value = value
            raise
        finally:
            self.current, self.lifts = None, False
        entered = known or self.position.add_child(step)
        if floats:
            entered.remember(floats, numbers)
        self._enter(entered)
        return result

    def _lifted_numbers(self, step: Step) -> list[float | int]:
        """The run-time scalars of an event that are no random draws; they come first in it from now on."""
        drawn = {scalar.value for pair in self.draw_scalars.values() for scalar in pair}
        first = len(self.scalars) - len(step.scalars)
        order = sorted(range(len(step.scalars)), key=lambda i: step.scalars[i] in drawn)
        lifted = sum(value not in drawn for value in step.scalars)
        step.scalars, self.scalars[first:] = [step.scalars[i] for i in order], [self.scalars[first + i] for i in order]
        return self.scalars[first:][:lifted]

    def _name_gradients(self, step: Step) -> None:
        """Part the gradients of leaves that were brought in from the others."""
        for key, (leaf, value) in list((step.grads or {}).items()):
            name = self.leaf_name(leaf)
            if isinstance(name, int):
                del step.grads[key]
                step.input_grads.append((name, value))

    def _state(self) -> tuple:
        return (dict(self.values), dict(self.externals), dict(self.array_values), dict(self.arrays),
                dict(self.grad_tensors), list(self.scalars), self.next)  # fmt: skip

    def _undo(self, before: tuple, handles: list[tuple[Handle, int]], error: BaseException) -> None:
        """Put everything back as it was before the event; its pending tensors keep the error for whoever reads them."""
        self.values, self.externals, self.array_values, self.arrays, self.grad_tensors, self.scalars, self.next = before
        self.fresh = {}
        known = {id(handle) for handle, _ in handles}
        for handle in alive(self.handles):
            if id(handle) not in known:
                handle.fail(error)
        for handle, value in handles:
            if handle.value != value:
                self.live.setdefault(value, []).extend(self.live.pop(handle.value, ()))
                handle.value = value
        self.handles = [weakref.ref(handle) for handle, _ in handles]
        tensors = [t for refs in self.live.values() for t in alive(refs) if t._pending.log is self]
        self.live = {}
        for tensor in tensors:
            self.live.setdefault(tensor._pending.value, []).append(weakref.ref(tensor))

    def _warn_unstable(self, first: Step, second: Step) -> None:
        """The same call recorded something else: forward depends on a value that is not part of the key."""
        pairs = zip(first.nodes, second.nodes, strict=False)
        node = next((b for a, b in pairs if a.key() != b.key()), second.nodes[-1] if second.nodes else None)
        refuse(
            "unstable",
            node.location if node else "<empty>",
            strict=self.owner is not None and self.owner.options.strict,
            detail=f"first in {node.prim.name}" if node else "",
        )

    def scalar(self, number: float | int):
        """A run-time scalar of the event being recorded."""
        result = runtime_scalar(number, self._new_value(aval_of(number)))
        self.current.scalars.append(result.value)
        self.scalars.append(number)
        return result

    def _new_value(self, aval: Aval) -> int:
        self.current.avals.append(aval)
        self.next += 1
        return self.next - 1

    @overload
    def operand(self, x: Tensor) -> int: ...
    @overload
    def operand(self, x) -> int | Constant: ...
    def operand(self, x) -> int | Constant:
        """The value number (or constant) of an operand; a real tensor not seen before is captured by reference."""
        if not isinstance(x, Tensor):
            return x.value if isinstance(x, (RuntimeFloat, RuntimeInt)) else Constant(x)
        if x._pending is not None:
            return x._pending.value
        value = self.find(x)
        if value is None:
            value = self._new_value(x._aval)
            self.current.capture(self.states.get(id(x._array), x), value)
        return value

    def bind_gradient(self, parameter: Tensor) -> int:
        """Enter the real gradient in `p.grad` as an operand of the event: it is looked up again at each replay."""
        grad = self.slots.get(parameter)
        assert grad is not None
        value = self._new_value(grad._aval)
        self.current.grad_operands.append((self.leaf_name(parameter), value))
        self._bind(value, grad)
        return value

    def primitive(self, prim, operands, attrs, location: Location):
        """Record one primitive inside the current event; returns pending tensors, linked to the tape."""
        if self.lifts and prim.name in ARITHMETIC:
            operands = tuple([self.scalar(float(x)) if _is_constant(x) else x for x in operands])
        result_avals = prim.infer(*[aval_of(x) for x in operands], **attrs)
        result_avals = result_avals if prim.num_results != 1 else (result_avals,)
        numbers = tuple([self.operand(x) for x in operands])
        results = tuple([self._new_value(a) for a in (result_avals or ())])
        node = Node(prim, numbers, attrs, results, location)
        step = self.current
        step.nodes.append(node)
        if "view" in prim.tags:
            step.views[results[0]] = node
        tensors = tuple([self.pending(v, False) for v in results])
        if tensors:
            dispatch.tape.record(prim, [self.proxies.get(id(x), x) for x in operands], tensors, attrs)
            self.note_taped(node, operands, next((t.grad_fn for t in tensors if t.requires_grad), None))
        return tensors[0] if prim.num_results == 1 else tensors

    def note_taped(self, item: Node | FunctionCall, operands, on_tape, kept: tuple[int, ...] = ()) -> None:
        """Remember what the tape's node `on_tape` (None: it is not on the tape) needs, for a later rebuild."""
        if on_tape is None:
            return
        saved: list[Tensor] = on_tape.kept()
        kept += tuple([self.operand(t) for t in saved])
        kept += tuple([x.value for x in operands if isinstance(x, (RuntimeFloat, RuntimeInt))])
        # a pending leaf was made in this body and is gone after it: no gradient need reach it later
        wants = [e is not None and not (isinstance(e, Tensor) and e._pending is not None) for e in on_tape.edges]
        self.current.taped.append(Taped(item, tuple(wants), kept))

    def assign(self, target: Tensor, value: Tensor, location: Location) -> None:
        """Record a change in place, of a pending tensor or of a real one (then it is an update)."""
        step, number = self.current, self.operand(value)
        if memory(target) is None:
            old = target._pending.value
            changed = {k: (p, number) for k, (p, grad) in self.grads.items() if grad == old}
            if changed:
                step.grads = {**self.grads, **changed}
            self.rebind(target._pending, number)
            return
        state = self._state_value(target)
        if any(number in known.updates.values() for known in (*self.steps, step)):
            number = self.copy(value, location)
        step.updates[state] = number
        if state in self.externals:
            self._rewritten(self.externals[state], number)
        else:
            step.rewrite(self.captured(state), number)
        if step.key[0] != "step":  # the flush follows an optimizer's step at once
            step.written[state] = None if state in self.externals else self.captured(state)
            self._mark(target if target._array is not None else self._tensor_of(state), number)

    def _tensor_of(self, state: int) -> Tensor:
        return self.externals[state] if state in self.externals else self.captured(state)

    def copy(self, tensor: Tensor, location: Location) -> int:
        """The number of a copy: two memories must not have one number."""
        with dispatch.tape.no_grad():
            copied = self.primitive(TABLE["copy"], (tensor,), {}, location)
        assert isinstance(copied, Tensor)
        return copied._pending.value

    def _state_value(self, target: Tensor) -> int:
        """The value of a real tensor before anything in this log changed it."""
        array = memory(target)
        for value, tensor in self.externals.items():
            if tensor._array is array:
                return value
        for step in (*self.steps, self.current):
            for value, tensor in step.captured:
                if tensor._array is array:
                    return value
        return self.operand(target)

    def freeze_result(self, tree):
        """A result with leaves in place of its tensors."""

        def leaf(t: Tensor) -> Leaf:
            if memory(t) is None:
                return Leaf(t._pending.value, t.requires_grad)
            return Leaf(self._state_value(t), t.requires_grad, external=True)

        return map_tree(tree, Tensor, leaf)

    # ---------------------------------------------------------------- views

    def root_value(self, value: int) -> int:
        """The value whose memory a value shares: itself unless it is a view."""
        steps = [*self.steps, *([self.current] if self.current else [])]
        while True:
            node = next((step.views[value] for step in steps if value in step.views), None)
            if node is None:
                return value
            base = node.operands[0]
            assert isinstance(base, int)  # there is no view of a constant
            value = base

    def is_shared(self, target: Tensor, value: Tensor) -> bool:
        """Whether a change of `target` to `value` in place cannot be recorded.

        It would have to show in another tensor that somebody holds (a view, or memory of an outside tensor), or a
        pending tensor would keep a history that its new value does not have.
        """
        if memory(target) is not None:
            return self._shares_memory(target) or self._has_views(
                self.operand(target) if self.current else self.find(target)
            )
        number = target._pending.value
        if target.requires_grad and not (dispatch.tape.enabled() and self._has_history(value)):
            return True
        if any(h.value == number and h is not target._pending for h in alive(self.handles)):
            return True
        root = self.root_value(number)
        return (root != number and not self.is_made(root)) or self._has_views(number)

    def _has_history(self, value: Tensor) -> bool:
        """Whether a tensor that is on the tape stands for the same value."""
        return value._pending is not None and any(t.requires_grad for t in alive(self.live[value._pending.value]))

    def _has_views(self, number: int | None) -> bool:
        """Whether somebody holds another tensor with the memory of a value."""
        if number is None:
            return False
        root = self.root_value(number)
        held = {handle.value for handle in alive(self.handles)}
        return any(v != number and self.root_value(v) == root for v in held)

    def is_made(self, value: int) -> bool:
        """Whether a value is the result of a node, not brought in or captured."""
        steps = [*self.steps, *([self.current] if self.current else [])]
        return any(value in node.results for step in steps for node in step.nodes)


def _is_constant(x) -> bool:
    return isinstance(x, float) and not isinstance(x, RuntimeFloat)
