"""Custom differentiable functions."""

from __future__ import annotations

from typing import Any

from ..errors import message, user_location
from ..tensor import dispatch
from ..tensor.ops import create
from ..tensor.tensor import Tensor
from . import tape
from .mode import no_grad, state
from .saved import restore, save


class FunctionContext:
    """`ctx` of a Function: what forward leaves for backward. Any attribute may be set on it.

    needs_input_grad: a bool per argument of forward.
    """

    needs_input_grad: tuple[bool, ...] = ()

    def __init__(self):
        self._to_save: tuple = ()
        self._saved: list | None = None
        self._node: Any = None
        self._materialize = True
        self._no_grad_ids: set[int] = set()

    def save_for_backward(self, *tensors) -> None:
        """Keep tensors (operands, results or others; None is allowed) for backward: `ctx.saved_tensors` there."""
        self._to_save = tensors

    @property
    def saved_tensors(self) -> tuple:
        """What save_for_backward got.

        Errors: RuntimeError after it was freed, or where a tensor was changed in place since.
        """
        if self._saved is None:
            if self._node is not None and self._node.freed:
                rule = "its saved tensors were freed by an earlier backward"
                raise RuntimeError(
                    message(self._node.name, rule, location=self._node.location, help="use retain_graph=True")
                )
            return self._to_save
        return tuple([s if s is None else restore(s, self._node, edge) for s, edge in self._saved])

    def mark_non_differentiable(self, *tensors) -> None:
        """These results of forward get no gradient."""
        self._no_grad_ids.update(id(x) for x in tensors)

    def set_materialize_grads(self, value: bool) -> None:
        """False: backward gets None, not zeros, for results without a gradient."""
        self._materialize = value


class FunctionNode:
    """A call of a custom Function on the tape."""

    __slots__ = (
        "avals",
        "context",
        "device",
        "edges",
        "freed",
        "function",
        "hooks",
        "location",
        "number",
        "result_avals",
        "single",
    )

    def __init__(self, function, context: FunctionContext, args, results, single: bool):
        self.function, self.context, self.hooks, self.freed, self.single = function, context, None, False, single
        self.edges = [tape.edge_of(x) for x in args]
        self.number, self.location = tape.next_number(), user_location()
        self.avals = tuple([x._aval if isinstance(x, Tensor) else None for x in args])
        self.result_avals = tuple([r._aval for r in results])
        self.device = results[0].device

    @property
    def name(self) -> str:
        return self.function.__name__

    def run(self, grads):
        """What the Function's backward returns, as a list with one entry per argument."""
        if self.context._materialize:
            grads = [create.zeros_of(a, self.device) if g is None else g for g, a in zip(grads, self.result_avals)]
        results = self.function.backward(self.context, *grads)
        results = list(results) if isinstance(results, tuple | list) else [results]
        while len(results) > len(self.edges) and results[-1] is None:
            results.pop()
        return results

    def kept(self) -> list[Tensor]:
        """The tensors that are held for backward."""
        return [s[0] for s, _ in self.context._saved or () if type(s) is tuple]

    def contents(self) -> tuple[list, dict[str, Any]]:
        """What the context holds: the saved tensors (and None), and the attributes that forward set."""
        saved = [s[0] if type(s) is tuple else s for s, _ in self.context._saved or ()]
        return saved, {k: v for k, v in self.context.__dict__.items() if k not in _OWN}

    def again(self, args, results, saved, attributes: dict[str, Any]) -> FunctionNode:
        """A node for the same call on other tensors, with contents as `contents` gives them."""
        context = FunctionContext()
        context.__dict__.update(attributes)
        context._to_save = tuple(saved)
        node = FunctionNode(self.function, context, args, results, self.single)
        node.location = self.location
        _save(node, context, args, results)
        return node

    def free(self) -> None:
        self.freed = True
        self.context._saved, self.context._to_save = None, ()

    def change_kept(self, change) -> None:
        """As Node.change_kept."""
        if self.context._saved is not None:
            self.context._saved = [(change(s), edge) for s, edge in self.context._saved]


_OWN = frozenset({"_to_save", "_saved", "_node", "_no_grad_ids"})  # of a context, not of the user's forward


class Function:
    """Base of custom differentiable functions.

    Subclasses define the static methods `forward(ctx, *args)`, which computes with gradients off, and `backward(ctx,
    *grads)`, which returns a gradient (or None) for each argument of forward; they are called by `apply`:

    >>> class Reverse(bt.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return x.clone()
    ...     @staticmethod
    ...     def backward(ctx, grad):
    ...         return -grad
    >>> x = bt.ones(2, requires_grad=True)
    >>> Reverse.apply(x).sum().backward()
    >>> x.grad
    tensor([-1., -1.])

    backward is differentiable again if it is written with differentiable operations. As in PyTorch the forward may be
    written without ctx, `forward(*args)`, beside a method `setup_context(ctx, inputs, output)`.
    """

    @staticmethod
    def forward(ctx: FunctionContext, *args):
        raise NotImplementedError("a Function defines forward(ctx, ...)")

    @staticmethod
    def setup_context(ctx: FunctionContext, inputs: tuple, output) -> None:
        """What of the inputs and the output of a forward without ctx is kept for backward."""

    @staticmethod
    def backward(ctx: FunctionContext, *grads):
        raise NotImplementedError("a Function defines backward(ctx, ...)")

    @classmethod
    def apply(cls, *args):
        """Call the function: what forward returns, linked to backward."""
        if dispatch.recorder is not None:
            result = dispatch.recorder.function_apply(_apply, cls, args)
            if result is not NotImplemented:
                return result
        return _apply(cls, args)


def _apply(cls, args):
    context = FunctionContext()
    differentiable = state.enabled and any(tape.edge_of(x) is not None for x in args)
    context.needs_input_grad = tuple([differentiable and tape.edge_of(x) is not None for x in args])
    with no_grad():
        if cls.setup_context is Function.setup_context:
            returned = cls.forward(context, *args)
        else:
            returned = cls.forward(*args)
            cls.setup_context(context, args, returned)
    single = not isinstance(returned, tuple | list)
    results = (returned,) if single else tuple(returned)
    if not all(isinstance(r, Tensor) for r in results):
        got = ", ".join(type(r).__name__ for r in results)
        raise TypeError(message(cls.__name__, "forward returns a tensor or a tuple of tensors", got=got))
    # a result that is an argument, or that has a history of its own, must not get this node: an alias does
    results = tuple([r._alias() if any(r is a for a in args) or r.grad_fn is not None else r for r in results])
    if not differentiable:
        context._to_save = ()
        return results[0] if single else results
    node = FunctionNode(cls, context, args, results, single)
    for i, r in enumerate(results):
        if r._aval.dtype.is_floating and id(r) not in context._no_grad_ids:
            r._requires_grad, r.grad_fn, r._index = True, node, i
    _save(node, context, args, results)
    if dispatch.recorder is not None:
        dispatch.recorder.note_function(node, args, results)
    return results[0] if single else results


def _save(node: FunctionNode, context: FunctionContext, args, results) -> None:
    saved = []
    for x in context._to_save:
        own = next((i for i, r in enumerate(results) if r is x), None)
        edge = next((e for a, e in zip(args, node.edges) if a is x), None) if own is None else (node, own)
        saved.append((save(x, own) if isinstance(x, Tensor) else x, edge))
    context._saved, context._node, context._to_save = saved, node, ()
