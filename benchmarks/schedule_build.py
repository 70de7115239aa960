"""Machine code of a sweep of schedules, made here or anywhere: for configurator.py."""

from __future__ import annotations

import dataclasses
import lzma
import pickle
import time
from pathlib import Path
from typing import Any

from product import Product
from schedule_space import pick, space

from blutrain.nova.cpu.compile_workers import Failure, shared_workers
from blutrain.nova.gpu import lower
from blutrain.nova.gpu.assemble import ptxas_path
from blutrain.nova.gpu.kernel import GpuKernel
from blutrain.nova.kernel import Kernel, Unsupported
from blutrain.nova.target import num_threads
from blutrain.nova.target_gpu import GpuFacts

BATCH = 64  # kernels that are generated before they are assembled


@dataclasses.dataclass
class Built:
    """A product's kernels, the pick first; what makes a text is dropped once it is machine code."""

    product: Product
    family: str
    arch: str
    legal: int
    failed: int
    configs: list[dict[str, Any]]
    kernels: list[GpuKernel]
    cubins: list[bytes]


def build(each: Product, family: str | None, limit: int | None, facts: GpuFacts) -> Built:
    """The kernels of a product that are to be swept, assembled on all cores. family None: the target's own."""
    family = family or ("hopper" if facts.is_hopper else "ampere")
    began = time.perf_counter()

    def make(kernel: Kernel) -> Built:
        legal = space(family, kernel, facts)
        built = Built(each, family, facts.arch, len(legal), 0, [], [], [])
        chosen = choose(legal, limit)
        for start in range(0, len(chosen), BATCH):
            add(built, kernel, facts, [config for config, _ in chosen[start : start + BATCH]])
        return built

    built = each.read(make)
    seconds = time.perf_counter() - began
    size = sum(map(len, built.cubins)) / 2**20
    print(
        f"{each} {family}: {len(built.cubins)} of {built.legal}, {built.failed} failed, {size:.1f} MiB, {seconds:.1f} s",
        flush=True,
    )
    return built


def refresh_pick(built: Built, facts: GpuFacts) -> None:
    """Puts what this checkout's configurator picks first, should it be another than that of the checkout that built."""

    def update(kernel: Kernel) -> None:
        chosen, predicted_us = pick(built.family, kernel, facts)
        if chosen not in built.configs:
            add(built, kernel, facts, [chosen])
        number = built.configs.index(chosen)
        for entries in (built.configs, built.kernels, built.cubins):
            entries.insert(0, entries.pop(number))
        built.kernels[0] = dataclasses.replace(built.kernels[0], predicted_us=predicted_us)

    built.product.read(update)


def choose(legal: list, limit: int | None) -> list:
    """The pick, and the same tiles in other orders; half of `limit` by predicted time, each in one order; the rest of it
    spread over the others.
    """
    if limit is None or len(legal) <= limit:
        return legal
    chosen, near, rest, seen = [legal[0]], [], [], {_unordered(legal[0][0])}
    for config, us in legal[1:]:
        cut = _unordered(config)
        if cut == _unordered(legal[0][0]) and len(chosen) <= limit // 8:
            chosen.append((config, us))
        elif cut not in seen and len(near) < limit // 2 - 1:
            near.append((config, us))
        else:
            rest.append((config, us))
        seen.add(cut)
    wanted = limit - len(chosen) - len(near)
    return [*chosen, *near, *(rest[i * len(rest) // wanted] for i in range(wanted))]


def _unordered(config: dict[str, Any]) -> str:
    """A schedule but for the order of its tiles."""
    return str({key: value for key, value in config.items() if key not in ("group", "group_m")})


def add(built: Built, kernel: Kernel, facts: GpuFacts, configs: list[dict[str, Any]]) -> None:
    """Generates and assembles some schedules, spills or not; counts those that cannot be."""
    from blutrain.nova.gpu.ampere import contract as ampere
    from blutrain.nova.gpu.hopper import contract as hopper

    generate = {"hopper": hopper, "ampere": ampere}[built.family].generate
    made: list[tuple[dict[str, Any], GpuKernel]] = []
    for entry in configs:
        try:
            made.append((entry, generate(kernel, facts, entry)))
        except Unsupported:
            built.failed += 1
    requests = [(lower.__file__, (kernel.text, kernel.target, ptxas_path())) for _, kernel in made]
    for (entry, generated), code in zip(made, shared_workers(num_threads()).compile(requests), strict=True):
        if isinstance(code, Failure):
            built.failed += 1
            continue
        name = f"{built.product} {entry}"  # tells kernels apart in the place of their text
        built.configs.append(entry)
        built.kernels.append(dataclasses.replace(generated, text=name, unit=built.product.precision))
        built.cubins.append(pickle.loads(code)[1])


def write(path: Path, built: Built) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(pickle.dumps(vars(built)), preset=6))


def read(path: Path) -> Built:
    return Built(**pickle.loads(lzma.decompress(path.read_bytes())))
