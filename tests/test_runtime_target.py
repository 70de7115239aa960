"""Facts about the machine: from the environment, the operating system and LLVM's names."""

from __future__ import annotations

import dataclasses
import os

import pytest

from blutrain import config
from blutrain.nova import target


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
