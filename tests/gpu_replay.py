"""A compiled program again and again on the GPU, from one state and from poisoned memory: its bits must be equal."""

from __future__ import annotations

from typing import Any

from gpu_device import POISON, poison_workspace

from blutrain.nova.plan import BufferRef


def states(program) -> dict[str, Any]:
    """What a step updates, by number and shape, as bytes."""
    executable = program.executable
    specs = [(i, spec) for i, spec in enumerate(executable.plan.inputs) if spec.role == "state"]
    views = [executable.view(BufferRef("input", i), spec.shape, spec.dtype) for i, spec in specs]
    return {f"{i} {spec.shape}": v.reshape(-1).view("u1") for (i, spec), v in zip(specs, views, strict=True)}


def repeat(program, runs: int) -> dict[str, Any]:
    """The program, over and over from the state that is there now and a poisoned arena; what it leaves.

    Errors: AssertionError for a run that leaves other bits than the first one, with what differs.
    """
    import cupy

    executable, start = program.executable, {name: array.copy() for name, array in states(program).items()}
    # What large outputs are bound to belongs to who got them in the last step, and may be anybody's by now.
    fresh = program._replace_dead()
    size = executable.plan.arena_bytes
    arena = executable.view(BufferRef("arena", 0), (size,), "i8").view(cupy.uint8) if size else cupy.empty(0, "u1")
    wanted: dict[str, Any] = {}
    for number in range(runs):
        for name, array in states(program).items():
            array[...] = start[name]
        arena[...] = POISON
        poison_workspace(executable)
        executable.launch()
        results = [*executable.take_results(), *fresh]
        found = states(program) | {f"result {i}": x.reshape(-1).view(cupy.uint8) for i, x in enumerate(results)}
        wanted = wanted or {name: array.copy() for name, array in found.items()}
        different = differences(found, wanted)
        assert not different, f"run {number}: {different}"
    for name, array in states(program).items():
        array[...] = start[name]
    assert executable.wait() is None
    return wanted


def differences(got: dict[str, Any], want: dict[str, Any]) -> list[str]:
    """Which arrays differ, in how many elements, by how much of the largest (as f32, where they can be), and where first."""
    import cupy

    flags = cupy.stack([(array != want[name]).any() for name, array in got.items()])
    found = []
    for name in (name for name, differs in zip(got, cupy.asnumpy(flags), strict=True) if differs):
        if got[name].size % 4:
            found.append(f"{name}: {int((got[name] != want[name]).sum())} of {got[name].size} bytes")
            continue
        a, b = (x.view(cupy.float32).astype(cupy.float64) for x in (got[name], want[name]))
        where = cupy.nonzero(got[name].view(cupy.uint32) != want[name].view(cupy.uint32))[0]
        worst, scale = float(cupy.abs(a - b).max()), float(cupy.abs(b).max())
        found.append(f"{name}: {where.size} of {a.size} by {worst:.1e} of {scale:.1e} at {cupy.asnumpy(where[:4])}")
    return found
