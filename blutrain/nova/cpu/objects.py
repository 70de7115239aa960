"""Native objects of kernel texts, from the cache or from the compile workers.

    objects = compile_objects([CompileJob(text, op="linear gelu", location="train.py:12")], facts)
    loaded = load_objects(objects)          # see orc.load_object for one object and its symbols

A text that does not compile raises NovaError with a reproducer: a file with the text, and the command that replays it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ... import config
from ...errors import NovaError
from .. import cache
from ..target import CpuFacts
from . import lower, orc
from .compile_workers import Failure, shared_workers


@dataclass(frozen=True)
class CompileJob:
    """A text to compile, and whose it is: the label of a launch and the user's "file:line", for the error message."""

    text: str
    op: str = ""
    location: str = ""


@dataclass
class Counts:
    """What `compile_objects` did in this process: objects found in the cache, objects compiled."""

    cached: int = 0
    compiled: int = 0


counts = Counts()
_caches: dict[Path | None, cache.ObjectCache] = {}
_lock = threading.Lock()


def compile_objects(jobs: Sequence[CompileJob], facts: CpuFacts) -> list[bytes]:
    """One object for each job. Equal texts are compiled once. Raises NovaError for the first job that failed."""
    store = object_cache()
    keys = [object_key(job.text, facts) for job in jobs]
    found = {key: store.get(key) for key in keys}
    missing = {key: job for key, job in zip(keys, jobs, strict=True) if found[key] is None}
    counts.cached += len(found) - len(missing)
    if missing:
        library = str(orc.library_path())
        requests = [(lower.__file__, (job.text, *facts.codegen_key(), library)) for job in missing.values()]
        results = shared_workers(facts.threads).compile(requests)
        for (key, job), result in zip(missing.items(), results, strict=True):
            if isinstance(result, Failure):
                raise compile_error(job, result, facts)
            store.put(key, result)
            found[key] = result
            counts.compiled += 1
    return [data for key in keys if (data := found[key]) is not None]


def compile_object(text: str, facts: CpuFacts) -> bytes:
    """The native object of one kernel text."""
    return compile_objects([CompileJob(text)], facts)[0]


def object_key(text: str, facts: CpuFacts) -> str:
    """The cache key of a text compiled for `facts`."""
    return cache.object_key(text, facts.codegen_key(), toolchain())


@functools.cache
def toolchain() -> tuple[str, ...]:
    """LLVM's version, the library's size (tells builds of one version apart) and the source of the lowering."""
    source = hashlib.sha256(Path(lower.__file__).read_bytes()).hexdigest()
    return orc.version(), str(orc.library_path().stat().st_size), source


def object_cache() -> cache.ObjectCache:
    """The cache for the present setting of NOVA_CACHE; a setting keeps its cache while the process lives."""
    directory = cache.default_directory()
    with _lock:
        if directory not in _caches:
            _caches[directory] = cache.ObjectCache(directory)
        return _caches[directory]


def compile_error(job: CompileJob, failure: Failure, facts: CpuFacts) -> NovaError:
    """The error for a text that did not compile; writes the reproducer."""
    return NovaError(
        failure.message, stage=failure.stage, op=job.op, location=job.location, dump=write_reproducer(job.text, facts)
    )


def write_reproducer(text: str, facts: CpuFacts) -> str:
    """Writes a text, and beside it the command that compiles it, to NOVA_DUMP or a new private folder; its path."""
    folder = config.get("NOVA_DUMP") or tempfile.mkdtemp(prefix="nova-")
    os.makedirs(folder, exist_ok=True)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = Path(folder) / f"{name}.mlir"
    path.write_text(text, encoding="utf-8")
    command = [sys.executable, lower.__file__, str(orc.library_path()), str(path), *facts.codegen_key()]
    script = shlex.join(command) + f" > {shlex.quote(str(path.with_suffix('.o')))}\n"
    path.with_suffix(".sh").write_text(script, encoding="utf-8")
    return str(path)


def load_objects(objects: Sequence[bytes], symbols: Sequence[Sequence[str]]) -> list[orc.LoadedObject]:
    """Each object in memory of its own, with the addresses of its symbols; two objects may use the same names."""
    return [orc.load_object(data, names) for data, names in zip(objects, symbols, strict=True)]
