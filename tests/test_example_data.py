"""The example's data: where tokens come from, how they become batches, which flags go together, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from examples.gpt_mlp import options
from examples.gpt_mlp.batches import VALIDATION, Batches
from examples.gpt_mlp.corpus import check_vocabulary, load_corpus
from examples.gpt_mlp.curve import LossCurve
from examples.gpt_mlp.report import Clock
from examples.gpt_mlp.tokenizer import ByteTokenizer, trained_bpe

TEXT = b"the cat sat on the mat\n" * 400


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_default_is_the_standard_library():
    corpus = load_corpus(None, "byte", None)
    assert len(corpus.train) > 5_000_000 and 0 < len(corpus.validation) < len(corpus.train) / 10
    assert b"def " in corpus.train[:100_000].tobytes()


def test_a_text_file_is_its_bytes(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(TEXT)
    corpus = load_corpus(str(path), "byte", None)
    assert np.concatenate([corpus.train, corpus.validation]).tobytes() == TEXT


def test_a_folder_is_its_text_files_in_order(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.txt").write_bytes(b"second")
    (tmp_path / "a.md").write_bytes(b"first")
    (tmp_path / "sub" / "c").write_bytes(b"third")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0\0")
    (tmp_path / ".hidden").write_bytes(b"no")
    corpus = load_corpus(str(tmp_path), "byte", None)
    assert np.concatenate([corpus.train, corpus.validation]).tobytes() == b"first\nsecond\nthird"


def test_bin_files_are_uint16_tokens(tmp_path):
    np.arange(1000, dtype="<u2").tofile(tmp_path / "train.bin")
    np.arange(50, dtype="<u2").tofile(tmp_path / "val.bin")
    for data in (tmp_path, tmp_path / "train.bin"):
        corpus = load_corpus(str(data), "byte", None)
        assert len(corpus.train) == 1000 and len(corpus.validation) == 50 and corpus.tokenizer is None
    with pytest.raises(ValueError, match=r"the data has token 999(.|\n)*--vocab-size 1000"):
        check_vocabulary(corpus, 256)
    check_vocabulary(corpus, 1000)


@pytest.mark.parametrize(
    ("content", "name", "rule"),
    [
        (b"abc", "x.bin", "truncated"),
        (b"", "x.bin", "empty"),
        (b"", "x.txt", "empty"),
        (None, "x.txt", "no such file"),
        (None, ".", "no text files found"),
    ],
)
def test_bad_data_is_named(tmp_path, content, name, rule):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError), match=rule) as caught:
        load_corpus(str(path), "byte", None)
    assert str(path) in str(caught.value)


def test_the_fingerprint_follows_the_data(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(TEXT)
    first = load_corpus(str(path), "byte", None).fingerprint
    assert load_corpus(str(path), "byte", None).fingerprint == first
    path.write_bytes(TEXT[:-1] + b"x")
    assert load_corpus(str(path), "byte", None).fingerprint != first


def test_bytes_survive_a_round_trip():
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode("naïve ☃".encode())) == "naïve ☃"
    assert tokenizer.decode(np.array([104, 105, 300])) == "hi"


def test_bpe_is_trained_once_and_cached(tmp_path):
    pytest.importorskip("tokenizers")
    first = trained_bpe(TEXT, 300)
    tokens = first.encode(TEXT)
    assert first.decode(tokens) == TEXT.decode() and len(tokens) < len(TEXT) / 2
    cached = list((tmp_path / "cache").rglob("*.json"))
    assert len(cached) == 1
    before = cached[0].stat().st_mtime_ns
    np.testing.assert_array_equal(trained_bpe(TEXT, 300).encode(TEXT), tokens)
    assert cached[0].stat().st_mtime_ns == before
    cached[0].write_text("{ corrupt")
    np.testing.assert_array_equal(trained_bpe(TEXT, 300).encode(TEXT), tokens)
    with pytest.raises(ValueError, match="257 or more"):
        trained_bpe(TEXT, 100)


def test_batches_depend_on_seed_and_number_only():
    tokens = np.arange(1000) % 251
    a, b = Batches(tokens, 3, 8, seed=1), Batches(tokens, 3, 8, seed=1)
    a.batch(0)
    for x, y in zip(a.batch(7), b.batch(7)):
        np.testing.assert_array_equal(x, y)
    x, y = a.batch(7)
    assert x.shape == y.shape == (3, 8) and x.dtype == np.int64
    np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
    assert not np.array_equal(a.batch(8)[0], x)
    assert not np.array_equal(Batches(tokens, 3, 8, seed=2).batch(7)[0], x)
    assert not np.array_equal(Batches(tokens, 3, 8, seed=1, stream=VALIDATION).batch(7)[0], x)


def test_batches_reach_every_token_and_need_enough():
    seen = {tuple(Batches(np.arange(9), 1, 8, seed=0).batch(n)[0][0]) for n in range(5)}
    assert seen == {tuple(range(8))}
    assert {int(Batches(np.arange(10), 1, 8, seed=0).batch(n)[0][0, 0]) for n in range(50)} == {0, 1}
    with pytest.raises(ValueError, match=r"too little training text(.|\n)*at least 9 tokens"):
        Batches(np.arange(8), 1, 8, seed=0)


def test_presets_are_the_papers():
    given = options.parse(["--preset", "46M"])
    filled = options.fill_in(given)
    assert (filled.n_embd, filled.n_layer, filled.vocab_size, filled.block_size) == (384, 6, 50304, 1024)
    assert options.fill_in(options.parse(["--preset", "46M", "--vocab-size", "256"])).vocab_size == 256
    with pytest.raises(ValueError, match="--n-embd differs"):
        options.fill_in(options.parse(["--preset", "46M", "--n-embd", "64"]))


def test_a_resumed_run_takes_its_flags_from_the_checkpoint():
    saved = vars(options.fill_in(options.parse(["--n-embd", "64", "--vocab-size", "300"])))
    filled = options.fill_in(options.parse(["--resume", "--no-compile"]), saved)
    assert filled.n_embd == 64 and filled.vocab_size == 300 and filled.compile is False
    with pytest.raises(ValueError, match=r"--n-layer differs(.|\n)*expected: --n-layer 4(.|\n)*got: --n-layer 5"):
        options.fill_in(options.parse(["--resume", "--n-layer", "5"]), saved)


@pytest.mark.parametrize(
    "flags",
    [
        *(["--n-embed", "3"], ["--n-embd", "0"], ["--dropout", "1"], ["--device", "tpu"], ["--steps", "x"]),
        *(["--lr", "-1"], ["--lr", "nan"], ["--clip", "-1"], ["--clip", "inf"], ["--weight-decay", "x"]),
        *(["--seed", "-1"], ["--seed", str(2**64)], ["--sample-tokens", "-3"]),
    ],
    ids=" ".join,
)
def test_bad_flags_end_with_a_usage_message(flags, capsys):
    with pytest.raises(SystemExit) as caught:
        options.parse(flags)
    assert caught.value.code == 2
    assert flags[0] in capsys.readouterr().err


def test_the_curve_forgets_what_a_resumed_run_repeats(tmp_path):
    curve = LossCurve(tmp_path)
    for step in (1, 2, 3):
        curve.add(step, 5.0 - step, 4.0 if step == 2 else None)
    resumed = LossCurve(tmp_path, from_step=2)
    assert [row["step"] for row in resumed.read()] == ["1", "2"]
    resumed.add(3, 1.0, None)
    pytest.importorskip("matplotlib")
    picture = resumed.draw()
    assert picture is not None and picture.read_bytes().startswith(b"\x89PNG")


def test_a_paused_clock_stands_still():
    clock = Clock()
    clock.restart(0)
    with clock.paused():
        sum(range(2_000_000))
    assert clock.read(1) < 5
