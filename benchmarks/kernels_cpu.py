"""Kernels that are no matrix products on this CPU, one thread: generated code against torch's own fused kernels.

    python benchmarks/kernels_cpu.py [--rounds 9] [--only layer_norm] [--json FILE]

Interleaved, outputs preallocated on both sides. For each case median microseconds of each, `speedup` = torch's
time / ours, the predicted time, and the seconds that generating and compiling took.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import map_bodies
import row_bodies
import torch
from cpu_kernels import Body, Compiled, aligned, random, region
from record import save

from blutrain.nova.target import host_cpu

ONE_THREAD = replace(host_cpu(), threads=1)
RNG = np.random.default_rng(0)
ADD = region("%s = arith.addf %i0, %o0 : f32", "%s : f32")
Case = tuple[str, Body, list[np.ndarray], Callable[[], object]]
aten = torch.ops.aten
tensor = torch.from_numpy


def array(*shape: int) -> np.ndarray:
    return placed(random(RNG, shape, "f32"))


def placed(values: np.ndarray) -> np.ndarray:
    result = aligned(values.shape, values.dtype)
    result[...] = values
    return result


def map_cases(size: int = 1 << 20) -> Iterator[Case]:
    x, g, out = array(size), array(size), torch.empty(size)
    forward = lambda: torch._C._nn.gelu(tensor(x), approximate="tanh", out=out)
    yield "gelu 1M", map_bodies.gelu(size), [x], forward
    backward = lambda: aten.gelu_backward.grad_input(tensor(g), tensor(x), approximate="tanh", grad_input=out)
    yield "gelu backward 1M", map_bodies.gelu_backward(size), [x, g], backward
    p, m, v = array(4 * size), array(4 * size), np.abs(array(4 * size))
    gradient, count = array(4 * size), torch.tensor(3.0)
    other = [[tensor(a.copy())] for a in (p, gradient, m, v)]
    options = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8}
    fused = lambda: torch._fused_adamw_(*other, [], [count], amsgrad=False, maximize=False, **options)
    scalars = [np.array(1e-3), np.array(0.1), np.array(0.2)]
    yield "adamw 4M", map_bodies.adamw(4 * size), [p, gradient, m, v, *scalars], fused
    square, turned = array(2048, 2048), torch.empty(2048, 2048)
    body = Body("map")
    operand = body.operand(2048, 2048)
    negate = region("%a = arith.negf %i0 : f32", "%a : f32")
    body.result(body.map([(operand, "d1, d0")], (2048, 2048), negate))
    yield "transpose 2048x2048", body, [square], lambda: torch.neg(tensor(square).T, out=turned)


def row_cases(rows: int = 4096, columns: int = 768) -> Iterator[Case]:
    x, dy, w, b = array(rows, columns), array(rows, columns), array(columns), array(columns)
    y, mean, rstd = torch.empty(rows, columns), torch.empty(rows, 1), torch.empty(rows, 1)
    dx, dw, db = torch.empty(rows, columns), torch.empty(columns), torch.empty(columns)
    tensors, shape = [tensor(a) for a in (x, w, b)], [columns]
    forward = lambda: aten.native_layer_norm.out(tensors[0], shape, *tensors[1:], 1e-5, out0=y, out1=mean, out2=rstd)
    forward()
    yield f"layer_norm {rows}x{columns}", row_bodies.layer_norm(rows, columns), [x, w, b], forward
    statistics_ = [placed(t.numpy().reshape(-1)) for t in (mean, rstd)]
    inputs = [tensor(dy), tensors[0], shape, mean, rstd, *tensors[1:], [True] * 3]
    backward = lambda: aten.native_layer_norm_backward.out(*inputs, out0=dx, out1=dw, out2=db)
    body = row_bodies.layer_norm_backward(rows, columns)
    yield f"layer_norm backward {rows}x{columns}", body, [dy, x, w, *statistics_], backward
    logits, p = array(4096, 1024), torch.empty(4096, 1024)
    yield "softmax 4096x1024", row_bodies.softmax(4096, 1024), [logits], lambda: torch.softmax(tensor(logits), 1, out=p)
    for shape in ((256, 50304), (4096, 1024), (2048, 256)):
        yield cross_entropy(*shape)


def cross_entropy(rows: int, columns: int) -> Case:
    """Loss and gradient; torch's four operations with preallocated outputs."""
    x, t = array(rows, columns), placed(RNG.integers(0, columns, rows))
    p, dx, one = torch.empty(rows, columns), torch.empty(rows, columns), torch.ones(())

    def other() -> None:
        aten._log_softmax.out(tensor(x), 1, False, out=p)
        _, weight = aten.nll_loss_forward(p, tensor(t), None, 1, -100)
        g = aten.nll_loss_backward(one, p, tensor(t), None, 1, -100, weight)
        aten._log_softmax_backward_data.out(g, p, 1, torch.float32, out=dx)

    return f"cross_entropy {rows}x{columns}", row_bodies.cross_entropy(rows, columns), [x, t], other


