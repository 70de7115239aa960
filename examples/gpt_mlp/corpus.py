"""Where the tokens come from: the standard library's sources, text, or nanoGPT's .bin files of uint16 tokens."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from pathlib import Path
from typing import NamedTuple

import numpy as np

from blutrain.errors import message

from .tokenizer import ByteTokenizer, Tokenizer, trained_bpe

SKIPPED_FOLDERS = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
VALIDATION_SHARE = 0.05


class Corpus(NamedTuple):
    """Tokens to train and to validate on.

    tokenizer: None where the data is tokens already. fingerprint: changes with the tokens.
    """

    name: str
    train: np.ndarray
    validation: np.ndarray
    tokenizer: Tokenizer | None
    fingerprint: str


def load_corpus(data: str | None, tokenizer: str, vocab_size: int | None) -> Corpus:
    """The corpus that `--data` names (None: the standard library's sources).

    tokenizer: "byte", or "bpe" (trained on the data with at most `vocab_size` tokens, cached). Errors:
    FileNotFoundError, ValueError.
    """
    path = Path(data) if data is not None else standard_library()
    if not path.exists():
        raise FileNotFoundError(message("--data", "no such file or folder", got=str(path), location=("", 0)))
    if path.is_file() and path.suffix == ".bin":
        return _from_bin(path)
    if path.is_dir() and (path / "train.bin").is_file():
        return _from_bin(path / "train.bin")
    text = _read_folder(path, ".py" if data is None else None) if path.is_dir() else _read_file(path)
    made: Tokenizer = ByteTokenizer() if tokenizer == "byte" else trained_bpe(text, vocab_size or 4096)
    tokens = made.encode(text)
    cut = len(tokens) - max(1, int(len(tokens) * VALIDATION_SHARE))
    name = "Python's standard library" if data is None else str(path)
    return Corpus(name, tokens[:cut], tokens[cut:], made, fingerprint(tokens))


def standard_library() -> Path:
    """The folder with the sources of the running Python's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def fingerprint(tokens: np.ndarray) -> str:
    """A short digest of the number of tokens and of some 64K of them, spread evenly: cheap on a file of gigabytes."""
    sample = np.ascontiguousarray(tokens[:: max(1, len(tokens) // 65536)]).astype("<u4")
    return hashlib.sha256(str(len(tokens)).encode() + sample.tobytes()).hexdigest()[:16]


def check_vocabulary(corpus: Corpus, vocab_size: int) -> None:
    """Errors: ValueError if a token does not fit a vocabulary of `vocab_size`."""
    for tokens in (corpus.train, corpus.validation):
        largest = max(int(tokens[i : i + (1 << 24)].max()) for i in range(0, len(tokens), 1 << 24))
        if largest >= vocab_size:
            raise ValueError(
                message(
                    "--vocab-size",
                    f"the data has token {largest}",
                    expected=f"tokens below {vocab_size}",
                    got=corpus.name,
                    location=("", 0),
                    help=f"use --vocab-size {largest + 1} or more",
                )
            )


def _from_bin(path: Path) -> Corpus:
    train = _map_tokens(path)
    sibling = path.with_name(path.name.replace("train", "val"))
    if sibling != path and sibling.is_file():
        validation = _map_tokens(sibling)
    else:
        cut = len(train) - max(1, int(len(train) * VALIDATION_SHARE))
        train, validation = train[:cut], train[cut:]
    return Corpus(str(path), train, validation, None, fingerprint(train))


def _map_tokens(path: Path) -> np.ndarray:
    size = os.path.getsize(path)
    if size == 0 or size % 2:
        rule = "the file is empty" if size == 0 else "the file is truncated"
        raise ValueError(
            message(
                "--data", rule, expected="uint16 tokens, two bytes each", got=f"{path}, {size} bytes", location=("", 0)
            )
        )
    return np.memmap(path, dtype="<u2", mode="r")


def _read_file(path: Path) -> bytes:
    text = path.read_bytes()
    if not text:
        raise ValueError(message("--data", "the file is empty", got=str(path), location=("", 0)))
    return text


def _read_folder(folder: Path, suffix: str | None) -> bytes:
    """All text files below `folder` in the order of their names; hidden and binary files are left out."""
    parts = []
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if f not in SKIPPED_FOLDERS and not f.startswith("."))
        for name in sorted(files):
            if name.startswith(".") or (suffix and not name.endswith(suffix)):
                continue
            content = Path(root, name).read_bytes()
            if b"\0" not in content[:8192]:
                parts.append(content)
    text = b"\n".join(parts)
    if not text:
        kind = suffix or "text"
        help = "name a text file or a folder of text with --data"
        raise ValueError(message("--data", f"no {kind} files found", got=str(folder), location=("", 0), help=help))
    return text
