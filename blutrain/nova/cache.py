"""The cache of native objects: bounded in memory, and on disk for the next process.

A key is the SHA-256 of text, the facts that code generation reads, the toolchain's version and the lowering's own
source. An entry on disk is checked (magic, SHA-256 of the payload) before it is used: a torn or edited file is
ignored and rewritten. Writes are atomic (temporary file, rename), so that two processes may race. A cache directory
runs code in the reader: it must belong to the user and be writable by nobody else, or it is not used.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from .. import config

MAGIC = b"NOVAOBJ1"
MEMORY_BYTES = 64 << 20
DISK_BYTES = 512 << 20
STALE_SECONDS = 3600
_DIGEST_BYTES = 32


def default_directory() -> Path | None:
    """NOVA_CACHE (a directory, or "0" for None: no disk cache), else ~/.cache/blutrain/nova."""
    setting = config.get("NOVA_CACHE")
    if setting == "0":
        return None
    if setting:
        return Path(setting).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        root = Path(base) if base else Path.home() / ".cache"
    except RuntimeError:  # no HOME and no entry in the user database
        return None
    return root / "blutrain" / "nova"


def object_key(text: str, facts: Iterable[str], toolchain: Iterable[str]) -> str:
    """Hex key of one object. Each part is hashed with its length, so that no two lists of parts run together."""
    digest = hashlib.sha256()
    for part in (text, *facts, *toolchain):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


class ObjectCache:
    """Bytes by key, in memory (least recently used out) and in `directory` (None: memory only). Thread-safe."""

    def __init__(self, directory: Path | None, *, memory_bytes: int = MEMORY_BYTES, disk_bytes: int = DISK_BYTES):
        self.directory = directory
        self.memory_bytes, self.disk_bytes = memory_bytes, disk_bytes
        self._memory: OrderedDict[str, bytes] = OrderedDict()
        self._held_bytes = 0
        self._lock = threading.Lock()
        self._is_prepared = False

    def get(self, key: str) -> bytes | None:
        """The object of a key, or None. A corrupt entry on disk counts as none."""
        with self._lock:
            data = self._memory.get(key)
            if data is not None:
                self._memory.move_to_end(key)
                return data
            data = self._read(key)
            if data is not None:
                self._remember(key, data)
            return data

    def put(self, key: str, data: bytes) -> None:
        """Keeps an object in memory and on disk. A failing disk turns the disk cache off, with one warning."""
        with self._lock:
            self._remember(key, data)
            self._write(key, data)

    def _remember(self, key: str, data: bytes) -> None:
        self._held_bytes += len(data) - len(self._memory.pop(key, b""))
        self._memory[key] = data
        while self._held_bytes > self.memory_bytes and len(self._memory) > 1:
            self._held_bytes -= len(self._memory.popitem(last=False)[1])

    def _read(self, key: str) -> bytes | None:
        if not self._prepare():
            return None
        path = self._path(key)
        try:
            stored = path.read_bytes()
        except OSError:
            return None
        start = len(MAGIC) + _DIGEST_BYTES
        data = stored[start:]
        if stored[:start] != MAGIC + hashlib.sha256(data).digest():
            return None
        try:
            os.utime(path)  # recently used: the last to be pruned
        except OSError:
            pass
        return data

    def _write(self, key: str, data: bytes) -> None:
        if not self._prepare():
            return
        name = None
        try:
            descriptor, name = tempfile.mkstemp(dir=self.directory, prefix=".", suffix=".part")
            with os.fdopen(descriptor, "wb") as file:
                file.write(MAGIC + hashlib.sha256(data).digest() + data)
            os.replace(name, self._path(key))
        except OSError as error:
            if name is not None and os.path.exists(name):
                os.unlink(name)
            self._turn_off(str(error))

    def _path(self, key: str) -> Path:
        assert self.directory is not None
        return self.directory / f"{key}.o"

    def _prepare(self) -> bool:
        """Creates and checks the directory once; True where the disk is in use."""
        if self.directory is None or self._is_prepared:
            return self.directory is not None
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self.directory.stat()
            if status.st_uid != os.getuid() or status.st_mode & 0o022:
                return self._turn_off(
                    "others may write to it, and its contents are run as code; make it yours alone (chmod 700)"
                )
            if not os.access(self.directory, os.W_OK):
                return self._turn_off("it is not writable")
            self._prune()
        except OSError as error:
            return self._turn_off(str(error))
        self._is_prepared = True
        return True

    def _prune(self) -> None:
        """Drops the least recently used entries beyond `disk_bytes`, and what a killed process left half-written."""
        assert self.directory is not None
        total = 0
        for status, path in sorted(_entries(self.directory), key=lambda entry: entry[0].st_mtime, reverse=True):
            total += status.st_size
            is_stale = path.suffix == ".part" and time.time() - status.st_mtime > STALE_SECONDS
            if is_stale or (path.suffix == ".o" and total > self.disk_bytes):
                path.unlink(missing_ok=True)

    def _turn_off(self, reason: str) -> bool:
        message = f"nova: the object cache in {self.directory} is off: {reason}\n  help: NOVA_CACHE=<directory>, or 0"
        self.directory = None
        warnings.warn(message, RuntimeWarning, stacklevel=_outside_depth())
        return False


def _entries(directory: Path) -> list[tuple[os.stat_result, Path]]:
    """Entries with their status; one that another process removes meanwhile is left out."""
    entries = []
    for path in directory.iterdir():
        try:
            entries.append((path.stat(), path))
        except OSError:
            continue
    return entries


def _outside_depth() -> int:
    """`stacklevel` of the first frame outside blutrain, so that the warning shows the user's line."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    frame, depth = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame, depth = frame.f_back, depth + 1
    return depth
