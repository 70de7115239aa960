"""GPU kernels under fire: late warps, poisoned memory, a hundred runs, equal bits (`gpu_fire` says how).

First that the rewritten code assembles, which needs no device; then every family alone, then whole training steps.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import fire_cases
import numpy as np
import pytest
from gpu import needs_gpu
from gpu_device import OnDevice, on_device, rewritten
from gpu_fire import fire
from gpu_replay import differences, repeat, states

import blutrain as bt
from blutrain import nn, nova
from blutrain.nova.explain import programs_of
from blutrain.nova.gpu import lower
from blutrain.nova.gpu.assemble import AssembledKernel, AssembleJob, assemble, ptxas_path
from blutrain.nova.gpu.assemble_report import advice
from examples.gpt_mlp.model import MLPGPT, Config

RUNS = 100


def fired(assembled: list[AssembledKernel], salt: int, is_calm: bool = False) -> list[AssembledKernel]:
    """The same kernels, delayed and poisoned; as PTX for the driver where there is no ptxas."""

    def one(code: AssembledKernel) -> AssembledKernel:
        ptx = fire(code.ptx, salt, is_calm)
        target = ptx.partition(".target ")[2].split()[0].rstrip(",")
        cubin, said = lower.to_cubin(ptx, target, ptxas_path()) if ptxas_path() else (b"", "")
        return replace(code, ptx=ptx, cubin=cubin, said=said)

    with ThreadPoolExecutor() as pool:
        return list(pool.map(one, assembled))


# -------------------------------------------------------------------- without a device


@pytest.mark.skipif(not ptxas_path(), reason="needs ptxas")
def test_delays_and_poison_change_neither_registers_nor_order():
    """They assemble in every family, and no wgmma waits that did not wait before."""
    names = ["hopper pingpong tf32", "hopper registers NN tf32", "ampere tf32 TN sm_86", "simt row softmax staged",
             "simt scatter", "hopper row and column sums bf16"]  # fmt: skip
    cases = [fire_cases.make(name) for name in names]
    for case, code in zip(cases, fired(assemble([AssembleJob(c.kernel.text, c.kernel.target) for c in cases]), 1)):
        assert code.ptx.count("nanosleep") >= 2 * len(case.kernel.phases), case.name
        assert not advice(code.said), case.name
        assert ("st.shared.b32 [%fire], -1" in code.ptx) == ("shared[" in code.ptx or "stage[" in code.ptx)


# -------------------------------------------------------------------- every family


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_gpu) for name in fire_cases.CASES])
def test_a_hundred_runs_have_the_bits_of_the_undisturbed_one(name):
    import cupy

    case = fire_cases.make(name)
    arrays = [on_device(array) for array in case.arrays()]
    wanted = OnDevice(case.plan()).run(arrays)
    for salt in (1, 2):
        program = OnDevice(case.plan(), partial(fired, salt=salt))
        differ = cupy.zeros(len(wanted), cupy.int64)
        for _ in range(RUNS // 2):
            for i, (got, want) in enumerate(zip(program.run(arrays), wanted, strict=True)):
                differ[i] += (got != want).any()
        assert not cupy.asnumpy(differ).any(), f"runs that differ, by result: {cupy.asnumpy(differ)} of {RUNS // 2}"
    for (shape, dtype), want in zip(case.results, wanted, strict=True):
        if dtype in ("f32", "f64") and shape:
            values = cupy.asnumpy(want).view(np.float32 if dtype == "f32" else np.float64)
            assert np.isfinite(values).all(), "poison is left"


SPECIAL = {
    **{f"ampere {kind} {layout}": fire_cases.ampere(fire_cases.PLAIN, layout, 129, 80, 160, kind)
       for kind in ("bf16", "tf32", "fp32") for layout in ("NN", "NT", "TN")},
    **{f"hopper {kind} {layout}": fire_cases.hopper(fire_cases.PLAIN, layout, 128, 80, 160, kind)
       for kind in ("bf16", "tf32") for layout in ("NN", "NT", "TN")},
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_gpu) for name in SPECIAL])
def test_infinities_and_nans_stay_in_their_rows(name):
    """Beside positive numbers: an infinity makes its row infinite, a NaN its row NaN, and no other one."""
    case, layout = SPECIAL[name](), name.split()[2]
    a, b = (np.abs(array) + array.dtype.type(0.5) for array in case.arrays())
    left = a if layout[0] == "N" else a.T
    left[1, 3], left[2, 4], left[5, 0] = np.inf, np.nan, -np.inf
    left[127, 159] = np.nan
    (c,) = OnDevice(case.plan()).run_on([a, b])
    c = c.astype(np.float64)
    assert (c[1] == np.inf).all() and (c[5] == -np.inf).all() and np.isnan(c[[2, 127]]).all()
    assert np.isfinite(np.delete(c, [1, 2, 5, 127], axis=0)).all()


# -------------------------------------------------------------------- whole steps


def step_of(precision: str, width: int, layers: int, what: str):
    """(The program of a training step, what is to be kept alive) after one step.

    what: "plain"; "clipped"; or "hot", with logits so far apart that the cross-entropy takes its exact way.
    """
    bt.manual_seed(0)
    model = MLPGPT(Config(50304, 1024, width, layers)).to("cuda")
    if what == "hot":
        with bt.no_grad():
            model.head.weight.mul_(1000.0)
    model.compile(first_step="compiled", strict=True, precision=precision)
    optimizer = bt.optim.AdamW(model.parameters(), lr=1e-3)
    rng = np.random.default_rng(0)
    tokens = [bt.from_numpy(rng.integers(0, 50304, (8, 1024))).to("cuda") for _ in range(2)]
    loss = model(*tokens)
    loss.backward()
    if what == "clipped":
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    nova.flush()
    (program,) = programs_of(model)
    return program, (model, optimizer, tokens, loss)


STEPS = [("tf32", "clipped"), ("tf32", "plain"), ("tf32", "hot"), ("bf16", "clipped"), ("bf16", "plain"), ("bf16", "hot"),
         ("fp32", "clipped")]  # fmt: skip


@pytest.mark.filterwarnings("ignore:(?s).*the kernel is right, and slower:RuntimeWarning")  # by one release of ptxas
@pytest.mark.parametrize("precision, what", [pytest.param(*c, marks=needs_gpu) for c in STEPS])
def test_a_hundred_steps_from_one_state_have_equal_bits(precision, what, monkeypatch):
    """A step of the size of 46M from a poisoned arena, undisturbed and under fire: parameters, moments and loss."""
    program, kept = step_of(precision, 384, 1, what)
    loss, first = kept[3].item(), {name: array.copy() for name, array in states(program).items()}
    assert np.isfinite(loss)
    wanted = repeat(program, RUNS)
    del program, kept
    rewritten(monkeypatch, partial(fired, salt=3))
    program, kept = step_of(precision, 384, 1, what)
    assert not differences(states(program), first), "the first step"
    assert kept[3].item() == loss
    assert not differences(repeat(program, RUNS), wanted), "the second step"
