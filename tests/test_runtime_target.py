"""Facts about the machine: from the environment, the operating system and LLVM's names."""

from __future__ import annotations

import ctypes
import dataclasses
import os

import pytest

from blutrain import config
from blutrain.nova import target
from blutrain.nova.cpu import orc


def test_the_facts_of_this_machine_are_plausible():
    facts = target.host_cpu()
    assert facts == target.host_cpu() and hash(facts)
    assert facts.vector_bytes in (16, 32, 64) and facts.num_vector_registers in (16, 32)
    assert 8 << 10 <= facts.l1_bytes < facts.l2_bytes and facts.l3_bytes >= 1 << 20
    assert 1 <= facts.threads <= 4096 and 0.5 <= facts.ghz_estimate <= 8 and facts.mem_gb_s >= 12
    assert facts.peak_gflops > 1 and facts.cpu_name and facts.triple


def test_features_are_in_a_fixed_order():
    names = [feature[1:] for feature in target.host_cpu().cpu_features.split(",")]
    assert names == sorted(names)


@pytest.mark.parametrize(
    "triple, features, expected",
    [
        ("x86_64-linux", "+avx2,+fma,+avx512f,+avx512bw,+avx512dq,+avx512vl", (64, 32)),
        ("x86_64-linux", "+avx2,+fma,-avx512f", (32, 16)),
        ("x86_64-linux", "+sse2,+avx,-avx2", (16, 16)),
        ("aarch64-linux", "+neon", (16, 32)),
        ("arm64-apple-darwin24", "", (16, 32)),
    ],
)
def test_vector_unit(triple, features, expected):
    assert target._vector_unit(triple, features) == expected


def test_number_of_threads(monkeypatch):
    with config.scope(num_threads=5):
        assert target.num_threads() == target.host_cpu().threads == 5
    with config.scope(num_threads=0):
        assert 1 <= target.num_threads() <= (os.cpu_count() or 1)
        monkeypatch.setattr(target, "_quota_cores", lambda: 1)
        assert target.num_threads() == target.host_cpu().threads == 1


@pytest.mark.parametrize("content, expected", [("150000 100000", 2), ("max 100000", 1 << 20), ("50000 100000", 1)])
def test_the_containers_quota(monkeypatch, content, expected):
    monkeypatch.setattr(target.Path, "read_text", lambda path: content)
    assert target._quota_cores() == expected


def test_objects_depend_on_the_cpu_and_not_on_the_number_of_threads():
    facts = target.host_cpu()
    assert dataclasses.replace(facts, threads=99).codegen_key() == facts.codegen_key()
    assert dataclasses.replace(facts, cpu_name="other").codegen_key() != facts.codegen_key()


def write_cache(cpu, index: int, **content: str) -> None:
    folder = cpu / "cache" / f"index{index}"
    folder.mkdir(parents=True)
    for name, text in content.items():
        (folder / name).write_text(f"{text}\n")


@pytest.mark.parametrize(
    "siblings, sharing, cores",
    [("0", "0", 1), ("0-1", "0-1", 1), ("0,16", "0,16", 1), ("0", "0-3", 4), ("0-1", "0-3,8-11", 4)],
    ids=["alone", "threads", "threads apart", "cluster", "cluster of threads"],
)
def test_a_shared_l2_counts_by_its_part(tmp_path, siblings, sharing, cores):
    (tmp_path / "topology").mkdir()
    (tmp_path / "topology" / "thread_siblings_list").write_text(f"{siblings}\n")
    write_cache(tmp_path, 0, type="Data", level="1", size="64K", shared_cpu_list=siblings)
    write_cache(tmp_path, 1, type="Instruction", level="1", size="128K", shared_cpu_list=siblings)
    write_cache(tmp_path, 2, type="Unified", level="2", size="2M", shared_cpu_list=sharing)
    write_cache(tmp_path, 3, type="Unified", level="3", size="32768K", shared_cpu_list="0-31")
    assert target._sysfs_caches(tmp_path) == {1: 64 << 10, 2: (2 << 20) // cores, 3: 32 << 20}


def test_caches_that_the_system_does_not_tell_are_left_out(tmp_path):
    write_cache(tmp_path, 0, type="Data", level="1")  # virtual machines of ARM often have no sizes
    assert target._sysfs_caches(tmp_path) == target._sysfs_caches(tmp_path / "none") == {}


def test_caches_of_an_apple_m1(monkeypatch):
    """4 performance cores share 12 MB of L2; no L3 is told of."""
    answers = {
        "hw.perflevel0.l1dcachesize": 131072,
        "hw.perflevel0.l2cachesize": 12 << 20,
        "hw.perflevel0.cpusperl2": 4,
    }
    monkeypatch.setattr(target, "_sysctl", lambda name: answers.get(name, 0))
    assert target._sysctl_caches() == {1: 128 << 10, 2: 3 << 20}
    monkeypatch.setattr(target, "_sysctl", lambda name: 0)
    assert target._sysctl_caches() == {}


def test_sysctl_takes_numbers_of_four_and_eight_bytes(monkeypatch):
    """As macOS answers: 0 and the number, or -1 for a name that it does not know."""
    known = {b"hw.ncpu": ctypes.c_int32(10), b"hw.memsize": ctypes.c_int64(32 << 30)}

    class Library:
        @staticmethod
        def sysctlbyname(name, value, size, new, new_size):
            if name not in known:
                return -1
            ctypes.memmove(value, ctypes.byref(known[name]), ctypes.sizeof(known[name]))
            return 0

    monkeypatch.setattr(target.ctypes, "CDLL", lambda name: Library)
    assert [target._sysctl(name) for name in ("hw.ncpu", "hw.memsize", "hw.none")] == [10, 32 << 30, 0]


def test_the_clock_of_an_arm_machine_is_its_highest(monkeypatch, tmp_path):
    (tmp_path / "cpufreq").mkdir()
    (tmp_path / "cpufreq" / "cpuinfo_max_freq").write_text("3000000\n")
    monkeypatch.setattr(target, "_CPU0", tmp_path)
    monkeypatch.setattr(target, "_time_stamp_ghz", lambda: 0.0)
    monkeypatch.setattr(orc, "machine", lambda: "aarch64")
    assert target._ghz() == 3.0
    monkeypatch.setattr(orc, "machine", lambda: "x86_64")  # a boost there, not a nominal clock
    assert target._ghz() == target._DEFAULT_GHZ
