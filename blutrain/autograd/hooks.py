"""Functions that run when a tensor's gradient is known."""

from __future__ import annotations

import itertools
import weakref

from ..errors import message
from ..tensor.tensor import Tensor, structure_epoch
from .tape import node_of

_ids = itertools.count()


class Living(dict):
    """Objects as long as they live: their weak references by id. A dict, as "is there any" is asked several times a step."""

    def add(self, thing) -> None:
        key = id(thing)
        self[key] = weakref.ref(thing, lambda _: self.pop(key, None))

    def all(self) -> list:
        return [thing for ref in list(self.values()) if (thing := ref()) is not None]


# All reducers, and those whose processes share the work of the optimizer: they say only that there is none. One that nobody
# can reach any more is among them until it is collected; what a backward does is decided by the reducers of its leaves.
reducing, sharing = Living(), Living()


class Hooks:
    """The hooks of one tensor, in order of registration.

    reducer: what adds up this leaf's gradients over processes (distributed/reducer.py), or None. It is no hook of user
    code: the engine tells it `ready(leaf)` once the gradient is there, and `finish()` at the end of a backward; nova
    takes its work into the program. One whose `is_syncing` is false is not told.
    """

    __slots__ = ("accumulated", "grad", "reducer")

    def __init__(self):
        self.grad, self.accumulated, self.reducer = {}, {}, None

    def any(self) -> bool:
        """Whether there is a hook: removed ones leave empty tables."""
        return bool(self.grad or self.accumulated)

    def run(self, grad: Tensor) -> Tensor:
        """The gradient after all hooks; one that returns None leaves it."""
        for hook in list(self.grad.values()):
            changed = hook(grad)
            if changed is not None:
                if not isinstance(changed, Tensor) or changed._aval != grad._aval:
                    got = str(changed._aval) if isinstance(changed, Tensor) else type(changed).__name__
                    raise ValueError(
                        message(
                            "register_hook",
                            "a hook returns None or a gradient like the one it got",
                            expected=str(grad._aval),
                            got=got,
                        )
                    )
                grad = changed
        return grad

    def run_accumulated(self, leaf: Tensor) -> None:
        for hook in list(self.accumulated.values()):
            hook(leaf)


class HookHandle:
    """Takes a hook away again: `handle.remove()`, or `with handle:`."""

    def __init__(self, table: dict, key: int):
        self._table, self._key = table, key

    def remove(self) -> None:
        self._table.pop(self._key, None)
        structure_epoch.bump()

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *exc) -> None:
        self.remove()


def _hooks_of(x: Tensor) -> Hooks:
    if x.grad_fn is None:
        if x._hooks is None:
            x._hooks = Hooks()
        return x._hooks
    node = node_of(x)
    if node.hooks is None:
        node.hooks = {}
    return node.hooks.setdefault(x._index, Hooks())


def _add(table: dict, hook) -> HookHandle:
    key = next(_ids)
    table[key] = hook
    structure_epoch.bump()
    return HookHandle(table, key)


def set_reducer(leaf: Tensor, reducer) -> None:
    """Have `reducer` (None: nothing) add up the leaf's gradients over processes."""
    _hooks_of(leaf).reducer = reducer
    structure_epoch.bump()


def reducer_of(leaf: Tensor):
    """What adds up this leaf's gradients over processes in a backward now, or None."""
    reducer = None if leaf._hooks is None else leaf._hooks.reducer
    return reducer if reducer is not None and reducer.is_syncing else None


def reducers_of(leaves) -> list:
    """What adds up gradients of some of these leaves in a backward now, each once, in the order they were made."""
    found = {r for leaf in leaves if (r := reducer_of(leaf)) is not None} if reducing else ()
    return sorted(found, key=lambda r: r.number)


def line_up(leaves) -> None:
    """A backward will tell the reducers of these leaves: those of one follow those of the others that were made before,
    in whatever order the gradients come, as where nova records it.
    """
    reducers = reducers_of(leaves) if len(reducing) > 1 else []
    for i, reducer in enumerate(reducers):
        reducer.before, reducer.is_over = reducers[:i], False


def shard_of(leaf: Tensor):
    """The part of a leaf that this process updates, where several share the work of the optimizer; None: all of it."""
    reducer = None if leaf._hooks is None else leaf._hooks.reducer
    return None if reducer is None else reducer.shard_of(leaf)


def sharers(leaves) -> set:
    """The reducers of leaves whose updates several processes share."""
    return {s.reducer for leaf in leaves if (s := shard_of(leaf)) is not None} if sharing else set()


def require_averages(op: str, leaves) -> None:
    """Errors: RuntimeError for leaves whose updates several processes share, and whose gradients are not averaged yet."""
    if any(reducer.is_open for reducer in sharing.all()) and any(reducer.is_open for reducer in sharers(leaves)):
        rule = "the gradients are sums of this rank alone: the last backward ran under no_sync()"
        help = "leave no_sync() before the last backward of a step (the optimizer's work is shared: shard_optimizer)"
        raise RuntimeError(message(op, rule, help=help))


def register_hook(x: Tensor, hook) -> HookHandle:
    """hook(grad) runs in each backward when the whole gradient of x is known, and may return another one.

    Errors: RuntimeError for a tensor that requires no gradient.
    """
    if not x.requires_grad:
        raise RuntimeError(message("register_hook", "the tensor requires no gradient", got=str(x._aval)))
    return _add(_hooks_of(x).grad, hook)


def register_post_accumulate_grad_hook(x: Tensor, hook) -> HookHandle:
    """hook(x) runs in each backward after x.grad was set or added to.

    Errors: RuntimeError for a tensor that is no leaf.
    """
    if not x.requires_grad or x.grad_fn is not None:
        raise RuntimeError(
            message(
                "register_post_accumulate_grad_hook", "only leaves that require a gradient have .grad", got=str(x._aval)
            )
        )
    return _add(_hooks_of(x).accumulated, hook)


def retain_grad(x: Tensor) -> None:
    """Have backward set .grad of a tensor that is no leaf."""
    if not x.requires_grad:
        raise RuntimeError(message("retain_grad", "the tensor requires no gradient", got=str(x._aval)))
    if x.grad_fn is None:
        return
    ref = weakref.ref(x)  # the node holds the hook: a strong reference would be a cycle

    def keep(grad: Tensor) -> None:
        tensor = ref()
        if tensor is not None:
            tensor._grad = grad.detach() if tensor._grad is None else tensor._grad + grad.detach()

    _add(_hooks_of(x).grad, keep)
