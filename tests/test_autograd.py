"""The tape and the engine: what is recorded, accumulated, freed; modes, hooks, custom functions, checkpoint, errors."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import blutrain as bt
from blutrain import autograd, nn
from blutrain.autograd import Function, checkpoint, gradcheck, saved_tensors_hooks
from blutrain.autograd.hooks import Living
from blutrain.tensor import dispatch


def leaf(*values) -> bt.Tensor:
    return bt.tensor(values, requires_grad=True)


def test_backward_fills_and_adds_to_grad():
    x = leaf(1.0, 2.0)
    (x * x).sum().backward()
    first = x.grad
    assert x.grad.tolist() == [2, 4]
    (x * 3).sum().backward()
    assert x.grad.tolist() == [5, 7] and x.grad is first


def test_a_leaf_owns_its_gradient():
    """x + y hands the same gradient to both: writing one must not change the other."""
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    start = bt.ones(2)
    (x + y).backward(start)
    x.grad.mul_(5)
    assert y.grad.tolist() == [1, 1] and start.tolist() == [1, 1]
    z = leaf(1.0, 2.0)
    z.sum().backward()
    z.grad.add_(1)  # was a broadcast view of one number
    assert z.grad.tolist() == [2, 2] and z.grad.is_contiguous()


def test_one_tensor_used_often():
    x = leaf(2.0)
    y = x * x * x + x
    y.sum().backward()
    assert x.grad.item() == 13


def test_grad_of_leaves_and_intermediate_tensors():
    x = leaf(3.0)
    y = x * x
    z = (y * y).sum()
    gy, gx = autograd.grad(z, [y, x])
    assert gy.tolist() == [18] and gx.tolist() == [108] and x.grad is None
    with pytest.raises(RuntimeError, match="was not used"):
        autograd.grad((x * 2).sum(), [leaf(1.0)])
    assert autograd.grad((x * 2).sum(), [leaf(1.0)], allow_unused=True) == (None,)
    root = x.sum()
    assert autograd.grad(root, [root], bt.tensor(4.0))[0].item() == 4
    assert [g.item() for g in autograd.grad([x, x], [x], [bt.ones(1), bt.ones(1)])] == [2]


def test_second_derivative_through_create_graph():
    x = leaf(2.0)
    (first,) = autograd.grad((x**3).sum(), [x], create_graph=True)
    (second,) = autograd.grad(first.sum(), [x], create_graph=True)
    (third,) = autograd.grad(second.sum(), [x])
    assert (first.item(), second.item(), third.item()) == (12, 12, 6)


def test_backward_with_create_graph_can_be_differentiated():
    x = leaf(2.0)
    (x**3).sum().backward(create_graph=True)
    g = x.grad
    x.grad = None
    g.sum().backward()
    assert x.grad.item() == 12


def test_a_graph_is_freed_and_the_error_names_operation_and_line():
    x = leaf(1.0)
    y = (x * x).sum()
    y.backward()
    with pytest.raises(
        RuntimeError, match=r"(?s)sum: its saved tensors were freed.*test_autograd.py:\d+.*retain_graph"
    ):
        y.backward()
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()


def test_saved_tensors_do_not_outlive_backward():
    x = leaf(1.0, 2.0)
    middle = x.exp()
    y = (middle * middle).sum()
    array = weakref.ref(middle._array)
    del middle
    assert array() is not None
    y.backward()
    assert array() is None


def test_no_cycles_keep_tensors_alive():
    """Without backward, dropping the result frees everything at once: no garbage collection is needed."""
    gc.collect()
    gc.disable()
    try:
        x = leaf(1.0)
        y, arrays = x, []
        for operation in ("exp", "tanh", "sigmoid", "sqrt", "rsqrt", "reciprocal", "square", "amax", "log"):
            y = getattr(y, operation)()
            arrays.append(weakref.ref(y._array))
        del y
        assert [a() for a in arrays] == [None] * len(arrays)
    finally:
        gc.enable()


def test_changing_a_saved_tensor_in_place_is_an_error():
    x = leaf(1.0, 2.0)
    y = x.exp()
    z = y * y
    with bt.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match=r"(?s)f32\[2\].*changed in place.*test_autograd.py"):
        z.sum().backward()
    w = leaf(1.0)
    out = (w * leaf(2.0)).sum()
    with bt.no_grad():
        w.zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        out.backward()


def test_changing_what_is_not_needed_is_no_error():
    x, c = leaf(1.0, 2.0), bt.tensor([3.0, 4.0])
    y = x * c
    with bt.no_grad():
        x.add_(1)  # only c is needed for the gradient of x
    y.sum().backward()
    assert x.grad.tolist() == [3, 4]


def test_in_place_operations_with_history():
    x = leaf(1.0, 2.0)
    y = x * 2
    y.mul_(3)
    y += x
    y[0] = x[1] * 10
    y.sum().backward()
    assert y.tolist() == [20, 14] and x.grad.tolist() == [0, 17]


def test_in_place_errors():
    x = leaf(1.0, 2.0)
    with pytest.raises(RuntimeError, match="a leaf that requires a gradient"):
        x.add_(1)
    with pytest.raises(RuntimeError, match="a leaf that requires a gradient"):
        x.copy_(bt.ones(2))
    with pytest.raises(RuntimeError, match="a view of a leaf that requires a gradient"):
        x[0] += 1
    with bt.no_grad():
        x.add_(1)
    assert x.tolist() == [2, 3]


def test_views_follow_what_is_written_to_their_base():
    x = leaf(1.0, 2.0)
    y = x * 2
    view, row = y[:1], y.reshape(2, 1)
    y.mul_(3)
    assert autograd.grad(view.sum(), x, retain_graph=True)[0].tolist() == [6, 0]
    row[1] += x[0]
    (y * y).sum().backward()
    assert y.tolist() == [6, 13] and x.grad.tolist() == [2 * 6 * 6 + 2 * 13, 2 * 13 * 6]
    base = bt.zeros(2, 2)
    view, root = base[0], base[1]
    base.copy_(x.detach().requires_grad_() * 5)
    assert view.requires_grad and view.tolist() == [5, 10]
    w = leaf(1.0, 2.0)
    base[1] = w
    root.backward(bt.tensor([1.0, 3.0]))
    assert w.grad.tolist() == [1, 3]
    y = x * 2
    view = y[1:]
    y.mul_(3)
    with bt.no_grad():
        assert not (view + 1).requires_grad and view.requires_grad
    assert autograd.grad(view, x)[0].tolist() == [0, 6]
    hidden = (x * 2).reshape(2, 1)  # itself a view
    hidden[0] *= 5
    x.grad = None
    hidden.sum().backward()
    assert x.grad.tolist() == [10, 2]


MAKERS = [lambda x: x * 1, lambda x: nn.functional.softmax(x, 0) * 1]


@pytest.mark.parametrize("make", MAKERS, ids=["rows", "columns"])
@pytest.mark.parametrize(
    "view",
    [
        lambda y: y[0],
        lambda y: y.t()[1:],
        lambda y: y.flip(1)[:, ::2],
        lambda y: y[:2, 1:3].unsqueeze(1),
        lambda y: y[1:1],
    ],
)
def test_a_view_is_written_with_history(view, make):
    """The gradients of a write through a view, where the memory of its base is row-major and where it is not."""

    x = bt.randn(3, 4, dtype=bt.float64, requires_grad=True)
    w = bt.randn((), dtype=bt.float64, requires_grad=True)
    assert make(x).is_contiguous() is (make is MAKERS[0])

    def write(x, w):
        y = make(x)
        part = view(y)
        part *= w
        part += 1
        return y * y, part * 2

    def expected(x, w):
        y = make(x)
        part = view(y) * w + 1
        places = view(bt.arange(12).reshape(3, 4)).reshape(-1)
        whole = y.reshape(-1).index_copy(0, places, part.reshape(-1)).reshape(3, 4)
        return whole * whole, part * 2

    gradcheck(write, (x, w), order=2)
    for ours, theirs in zip(write(x, w), expected(x, w)):
        np.testing.assert_allclose(ours.numpy(force=True), theirs.numpy(force=True))


def test_augmented_assignment_to_a_part():
    x = leaf(1.0, 2.0)
    y = x * 1
    y[0] += x[1] * 5
    y[1:] *= x[:1]
    (y * bt.tensor([1.0, 10.0])).sum().backward()
    assert y.tolist() == [11, 2] and x.grad.tolist() == [21, 15]
    y = x * 1
    version = y._versions().history
    y[0] += 1
    assert y._versions().history == version + 1  # written once
    z = (x * 1).expand(2, 2) * 1
    z[:] = z[0]
    with pytest.raises(IndexError, match="out of range"):
        z[5] = z[0]


def test_what_is_written_keeps_the_gradients_of_its_old_value():
    """x *= w needs the old x for the gradient of w."""
    x, w = leaf(1.0, 2.0), leaf(3.0, 4.0)
    y = x * 1
    y *= w
    y /= w
    y **= 2
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [2, 4], rtol=1e-6)
    np.testing.assert_allclose(w.grad.numpy(), [0, 0], atol=1e-6)


def test_copy_replaces_the_history():
    x, source = leaf(1.0, 2.0), leaf(3.0, 4.0)
    y = x * 2
    y.copy_(source)
    y.sum().backward()
    assert source.grad.tolist() == [1, 1] and x.grad.tolist() == [0, 0] and not y.is_leaf
    y = x * 2
    y.copy_(bt.arange(2))
    assert autograd.grad(y.sum(), x)[0].tolist() == [0, 0]


def test_memory_that_cannot_be_written():
    for change in (lambda x: x.add_(1), lambda x: x.zero_(), lambda x: x.__setitem__(0, 1.0)):
        with pytest.raises(RuntimeError, match="several elements of the tensor are one in memory"):
            change(bt.ones(2).expand(3, 2))
        with pytest.raises(RuntimeError, match="read-only"):
            change(bt.from_numpy(np.frombuffer(np.ones(2).tobytes())))


def test_views_see_writes_without_history():
    x = bt.zeros(2, 3)
    x.t()[0] = 7
    x.view(6)[5] = 1
    assert x.tolist() == [[7, 0, 0], [7, 0, 1]]


def test_no_grad_enable_grad_and_set_grad_enabled():
    x = leaf(1.0)
    with bt.no_grad():
        assert not (x * 2).requires_grad and not bt.is_grad_enabled()
        with bt.enable_grad():
            assert (x * 2).requires_grad
    assert bt.is_grad_enabled()

    @bt.no_grad()
    def first():
        return x * 2

    @bt.no_grad
    def second():
        return x * 2

    @bt.set_grad_enabled(False)
    def third():
        return x * 2

    assert (
        not first().requires_grad and not second().requires_grad and not third().requires_grad and bt.is_grad_enabled()
    )
    with bt.set_grad_enabled(False):
        assert not bt.is_grad_enabled()
    bt.set_grad_enabled(False)
    assert not bt.is_grad_enabled()
    bt.set_grad_enabled(True)
    with pytest.raises(ValueError), bt.no_grad():
        raise ValueError
    assert bt.is_grad_enabled()


def test_no_grad_of_a_generator_holds_while_its_body_runs():
    @bt.no_grad()
    def batches(n):
        got = []
        for _ in range(n):
            got.append((yield bt.is_grad_enabled()))
        return got, bt.is_grad_enabled()

    seen = batches(2)
    assert next(seen) is False and bt.is_grad_enabled() and seen.send("a") is False
    with pytest.raises(StopIteration) as end:
        seen.send("b")
    assert end.value.value == (["a", "b"], False) and bt.is_grad_enabled()
    assert list(batches(3)) == [False] * 3
    with pytest.raises(KeyError):
        seen = batches(2)
        next(seen)
        seen.throw(KeyError)
    assert bt.is_grad_enabled()


def test_grad_mode_belongs_to_the_thread():
    import threading

    seen = []
    with bt.no_grad():
        thread = threading.Thread(target=lambda: seen.append(bt.is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_integer_results_have_no_history():
    x = leaf(1.0, 5.0)
    assert not x.argmax().requires_grad and not (x > 2).requires_grad and not x.long().requires_grad
    with pytest.raises(RuntimeError, match="does not require a gradient"):
        (x > 2).float().sum().backward()


def test_an_operation_without_gradient_says_so():
    x = leaf(5.0)
    with pytest.raises(RuntimeError, match=r"floor_divide: has no gradient: .*\n  at .*test_autograd.py"):
        (x // 2.0).sum().backward()


def test_roots_are_checked():
    with pytest.raises(RuntimeError, match="only at one element"):
        (leaf(1.0, 2.0) * 2).backward()
    with pytest.raises(RuntimeError, match="does not require a gradient"):
        bt.ones(1).backward()
    with pytest.raises(ValueError, match="does not fit its root"):
        (leaf(1.0, 2.0) * 2).backward(bt.ones(3))
    with pytest.raises(ValueError, match="one gradient per root"):
        autograd.backward([leaf(1.0)], [])


def test_a_long_chain():
    x = leaf(1.0)
    y = x
    for _ in range(20_000):
        y = y + 0.0
    y.sum().backward()
    assert x.grad.item() == 1
    del y


def test_a_wide_and_deep_diamond_is_linear():
    x = leaf(1.0)
    y = x
    for _ in range(200):
        y = y * 0.5 + y * 0.5
    y.sum().backward()
    assert x.grad.item() == 1


def test_backward_only_into_inputs():
    x, y = leaf(1.0), leaf(2.0)
    z = x * y
    seen = []
    y.register_hook(lambda g: seen.append(g))
    (z * z).sum().backward(inputs=[x, z])
    assert x.grad.item() == 8 and y.grad is None and z.grad.item() == 4 and not seen
    (x * y * x).sum().backward(inputs=[z, x])
    assert x.grad.item() == 12 and z.grad.item() == 4
    with pytest.raises(RuntimeError, match="an input does not require a gradient"):
        (x * y).sum().backward(inputs=[bt.ones(1)])


def test_equal_runs_give_equal_bits():
    def run():
        bt.manual_seed(3)
        x = bt.randn(50, 50, requires_grad=True)
        y = x
        for _ in range(5):
            y = (y @ x).tanh() + x * y.sum(0)
        y.sum().backward()
        return x.grad.numpy().tobytes()

    assert run() == run()


def test_hooks_change_gradients_in_order():
    x = leaf(1.0, 2.0)
    seen = []
    first = x.register_hook(lambda g: seen.append("first") or g * 2)
    x.register_hook(lambda g: seen.append("second"))
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))
    y = x * 1
    y.register_hook(lambda g: g + 1)
    y.sum().backward()
    assert seen == ["first", "second", [4, 4]]
    first.remove()
    (x * 1).sum().backward()
    assert x.grad.tolist() == [5, 5]
    with pytest.raises(RuntimeError, match="requires no gradient"):
        bt.ones(1).register_hook(print)
    x.register_hook(lambda g: g[0])
    with pytest.raises(ValueError, match="a hook returns"):
        x.sum().backward()


def test_grad_runs_no_hook_of_accumulation():
    x, seen = leaf(1.0), []
    x.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    x.register_hook(lambda g: seen.append("gradient"))
    autograd.grad((x * x).sum(), x)
    assert seen == ["gradient"]


def test_hooks_run_once_with_the_whole_gradient():
    x = leaf(1.0)
    calls = []
    x.register_hook(lambda g: calls.append(g.item()))
    (x * 2 + x * 3 + x).sum().backward()
    assert calls == [6]


def test_retain_grad():
    x = leaf(1.0)
    y = x * 2
    y.retain_grad()
    (y * 3).sum().backward()
    assert y.grad.item() == 3


def test_detach_shares_memory_without_history():
    x = leaf(1.0, 2.0)
    y = x * 2
    d = y.detach()
    assert not d.requires_grad and d.is_leaf
    d[0] = 9
    assert y.tolist() == [9, 4]
    with pytest.raises(RuntimeError, match="changed in place"):
        z = y * y
        d[0] = 1
        z.sum().backward()


def test_requires_grad_errors():
    with pytest.raises(TypeError, match="only floating"):
        bt.arange(3).requires_grad_()
    with pytest.raises(TypeError, match="only floating"):
        bt.arange(3).requires_grad = True
    with pytest.raises(RuntimeError, match="no leaf"):
        (leaf(1.0) * 2).requires_grad_(False)


def test_setting_grad_is_checked():
    x = leaf(1.0, 2.0)
    with pytest.raises(ValueError, match="shape, dtype and device"):
        x.grad = bt.ones(3)
    with pytest.raises(TypeError, match="a tensor or None"):
        x.grad = 1.0
    x.grad = bt.ones(2)
    del x.grad
    assert x.grad is None


class Scale(Function):
    @staticmethod
    def forward(ctx, x, factor, bias=None):
        ctx.save_for_backward(x, factor)
        ctx.extra = 1
        assert not bt.is_grad_enabled()
        return x * factor if bias is None else x * factor + bias

    @staticmethod
    def backward(ctx, grad):
        x, factor = ctx.saved_tensors
        assert ctx.extra == 1
        return grad * factor, (grad * x).sum() if ctx.needs_input_grad[1] else None, None


def test_function():
    x, k = bt.rand(3, dtype=bt.float64, requires_grad=True), bt.rand((), dtype=bt.float64, requires_grad=True)
    y = Scale.apply(x, k)
    assert repr(y).endswith("grad_fn=<Scale>)")
    gradcheck(lambda x, k: Scale.apply(x, k, 1.0), (x, k), order=2)
    y = Scale.apply(x, k.detach())
    y.sum().backward()
    assert k.grad is None and x.grad is not None
    with pytest.raises(RuntimeError, match=r"(?s)Scale: its saved tensors were freed.*test_autograd.py"):
        y.sum().backward()


def test_function_with_several_results_and_saved_results():
    class Both(Function):
        @staticmethod
        def forward(ctx, x):
            e = x.exp()
            ctx.save_for_backward(e)
            index = x.argmax()
            ctx.mark_non_differentiable(index)
            return e, x * 2, index

        @staticmethod
        def backward(ctx, ge, g2, _):
            return ge * ctx.saved_tensors[0] + g2 * 2

    x = bt.rand(3, dtype=bt.float64, requires_grad=True)
    _, two, index = Both.apply(x)
    assert not index.requires_grad
    gradcheck(lambda x: Both.apply(x)[0], (x,), order=2)
    two.sum().backward()
    assert x.grad.tolist() == [2, 2, 2]
    gc.collect()
    gc.disable()
    alive = weakref.ref(Both.apply(x)[0])
    gc.enable()
    assert alive() is None


def test_function_with_a_context_set_up_apart():
    class Power(Function):
        @staticmethod
        def forward(x, n):
            return x**n

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0], output)
            ctx.n = inputs[1]

        @staticmethod
        def backward(ctx, grad):
            x, y = ctx.saved_tensors
            return grad * y * ctx.n / x, None

    x = bt.rand(3, dtype=bt.float64, requires_grad=True)
    gradcheck(lambda x: Power.apply(x, 3), (x,), order=2)


def test_function_that_returns_its_argument():
    class Same(Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, grad):
            return grad * 5

    x = leaf(1.0)
    y = Same.apply(x)
    assert y is not x and x.is_leaf
    y.sum().backward()
    assert x.grad.item() == 5


def test_function_errors():
    class Wrong(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return grad, grad

    with pytest.raises(RuntimeError, match="one gradient per operand"):
        Wrong.apply(leaf(1.0)).sum().backward()
    Wrong.backward = staticmethod(lambda ctx, grad: grad[0])
    with pytest.raises(RuntimeError, match=r"does not fit operand 0"):
        Wrong.apply(leaf(1.0)).sum().backward()
    Wrong.forward = staticmethod(lambda ctx, x: 1.0)
    with pytest.raises(TypeError, match="forward returns"):
        Wrong.apply(leaf(1.0))


def test_errors_in_backward_name_the_forward_line():
    class Raises(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            raise ZeroDivisionError("mine")

    y = Raises.apply(leaf(1.0))
    with pytest.raises(ZeroDivisionError) as info:
        y.sum().backward()
    notes = getattr(info.value, "__notes__", ["test_autograd.py"])  # notes exist from Python 3.11 on
    assert "test_autograd.py" in notes[0]


def test_checkpoint_gives_the_same_gradients_and_saves_nothing():
    runs = []

    def block(x, w):
        runs.append(1)
        h = (x @ w).tanh()
        return h * bt.rand(3, 3, dtype=bt.float64) + h.exp()

    def gradients(call):
        bt.manual_seed(0)
        x = bt.randn(3, 3, dtype=bt.float64, requires_grad=True)
        w = bt.randn(3, 3, dtype=bt.float64, requires_grad=True)
        y = call(block, x, w)
        (call(block, y, w) * y).sum().backward()
        return x.grad.tolist(), w.grad.tolist(), bt.default_generator.counter

    plain = gradients(lambda f, *args: f(*args))
    assert len(runs) == 2
    assert gradients(checkpoint) == plain and len(runs) == 6
    x = bt.rand(3, 3, dtype=bt.float64, requires_grad=True)
    gradcheck(lambda x: checkpoint(lambda y: (y @ y).tanh().exp(), x), (x,), order=2)
    big = []

    def keeps(x):
        h = x.exp()
        big.append(weakref.ref(h._array))
        return h * h

    y = checkpoint(keeps, x)
    assert big[0]() is None
    y.sum().backward()


def test_checkpoint_notices_a_function_that_changes():
    runs = []

    def fickle(x):
        runs.append(1)
        return x.exp() if len(runs) == 1 else x.exp().exp()

    with pytest.raises(RuntimeError, match="saved other tensors"):
        checkpoint(fickle, leaf(1.0)).sum().backward()


def test_saved_tensors_hooks():
    packed = []
    x = leaf(1.0, 2.0)
    with saved_tensors_hooks(lambda t: packed.append(t) or t.numpy(force=True).copy(), lambda a: bt.from_numpy(a)):
        y = x.exp() * x
    (g,) = autograd.grad(y.sum(), [x])
    np.testing.assert_allclose(g.numpy(), np.exp([1, 2]) * [2, 3], rtol=1e-6)
    assert len(packed) == 3


def test_detect_anomaly_names_the_line():
    x = leaf(0.0)
    with bt.config.scope(detect_anomaly=True), pytest.raises(RuntimeError, match=r"(?s)sqrt.*NaN.*test_autograd.py"):
        (x * 0).sqrt().mul(0).sum().backward()


def test_the_tape_is_where_dispatch_looks():
    x = leaf(1.0)
    gate = dispatch.tape.gate(x * 2)
    assert gate.is_leaf and gate.requires_grad
    y = (gate * 3).sum()
    dispatch.tape.release(y)
    with pytest.raises(RuntimeError, match="freed"):
        y.backward()


def test_results_of_powers_may_be_changed_in_place():
    x = bt.tensor([1.0, 3.0], requires_grad=True)
    for power in (lambda: x**2, lambda: x**3.0, lambda: 2**x, lambda: x**x):
        expected = bt.autograd.grad(power().sum(), x)[0]
        y = power()
        y += 1.0
        assert bt.autograd.grad(y.sum(), x)[0].tolist() == expected.tolist()


def test_living_things_are_known_as_long_as_somebody_holds_them():
    class Thing:
        pass

    things, first, second = Living(), Thing(), Thing()
    assert not things
    for thing in (first, second, second):
        things.add(thing)
    assert things.all() == [first, second] and len(things) == 2
    del first, thing
    assert things.all() == [second]
    del second
    assert not things and things.all() == []