def sum_cases() -> Iterator[Case]:
    for rows, columns in ((8192, 384), (2048, 1536)):
        body, x, out = Body("column"), array(rows, columns), torch.empty(columns)
        operand = body.operand(rows, columns)
        body.result(body.reduce([(operand, "d0, d1")], (columns,), "d1", "rp", ADD))
        yield f"column sum {rows}x{columns}", body, [x], lambda x=x, out=out: torch.sum(tensor(x), 0, out=out)
    body, x = Body("full"), array(1 << 22)
    square = region("%q = arith.mulf %i0, %i0 : f32", "%s = arith.addf %q, %o0 : f32", "%s : f32")
    body.result(body.reduce([(body.operand(1 << 22), "d0")], (), "", "r", square))
    yield "square sum 4M", body, [x], lambda: torch.dot(tensor(x), tensor(x))


def table_cases() -> Iterator[Case]:
    for rows, width, count in ((256, 384, 8192), (50304, 384, 8192)):
        table, ids, updates = array(rows, width), placed(RNG.integers(0, rows, count)), array(count, width)
        out, total = torch.empty(count, width), torch.empty(rows, width)
        body = Body("gather")
        operands = [body.operand(rows, width), body.operand(count, dtype="i64")]
        body.result(body.op("nova.gather", operands, (count, width), "f32"))
        select = lambda table=table, ids=ids, out=out: torch.index_select(tensor(table), 0, tensor(ids), out=out)
        yield f"gather {count} of {rows}x{width}", body, [table, ids], select
        body = Body("scatter")
        operands = [body.operand(count, dtype="i64"), body.operand(count, width)]
        body.result(body.op("nova.scatter_add", operands, (rows, width), "f32"))
        add = lambda total=total, ids=ids, updates=updates: total.zero_().index_add_(0, tensor(ids), tensor(updates))
        yield f"scatter {count} into {rows}x{width}", body, [ids, updates], add


def measure(case: Case, rounds: int) -> dict[str, object]:
    name, body, arrays, other = case
    start = time.perf_counter()
    compiled = Compiled(body, ONE_THREAD)
    seconds = time.perf_counter() - start
    results, pointers = compiled.bind(arrays)  # the pointers do not keep the results alive
    subjects = {"nova": lambda: compiled.launch(pointers), "torch": other}
    repeats, times = {}, {key: [] for key in subjects}
    for key, subject in subjects.items():
        subject()
        start = time.perf_counter()
        subject()
        repeats[key] = max(1, int(0.02 / (time.perf_counter() - start)))
    for _ in range(rounds):
        for key, subject in subjects.items():
            start = time.perf_counter()
            for _ in range(repeats[key]):
                subject()
            times[key].append((time.perf_counter() - start) / repeats[key] * 1e6)
    nova, torch_us = (round(statistics.median(times[k]), 1) for k in ("nova", "torch"))
    return {
        "case": name,
        "results": len(results),
        "nova_us": nova,
        "torch_us": torch_us,
        "speedup": round(torch_us / nova, 2),
        "predicted_us": round(compiled.generated.predicted_us, 1),
        "compile_s": round(seconds, 3),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    results = []
    for cases in (map_cases, row_cases, sum_cases, table_cases):
        for case in cases():
            if options.only in case[0]:
                results.append(measure(case, options.rounds))
                print(json.dumps(results[-1]), flush=True)
    if options.json:
        save(options.json, __file__, results, argv)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
