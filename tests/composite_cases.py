"""One list of calls of the composites: what the tests of values, of `compose` and of the GPU run."""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np

DTYPES = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
# Norm-wise error against float64 that a result may have: a few roundings of the dtype.
TOLERANCE = {"f64": 1e-13, "f32": 2e-6, "f16": 2e-3, "bf16": 1.2e-2}


class Case(NamedTuple):
    """`name` of the primitive; `operands(floats, integers) -> tuple` builds its operands; attributes."""

    name: str
    operands: object
    attrs: dict


class Source:
    """Seeded operands: `s.floats(2, 3)` in the dtype of the run, `s.integers(high, 2, 3)` int64."""

    def __init__(self, dtype, seed: int = 0):
        self.dtype, self.random = np.dtype(dtype), np.random.default_rng(seed)

    def floats(self, *shape, scale: float = 1.0, offset: float = 0.0):
        return np.asarray(self.random.standard_normal(shape) * scale + offset, self.dtype)

    def positive(self, *shape):
        return self.random.uniform(0.1, 2.0, shape).astype(self.dtype)

    def wide(self, *shape):
        """Statistics: kept in at least float32."""
        dtype = np.float64 if self.dtype == np.float64 else np.float32
        return self.random.uniform(0.5, 1.5, shape).astype(dtype)

    def integers(self, high: int, *shape, dtype=np.int64):
        return self.random.integers(0, high, shape).astype(dtype)


def _targets(s: Source, dtype=np.int64):
    target = s.integers(7, 9, dtype=dtype)
    target[3] = -100
    return target


def _entropy(reduction: str, smoothing: float) -> dict:
    return {"ignore_index": -100, "label_smoothing": smoothing, "reduction": reduction}


_LOSSES = [_entropy(r, s) for r in ("mean", "sum", "none") for s in (0.0, 0.1)]
_NORM = {"num_dims": 1, "eps": 1e-5}
_ADAM = (1e-2, 0.9, 0.999, 1e-8, 0.1, 1 - 0.9**3, 1 - 0.999**3)
ALL3 = (True, True, True)

