"""Tokenizers: bytes as they are, or byte pairs learned from the data with the `tokenizers` library."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Protocol

import numpy as np

from blutrain.errors import message

CHUNK = 1 << 20  # bytes of text encoded at a time


class Tokenizer(Protocol):
    """Text to tokens and back; `vocab_size` tokens in all."""

    vocab_size: int

    def encode(self, text: bytes) -> np.ndarray: ...

    def decode(self, tokens: np.ndarray) -> str: ...


class ByteTokenizer:
    """Each byte is a token."""

    vocab_size = 256

    def encode(self, text: bytes) -> np.ndarray:
        return np.frombuffer(text, dtype=np.uint8)

    def decode(self, tokens: np.ndarray) -> str:
        inside = np.asarray(tokens)
        return inside[inside < 256].astype(np.uint8).tobytes().decode("utf-8", errors="replace")


class BpeTokenizer:
    """Byte-level BPE; any text can be encoded."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self.vocab_size = tokenizer.get_vocab_size()

    def encode(self, text: bytes) -> np.ndarray:
        # Line by line chunks: memory stays flat, and a token never spans two chunks more often than every CHUNK bytes.
        pieces = self._tokenizer.encode_batch(_chunks(text))
        dtype = np.uint16 if self.vocab_size <= 1 << 16 else np.uint32
        return np.concatenate([np.asarray(p.ids, dtype=dtype) for p in pieces])

    def decode(self, tokens: np.ndarray) -> str:
        return self._tokenizer.decode([int(t) for t in tokens if t < self.vocab_size])


def trained_bpe(text: bytes, vocab_size: int) -> BpeTokenizer:
    """A BPE tokenizer trained on `text`, from the cache where it was trained before.

    Errors: ImportError, ValueError.
    """
    try:
        import tokenizers
    except ImportError as fault:
        help = "pip install tokenizers, or use --tokenizer byte"
        raise ImportError(
            message("--tokenizer bpe", "needs the tokenizers package", location=("", 0), help=help)
        ) from fault
    if vocab_size < 257:
        rule = "a byte-level vocabulary cannot be smaller than the bytes"
        expected = "--vocab-size of 257 or more"
        raise ValueError(message("--tokenizer bpe", rule, expected=expected, got=str(vocab_size), location=("", 0)))
    path = cache_folder() / f"bpe-{vocab_size}-{hashlib.sha256(text).hexdigest()[:16]}.json"
    if path.is_file():
        try:
            return BpeTokenizer(tokenizers.Tokenizer.from_file(str(path)))
        except Exception:  # the library raises plain Exception for a corrupt file: train again and replace it
            path.unlink()
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(_chunks(text), trainer)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    made.save(str(unfinished))
    os.replace(unfinished, path)
    return BpeTokenizer(made)


def cache_folder() -> Path:
    """Where trained tokenizers are kept: $XDG_CACHE_HOME/blutrain/tokenizers, by default below ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "blutrain" / "tokenizers"


def _chunks(text: bytes) -> list[str]:
    """`text` as strings of about CHUNK bytes that end at line ends."""
    chunks, start = [], 0
    while start < len(text):
        stop = len(text) if start + CHUNK >= len(text) else text.rfind(b"\n", start, start + CHUNK) + 1
        if stop <= start:
            stop = start + CHUNK
        chunks.append(text[start:stop].decode("utf-8", errors="replace"))
        start = stop
    return chunks
