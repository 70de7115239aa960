"""Runs a step that went through plan_memory in one arena, as the host program would: launches in order, places from the
plan, predicates respected. Kernels are evaluated by blutrain.nova.reference.
"""

from __future__ import annotations

import numpy as np
from mlir import ir

from blutrain.nova.kernel_reader import tensor_type
from blutrain.nova.passes.plan_memory import place_of
from blutrain.nova.passes.step_launches import StepLaunches
from blutrain.nova.reference import DTYPES, run_kernel


def _check_aliases(op: ir.Operation, arrays: list[np.ndarray], results: list[np.ndarray]) -> None:
    """An operand whose memory a map's result takes over matters at its own element only: change one and look."""
    if op.attributes["anchor"].value != "map":
        return
    for alias in ir.DenseI64ArrayAttr(op.attributes["aliases"]):
        if alias < 0 or arrays[alias].size < 2 or arrays[alias].dtype == np.bool_:
            continue
        changed = np.array(arrays[alias])
        place = np.unravel_index(changed.size // 3, changed.shape)
        changed[place] += 1
        others = run_kernel(op, [changed if i == alias else a for i, a in enumerate(arrays)])
        for before, after in zip(results, others, strict=True):
            if before.shape == changed.shape:
                differing = np.argwhere(~((before == after) | (before != before)))
                assert all(tuple(d) == place for d in differing), "a result in place reads its operand elsewhere"


def run_plan(module: ir.Module, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[int]]:
    """Run a planned step; inputs of role state are updated in place. Returns the outputs and the checks' flags."""
    step = StepLaunches(module)
    held = step.graph.func.attributes
    arena = np.full(ir.IntegerAttr(held["nova.arena_bytes"]).value, 0xEE, np.uint8)
    types = ir.FunctionType(ir.TypeAttr(held["function_type"]).value).results
    outputs = [np.full(tensor_type(t).shape, 99, DTYPES[tensor_type(t).dtype]) for t in types]

    def memory(place: str, type_) -> np.ndarray:
        ref = place_of(place)
        whole = arena if ref.space == "arena" else (inputs if ref.space == "input" else outputs)[ref.index]
        part = whole.reshape(-1).view(np.uint8)[ref.offset : ref.offset + type_.bytes]
        return part.view(DTYPES[type_.dtype]).reshape(type_.shape)

    predicated = tuple(ir.DenseI64ArrayAttr(held["nova.predicated"]))
    flag_type = tensor_type(ir.Type.parse("tensor<i32>"))
    skips = [s.value for s in held["nova.skips"]] if "nova.skips" in held else [""] * len(predicated)
    rows = zip(step.launches, held["nova.memory"], predicated, skips, strict=True)
    for launch, places, is_predicated, skip in rows:
        if skip and memory(skip, flag_type)[()]:
            continue
        if is_predicated and memory(held["nova.guard"].value, tensor_type(ir.Type.parse("tensor<i32>")))[()]:
            continue
        places = [p.value for p in places]
        (block,) = launch.op.regions[0].blocks
        arrays = [memory(p, tensor_type(a.type)) for p, a in zip(places, block.arguments, strict=False)]
        arrays = [np.array(a) for a in arrays]
        results = run_kernel(launch.op, arrays)
        _check_aliases(launch.op, arrays, results)
        for place, value, result in zip(places[len(arrays) :], results, launch.op.results, strict=True):
            memory(place, tensor_type(result.type))[...] = value
    flags = (
        [int(memory(f.value, tensor_type(ir.Type.parse("tensor<i32>")))[()]) for f in held["nova.flags"]]
        if "nova.flags" in held
        else []
    )
    return outputs, flags
