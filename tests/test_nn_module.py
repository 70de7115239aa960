"""Module: the tree, attributes, state_dict, hooks, modes, copies."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import blutrain as bt
from blutrain import nn
from blutrain.tensor.tensor import storage_epoch, structure_epoch


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.fc = nn.Linear(3, width)
        self.act = nn.GELU()
        self.head = nn.Linear(width, 2, bias=False)
        self.register_buffer("count", bt.zeros(1))
        self.register_buffer("scratch", bt.zeros(1), persistent=False)

    def forward(self, x):
        return self.head(self.act(self.fc(x)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids):
        return self.head(self.wte(ids))


def values(module):
    return {name: p.numpy().copy() for name, p in module.state_dict().items()}


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_the_tree_is_found_in_order():
    net = Net()
    assert [n for n, _ in net.named_parameters()] == ["fc.weight", "fc.bias", "head.weight"]
    assert [n for n, _ in net.named_modules()] == ["", "fc", "act", "head"]
    assert [n for n, _ in net.named_buffers()] == ["count", "scratch"]
    assert set(net.state_dict()) == {"fc.weight", "fc.bias", "head.weight", "count"}
    assert all(p.requires_grad and p.is_leaf for p in net.parameters())
    assert net.get_submodule("fc") is net.fc and net.get_parameter("fc.bias") is net.fc.bias
    with pytest.raises(AttributeError, match=r"no sub-module 'fc\.x'"):
        net.get_submodule("fc.x")


def test_a_tied_parameter_is_one():
    net = Tied()
    assert [n for n, _ in net.named_parameters()] == ["wte.weight"]
    assert len(list(net.named_parameters(remove_duplicate=False))) == 2
    assert set(net.state_dict()) == {"wte.weight", "head.weight"}
    state = net.state_dict()
    assert state["wte.weight"] is state["head.weight"]


def test_repr_names_layers_and_sizes():
    text = repr(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1)))
    assert "(0): Linear(in_features=3, out_features=4, bias=True)" in text and "(1): Dropout(p=0.1)" in text


def test_attributes_before_init_work_and_a_parameter_stays_one():
    class Early(nn.Module):
        def __init__(self):
            self.weight = nn.Parameter(bt.zeros(2))
            super().__init__()

    early = Early()
    assert len(list(early.parameters())) == 1
    with pytest.raises(TypeError, match="a parameter cannot be replaced by a plain tensor"):
        early.weight = bt.zeros(2)
    early.weight = None
    assert not list(early.parameters())
    with pytest.raises(TypeError, match="not a buffer"):
        early.register_buffer("b", nn.Parameter(bt.zeros(1)))
    early.register_buffer("b", bt.zeros(1))
    with pytest.raises(TypeError, match="it is a buffer"):
        early.b = 3
    with pytest.raises(TypeError, match="Parameter: not a tensor"):
        nn.Parameter(np.zeros(3))


@pytest.mark.parametrize("name", ["a.b", "", 3, "forward", "training", "act"])
def test_names_that_are_taken_or_no_names_are_refused(name):
    net = Net()
    for register, value in (
        (net.register_buffer, bt.zeros(1)),
        (net.register_parameter, nn.Parameter(bt.zeros(1))),
        (net.register_module, nn.ReLU()),
    ):
        if name == "act" and register == net.register_module:
            continue  # a module may be replaced by one
        with pytest.raises(ValueError, match=r"a name is a text without dots|has an attribute"):
            register(name, value)
    for register in (net.register_buffer, net.register_parameter, net.register_module):
        with pytest.raises(TypeError, match="is not a"):
            register("new", 3)
    assert set(net.state_dict()) == set(Net().state_dict())


def test_train_and_eval_reach_every_module():
    net = Net().eval()
    assert not any(m.training for m in net.modules())
    assert all(m.training for m in net.train().modules())


def test_structure_changes_are_counted_and_side_outputs_are_not():
    net = Net()
    net.side = bt.zeros(1)

    def bumps(change):
        before = structure_epoch.value
        change()
        return structure_epoch.value - before

    assert bumps(lambda: setattr(net, "side", bt.ones(1))) == 0
    assert bumps(net.train) == 0
    assert bumps(net.eval) > 0
    assert bumps(lambda: setattr(net, "calls", 1)) == 1
    assert bumps(lambda: setattr(net, "fc", nn.Linear(3, 4))) > 0
    assert bumps(lambda: net.register_forward_hook(lambda *a: None)) == 1
    assert bumps(lambda: net.fc.weight.requires_grad_(False)) == 1


def test_state_dict_round_trip_and_partial_loads():
    a, b = Net(), Net()
    assert a.load_state_dict(b.state_dict()) == ([], [])
    assert_same(values(a), values(b))
    missing, unexpected = a.load_state_dict({"fc.bias": np.ones(4, np.float64), "zzz": bt.zeros(1)}, strict=False)
    assert set(missing) == {"fc.weight", "head.weight", "count"} and unexpected == ["zzz"]
    np.testing.assert_array_equal(a.fc.bias.detach().numpy(), np.ones(4, np.float32))
    assert list(a.state_dict("model.")) == [f"model.{name}" for name in a.state_dict()]
    for bad in (None, [("fc.bias", bt.zeros(4))]):
        with pytest.raises(TypeError, match="not a state"):
            a.load_state_dict(bad)


def test_weights_of_pytorch_load():
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Embedding(5, 2))
    ours = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Embedding(5, 2))
    ours.load_state_dict(theirs.state_dict())
    assert_same(values(ours), {name: p.numpy() for name, p in theirs.state_dict().items()})
    ours.load_state_dict(theirs.bfloat16().state_dict())
    assert_same(values(ours), {name: p.float().numpy() for name, p in theirs.state_dict().items()})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: s.pop("head.weight"), r"missing: head\.weight f32\[2,4\]"),
        (lambda s: s.update(extra=bt.zeros(3)), r"unexpected: extra f32\[3\]"),
        (lambda s: s.update({"fc.bias": bt.zeros(5)}), r"shape: fc\.bias: expected f32\[4\], got f32\[5\]"),
        (
            lambda s: s.update({"fc.bias": bt.zeros(4, dtype=bt.int64)}),
            r"dtype: fc\.bias: expected f32\[4\], got i64\[4\]",
        ),
        (lambda s: s.update({"fc.bias": [0.0] * 4}), r"fc\.bias: expected a tensor or an array, got list"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change, text):
    net, state = Net(), dict(Net().state_dict())
    change(state)
    before = values(net)
    with pytest.raises(ValueError, match=text):
        net.load_state_dict(state)
    assert_same(values(net), before)


def test_a_tied_parameter_loads_from_one_of_its_names_and_refuses_two_values():
    a, b = Tied(), Tied()
    state = dict(b.state_dict())
    del state["head.weight"]
    a.load_state_dict(state)
    assert a.head.weight is a.wte.weight
    assert_same(values(a), values(b))
    state["head.weight"] = bt.zeros(5, 4)
    with pytest.raises(ValueError, match=r"tied: wte\.weight and head\.weight"):
        a.load_state_dict(state)


def test_copies_are_apart_and_keep_ties():
    net = Tied()
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert twin.head.weight is twin.wte.weight and twin.wte.weight is not net.wte.weight
        assert isinstance(twin.wte.weight, nn.Parameter) and twin.wte.weight.requires_grad
        assert_same(values(twin), values(net))
        with bt.no_grad():
            twin.wte.weight.zero_()
        assert net.wte.weight.detach().numpy().any()


def test_to_keeps_the_parameters_identity_and_gradients():
    net = Net()
    net(bt.ones(2, 3)).sum().backward()
    weight, before = net.fc.weight, storage_epoch.value
    assert net.double() is net and net.fc.weight is weight
    assert weight.dtype is bt.float64 and weight.grad.dtype is bt.float64 and storage_epoch.value > before
    net.register_buffer("ids", bt.zeros(2, dtype=bt.int64))
    assert net.to(bt.float32).ids.dtype is bt.int64
    with pytest.raises(TypeError, match="floating dtypes only"):
        net.to(bt.int32)


def test_zero_grad_drops_or_zeroes():
    net = Net()
    net(bt.ones(2, 3)).sum().backward()
    net.zero_grad(set_to_none=False)
    assert all(not p.grad.numpy().any() for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())


def test_forward_hooks_see_and_replace():
    net, seen = nn.Linear(3, 2), []
    with net.register_forward_pre_hook(lambda m, args: (args[0] * 0,)):
        with net.register_forward_hook(lambda m, args, out: seen.append((args, out))):
            out = net(bt.ones(1, 3))
    np.testing.assert_allclose(out.detach().numpy()[0], net.bias.detach().numpy(), rtol=1e-6)
    assert len(seen) == 1 and not seen[0][0][0].numpy().any()
    net(bt.ones(1, 3))
    assert len(seen) == 1
    with net.register_forward_hook(lambda m, args, out: out * 2):
        doubled = net(bt.ones(1, 3))
    np.testing.assert_allclose(doubled.detach().numpy(), 2 * net(bt.ones(1, 3)).detach().numpy(), rtol=1e-6)
    with pytest.raises(TypeError, match="must be callable"):
        net.register_forward_hook(3)


def test_backward_hooks_see_and_replace_gradients():
    net, seen = nn.Linear(3, 2, bias=False), {}
    x = bt.ones(1, 3, requires_grad=True)
    net.register_full_backward_pre_hook(lambda m, grad_output: (grad_output[0] * 2,))
    net.register_full_backward_hook(lambda m, grad_input, grad_output: seen.update(i=grad_input, o=grad_output))
    net(x).sum().backward()
    np.testing.assert_allclose(seen["o"][0].numpy(), np.full((1, 2), 2.0))
    np.testing.assert_allclose(seen["i"][0].numpy(), 2 * net.weight.detach().numpy().sum(0, keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(x.grad.numpy(), seen["i"][0].numpy())
    seen.clear()
    net(bt.ones(1, 3)).sum().backward()
    assert seen["i"] == (None,)


def test_backward_hook_may_replace_the_input_gradient():
    net = nn.Identity()
    net.register_full_backward_hook(lambda m, grad_input, grad_output: (grad_input[0] * -1,))
    x = bt.ones(3, requires_grad=True)
    net(x).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), -np.ones(3))
    net = nn.Identity()
    net.register_full_backward_hook(lambda m, grad_input, grad_output: (1, 2))
    with pytest.raises(ValueError, match=r"wrong number of gradients(.|\n)*expected: 1(.|\n)*got: 2"):
        net(x).sum().backward()


def test_forward_must_be_defined_and_apply_goes_children_first():
    with pytest.raises(NotImplementedError, match="forward is not defined"):
        nn.Module()(1)
    seen = []
    Net().apply(lambda m: seen.append(type(m).__name__))
    assert seen == ["Linear", "GELU", "Linear", "Net"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"precision": "fp16"}, "unknown precision"),
        ({"first_step": "never"}, "unknown first_step"),
        ({"max_programs": 0}, "max_programs must be a positive integer"),
        ({"memory_limit": -1}, "memory_limit must be a positive integer"),
    ],
)
def test_compile_refuses_bad_options(options, text):
    net = Net()
    with pytest.raises(ValueError, match=text):
        net.compile(**options)
    assert net._compiled is None
    with pytest.raises(TypeError):
        net.compile(unknown=1)


def test_containers():
    layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
    assert len(layers) == 3 and layers[-1] is list(layers)[2] and len(layers[1:]) == 2
    layers.insert(0, nn.ReLU())
    del layers[1]
    assert [type(m).__name__ for m in layers] == ["ReLU", "Linear", "Linear"]
    assert [n for n, _ in layers.named_parameters()] == ["1.weight", "1.bias", "2.weight", "2.bias"]
    layers[0] = nn.GELU()
    assert type(layers[0]).__name__ == "GELU"
    with pytest.raises(TypeError, match="members must be modules"):
        layers.append(3)
    by_name = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Linear(2, 2)})
    assert by_name.keys() == ["a", "b"] and "a" in by_name and len(by_name) == 2
    del by_name["a"]
    with pytest.raises(KeyError, match="no module 'a'"):
        by_name["a"]
    for key in ("forward", "training", "a.b", 3):
        with pytest.raises(ValueError, match="a key must be a string"):
            by_name[key] = nn.ReLU()
    named = nn.Sequential({"first": nn.Linear(2, 3), "second": nn.ReLU()})
    assert named(bt.ones(1, 2)).shape == (1, 3) and named.first is named[0]


def test_a_parameter_shares_memory_and_notices_writes():
    data = bt.ones(2)
    parameter = nn.Parameter(data)
    y = (parameter * parameter).sum()
    data.add_(1)
    assert parameter.tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()


def test_sizes_may_be_numpys_integers():
    layers = nn.Linear(np.int64(3), np.int32(4)), nn.Embedding(np.int64(3), 4), nn.LayerNorm(np.int64(3))
    assert [layer.weight.shape for layer in layers] == [(4, 3), (3, 4), (3,)]
    for bad in (-1, 2.0, True, None, "3"):
        with pytest.raises(ValueError, match="must be an integer"):
            nn.Linear(bad, 2)
        with pytest.raises(ValueError, match="must be an integer"):
            nn.LayerNorm(bad if bad != "3" else 0)