CASES = [
    Case("linear", lambda s: (s.floats(4, 3, 8), s.floats(5, 8), s.floats(5)), {}),
    Case("linear", lambda s: (s.floats(8), s.floats(5, 8)), {}),
    Case("linear", lambda s: (s.floats(0, 8), s.floats(5, 8), s.floats(5)), {}),
    Case("linear_backward", lambda s: (s.floats(4, 3, 5), s.floats(4, 3, 8), s.floats(5, 8)), {"needs": ALL3}),
    Case(
        "linear_backward", lambda s: (s.floats(7, 5), s.floats(7, 8), s.floats(5, 8)), {"needs": (False, True, False)}
    ),
    *[Case("gelu", lambda s: (s.floats(6, 50, scale=3.0),), {"approximate": a}) for a in ("none", "tanh")],
    *[
        Case("gelu_backward", lambda s: (s.floats(6, 50), s.floats(6, 50, scale=3.0)), {"approximate": a})
        for a in ("none", "tanh")
    ],
    Case("relu", lambda s: (s.floats(6, 50),), {}),
    Case("relu_backward", lambda s: (s.floats(6, 50), s.floats(6, 50)), {}),
    Case("silu", lambda s: (s.floats(6, 50, scale=3.0),), {}),
    Case("silu_backward", lambda s: (s.floats(6, 50), s.floats(6, 50, scale=3.0)), {}),
    Case("softmax", lambda s: (s.floats(4, 5, 6, scale=3.0),), {"dim": 1}),
    Case("softmax", lambda s: (s.floats(5, 0),), {"dim": 1}),
    Case("softmax_backward", lambda s: (s.floats(4, 6), s.positive(4, 6)), {"dim": 1}),
    Case("log_softmax", lambda s: (s.floats(4, 5, 6, scale=3.0),), {"dim": 0}),
    Case("log_softmax_backward", lambda s: (s.floats(4, 6), -s.positive(4, 6)), {"dim": 1}),
    Case("layer_norm", lambda s: (s.floats(5, 3, 33), s.floats(33), s.floats(33)), _NORM),
    Case("layer_norm", lambda s: (s.floats(5, 3, 33), s.floats(33)), _NORM),
    Case("layer_norm", lambda s: (s.floats(5, 3, 4),), {"num_dims": 2, "eps": 1e-5}),
    Case(
        "layer_norm_backward",
        lambda s: (s.floats(5, 3, 33), s.floats(5, 3, 33), s.wide(5, 3, 1), s.wide(5, 3, 1), s.floats(33)),
        {"num_dims": 1, "needs": ALL3},
    ),
    Case(
        "layer_norm_backward",
        lambda s: (s.floats(5, 33), s.floats(5, 33), s.wide(5, 1), s.wide(5, 1)),
        {"num_dims": 1, "needs": (True, False, False)},
    ),
    Case("rms_norm", lambda s: (s.floats(5, 3, 33), s.floats(33)), _NORM),
    Case("rms_norm", lambda s: (s.floats(5, 33),), _NORM),
    Case(
        "rms_norm_backward",
        lambda s: (s.floats(5, 3, 33), s.floats(5, 3, 33), s.wide(5, 3, 1), s.floats(33)),
        {"num_dims": 1, "needs": (True, True)},
    ),
    *[Case("cross_entropy", lambda s: (s.floats(9, 7, scale=3.0), _targets(s)), attrs) for attrs in _LOSSES],
    Case("cross_entropy", lambda s: (s.floats(9, 7), _targets(s, np.int16)), _LOSSES[0]),
    *[
        Case(
            "cross_entropy_backward",
            lambda s, rows=(9,) if attrs["reduction"] == "none" else (): (
                s.floats(*rows),
                s.floats(9, 7),
                _targets(s),
                s.wide(9) + 2,
            ),
            attrs,
        )
        for attrs in _LOSSES
    ],
    Case("embedding", lambda s: (s.floats(11, 6), s.integers(11, 3, 4)), {"padding_idx": None}),
    Case("embedding", lambda s: (s.floats(11, 6), s.integers(11, 0)), {"padding_idx": 2}),
    Case(
        "embedding_backward",
        lambda s: (s.floats(3, 4, 6), s.integers(11, 3, 4)),
        {"num_rows": 11, "padding_idx": 2},
    ),
    Case("embedding_backward", lambda s: (s.floats(0, 6), s.integers(3, 0)), {"num_rows": 3, "padding_idx": None}),
    Case("dropout", lambda s: (s.floats(10, 13), 5, 7), {"p": 0.3, "site": 2}),
    Case("dropout", lambda s: (s.floats(10, 13), 5, 7), {"p": 0.0, "site": 0}),
    Case("dropout", lambda s: (s.floats(10, 13), 5, 7), {"p": 1.0, "site": 0}),
    *[
        Case(
            "scaled_dot_product_attention",
            lambda s: (s.floats(2, 5, 4), s.floats(2, 6, 4), s.floats(2, 6, 3)),
            {"is_causal": causal, "scale": 0.5},
        )
        for causal in (False, True)
    ],
    Case(
        "scaled_dot_product_attention",
        lambda s: (s.floats(2, 3, 5, 4), s.floats(6, 4), s.floats(6, 3), s.floats(5, 6) > 0),
        {"is_causal": False, "scale": 0.5},
    ),
    *[
        Case(
            "scaled_dot_product_attention_backward",
            lambda s: (s.floats(2, 5, 3), s.floats(2, 5, 4), s.floats(2, 6, 4), s.floats(2, 6, 3)),
            {"is_causal": causal, "scale": 0.5, "needs": needs},
        )
        for causal, needs in ((False, (True, True, True)), (True, (True, True, True)), (True, (False, True, False)))
    ],
    *[Case("mse_loss", lambda s: (s.floats(40), s.floats(40)), {"reduction": r}) for r in ("mean", "sum", "none")],
    *[
        Case("mse_loss_backward", lambda s: (s.floats(), s.floats(40), s.floats(40)), {"reduction": r})
        for r in ("mean", "sum")
    ],
    Case("mse_loss_backward", lambda s: (s.floats(40), s.floats(40), s.floats(40)), {"reduction": "none"}),
    Case("adamw", lambda s: (s.floats(6, 7), s.floats(6, 7), s.wide(6, 7), s.wide(6, 7), *_ADAM), {}),
    Case("adam", lambda s: (s.floats(6, 7), s.floats(6, 7), s.wide(6, 7), s.wide(6, 7), *_ADAM), {}),
    Case("sgd", lambda s: (s.floats(6, 7), s.floats(6, 7), 0.1, 0.01), {}),
    *[
        Case(
            "sgd_momentum",
            lambda s: (s.floats(6, 7), s.floats(6, 7), s.wide(6, 7), 0.1, 0.9, 0.2, 0.01),
            {"nesterov": nesterov},
        )
        for nesterov in (False, True)
    ],
]


def case_id(case: Case) -> str:
    """A name for a test: the primitive and its attributes."""
    return "-".join([case.name, *[str(v) for v in case.attrs.values()]])
