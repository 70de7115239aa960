"""Blocks of shared memory on their way out: none is written again before TMA has read it. Followed in the kernel's text."""

from __future__ import annotations

import re

import pytest
from hopper_kernels import gated, generate, plain

EVENT = re.compile(r"wait_group (\d+) \{read\}|(commit)\.group|stmatrix\S* \[\$0\+(\d+)\]")
TURNS = {"pingpong": True, "consumers": 2, "split": 1, "multicast": "", "tile_m": 128, "stages": 3, "chunk": 64}
SET_BYTES = 64 * 64  # rows of 32 bf16


@pytest.mark.parametrize(
    ("make", "sets"),
    [(plain, 2), (plain, 3), (gated, 1), (gated, 2), (gated, 3)],
    ids=lambda x: getattr(x, "__name__", x),
)
@pytest.mark.parametrize("tile_n", [128, 192])
def test_no_set_is_written_while_it_is_read(make, sets, tile_n):
    """Warps that meet (plain), and that send their own rows (gated)."""
    fetch = 2 if make is gated else 0
    text = generate(make("NT", 4096, 1536, 256, "bf16"), **TURNS, tile_n=tile_n, staging=sets, fetch=fetch).text
    events = [match.groups() for match in EVENT.finditer(text)]
    running: list[frozenset[int]] = []
    written: set[int] = set()
    used: set[int] = set()
    for _ in range(3):  # tiles
        for pending, commit, offset in events:
            if pending is not None:
                running = running[max(0, len(running) - int(pending)) :]
            elif commit:
                running.append(frozenset(written))
                written.clear()
            else:
                written.add(int(offset) // SET_BYTES)
                used.add(int(offset) // SET_BYTES)
                assert not any(written & group for group in running)
    assert used == set(range(sets))
