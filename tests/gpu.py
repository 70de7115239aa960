"""What tests on a GPU share: the marker, and the device if there is one."""

from __future__ import annotations

import functools

import pytest

import blutrain as bt


@functools.cache
def is_there() -> bool:
    """Can a GPU be used."""
    try:
        return bt.device("cuda").xp is not None
    except RuntimeError:
        return False


# Not evaluated at import: that would load CuPy in every run of the other tests.
needs_gpu = [pytest.mark.gpu, pytest.mark.skipif("not __import__('gpu').is_there()", reason="no GPU can be used")]
