"""What goes to NCCL's library past CuPy's binding, with a library that writes it down."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from blutrain.distributed import nccl_split


class Library:
    """Functions that return 0, or `code`; arguments as Python values."""

    def __init__(self):
        self.calls, self.code = [], 0
        self.ncclGetErrorString = lambda code: f"fault {code}".encode()

    def ncclCommSplit(self, parent, color, key, made, config):
        made._obj.value = 77
        self.config = config._obj
        self.calls.append(("split", parent.value, color.value, key.value))
        return self.code

    def ncclCommGetAsyncError(self, comm, found):
        found._obj.value = self.code
        return 0

    def __getattr__(self, name):
        return lambda *arguments: self.calls.append((name, *[a.value for a in arguments])) or self.code


@pytest.fixture
def library(monkeypatch):
    made = Library()
    monkeypatch.setattr(nccl_split.ctypes, "CDLL", lambda name: made)
    made.ncclGetVersion = lambda version: setattr(version._obj, "value", 22907) or 0
    return made


BINDING = SimpleNamespace(get_version=lambda: 22907)


def split():
    return nccl_split.SplitCommunicator(BINDING, SimpleNamespace(comm=5), rank=1, blocks=16)


def test_the_new_communicator_has_all_ranks_and_few_blocks_without_clusters(library):
    made = split()
    assert library.calls == [("split", 5, 0, 1)]
    config, unset = library.config, -(2**31)
    assert (config.size, config.magic, config.most_blocks, config.cluster) == (48, 0xCAFEBEEF, 16, 0)
    assert {config.blocking, config.least_blocks, config.shares_resources} == {unset} and config.network is None
    made.allReduce(100, 200, 10, 7, 4, 3)
    made.reduceScatter(100, 200, 5, 7, 4, 3)
    made.allGather(100, 200, 40, 1, 3)
    made.check_async_error()
    made.destroy()
    assert library.calls[1:] == [
        ("ncclAllReduce", 100, 200, 10, 7, 4, 77, 3),
        ("ncclReduceScatter", 100, 200, 5, 7, 4, 77, 3),
        ("ncclAllGather", 100, 200, 40, 1, 77, 3),
        ("ncclCommDestroy", 77),
    ]


def test_faults_have_nccls_text(library):
    made = split()
    library.code = 3
    with pytest.raises(RuntimeError, match=r"(?s)ncclAllReduce failed.*fault 3"):
        made.allReduce(1, 2, 1, 7, 0, 3)
    with pytest.raises(RuntimeError, match=r"(?s)ncclCommGetAsyncError failed.*fault 3"):
        made.check_async_error()


def test_another_library_or_an_old_one_is_refused(library):
    for version, rule in ((22908, "not the one that CuPy has loaded"), (21700, "too old")):
        binding = SimpleNamespace(get_version=lambda version=version: version)
        with pytest.raises(RuntimeError, match=rule):
            nccl_split.SplitCommunicator(binding, SimpleNamespace(comm=5), 0, 16)
