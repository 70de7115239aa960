"""The object cache: what is kept, what is refused, and that no entry is ever trusted blindly."""

from __future__ import annotations

import os
import threading
import warnings

import pytest
from runtime_support import run_script

from blutrain import config
from blutrain.nova import cache
from blutrain.nova.cache import ObjectCache, object_key
from blutrain.nova.cpu import objects
from blutrain.nova.target import host_cpu


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "nova"


def test_an_object_survives_the_process(folder):
    ObjectCache(folder).put("key", b"object")
    assert ObjectCache(folder).get("key") == b"object"
    assert ObjectCache(folder).get("other") is None
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in folder.iterdir()] == ["key.o"]


@pytest.mark.parametrize("damage", [b"", b"NOVAOBJ1", b"x", None])
def test_damaged_entries_are_ignored_and_rewritten(folder, damage):
    ObjectCache(folder).put("key", b"object" * 100)
    path = folder / "key.o"
    stored = path.read_bytes()
    path.write_bytes(stored[:-1] + b"\0" if damage is None else damage)
    assert ObjectCache(folder).get("key") is None
    ObjectCache(folder).put("key", b"object" * 100)
    assert path.read_bytes() == stored


def test_memory_is_bounded(folder):
    store = ObjectCache(None, memory_bytes=1000)
    for number in range(20):
        store.put(str(number), bytes(100))
        store.get("0")
    assert sum(map(len, store._memory.values())) == store._held_bytes <= 1000
    assert store.get("0") is not None and store.get("19") is not None and store.get("1") is None
    store.put("large", bytes(5000))
    assert store.get("large") is not None


def test_the_disk_is_bounded_and_stale_parts_go(folder):
    writer = ObjectCache(folder)
    for number in range(10):
        writer.put(str(number), bytes(1000))
        os.utime(folder / f"{number}.o", (number, number))
    (folder / ".old.part").write_bytes(b"")
    os.utime(folder / ".old.part", (1, 1))
    (folder / ".new.part").write_bytes(b"")
    reader = ObjectCache(folder, disk_bytes=3500)
    assert reader.get("9") is not None
    assert sorted(path.name for path in folder.iterdir()) == [".new.part", "7.o", "8.o", "9.o"]


def test_a_directory_of_others_is_refused(folder):
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "key.o").write_bytes(b"")
    store = ObjectCache(folder)
    with pytest.warns(RuntimeWarning, match="others may write to it") as caught:
        assert store.get("key") is None
    assert len(caught) == 1 and caught[0].filename == __file__
    store.put("key", b"object")  # no second warning, and memory still serves
    assert store.get("key") == b"object" and (folder / "key.o").read_bytes() == b""


def test_a_directory_that_cannot_be_made_turns_the_disk_off(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    store = ObjectCache(tmp_path / "file" / "nova")
    with pytest.warns(RuntimeWarning, match="cache in .* is off") as caught:
        store.put("key", b"object")
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.put("other", b"object")
        assert store.get("key") == b"object"


def test_a_write_that_fails_leaves_nothing_behind(folder, monkeypatch):
    store = ObjectCache(folder)
    store.put("key", b"object")

    def fail(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.warns(RuntimeWarning, match="No space left"):
        store.put("other", b"object")
    assert [path.name for path in folder.iterdir()] == ["key.o"]


def test_where_the_cache_is(monkeypatch, tmp_path):
    with config.scope(NOVA_CACHE=str(tmp_path)):
        assert cache.default_directory() == tmp_path
    with config.scope(NOVA_CACHE="0"):
        assert cache.default_directory() is None
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with config.scope(NOVA_CACHE=""):
        assert cache.default_directory() == tmp_path / ".cache" / "blutrain" / "nova"


def test_the_key_holds_everything():
    facts, toolchain = ("triple", "cpu", "+a,-b"), ("22.1.8", "1", "hash")
    keys = {object_key("text", facts, toolchain)}
    for i in range(3):
        keys.add(object_key("text", (*facts[:i], "?", *facts[i + 1 :]), toolchain))
        keys.add(object_key("text", facts, (*toolchain[:i], "?", *toolchain[i + 1 :])))
    keys.add(object_key("text2", facts, toolchain))
    keys.add(object_key("tex", ("ttriple", *facts[1:]), toolchain))
    assert len(keys) == 9
    assert objects.object_key("text", host_cpu()) == object_key("text", host_cpu().codegen_key(), objects.toolchain())


def test_threads_share_a_cache(folder):
    store, errors = ObjectCache(folder, memory_bytes=2000), []

    def work(seed):
        for number in range(100):
            key = str((seed * 7 + number) % 13)
            data = key.encode() * 100
            store.put(key, data)
            if store.get(key) != data:
                errors.append(key)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


RACE = """
    from pathlib import Path
    from blutrain.nova.cache import ObjectCache
    for number in range(300):
        store = ObjectCache(Path({folder!r}), disk_bytes=200_000)
        key = str(number % 17)
        data = key.encode() * 5000
        found = store.get(key)
        assert found is None or found == data, key
        store.put(key, data)
"""


def test_two_processes_race(folder):
    results = []
    script = RACE.format(folder=str(folder))
    threads = [threading.Thread(target=lambda: results.append(run_script(script, cache="0"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(result.returncode, result.stderr) for result in results] == [(0, "")] * 2


WARM = """
    import sys
    from runtime_support import *
    x, executable = ramp(), build(chain_plan(5))
    (y,) = executable.run([x.ctypes.data])
    assert np.array_equal(y, chain_reference(x, 5))
    print(executable.report.compiled, executable.report.cached, "mlir" in sys.modules)
"""


def test_a_second_process_compiles_nothing_and_imports_no_mlir(folder):
    assert run_script(WARM, cache=str(folder)).stdout == "5 0 False\n"
    assert run_script(WARM, cache=str(folder)).stdout == "0 5 False\n"
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:-7])
    assert run_script(WARM, cache=str(folder)).stdout == "5 0 False\n"
    assert run_script(WARM, cache="0").stdout == "5 0 False\n"


def test_an_unusable_home_means_one_warning(tmp_path):
    (tmp_path / "home").write_bytes(b"")
    result = run_script(WARM, cache="", HOME=str(tmp_path / "home"), XDG_CACHE_HOME="", LC_ALL="C")
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("RuntimeWarning") == 1 and "help: NOVA_CACHE" in result.stderr
