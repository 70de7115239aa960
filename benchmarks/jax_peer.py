"""The other side of the benchmarks in JAX: the same model, one jitted step with donated state."""

from __future__ import annotations

import argparse
import functools
import os
import time
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
from trainers import LEARNING_RATE

BETA1, BETA2, EPS, WEIGHT_DECAY = 0.9, 0.999, 1e-8, 0.01
MATMUL = {"fp32": "highest", "tf32": "tensorfloat32", "bf16": "default"}


class JaxTrainer:
    """Parameters by the names of the example's model. Errors: ValueError for dropout and fp64, which it lacks."""

    def __init__(self, options: argparse.Namespace, weights: dict[str, np.ndarray]):
        if options.dropout or options.precision not in MATMUL:
            raise ValueError(f"jax: no dropout, and a precision of {', '.join(MATMUL)}")
        jax.config.update("jax_default_matmul_precision", MATMUL[options.precision])
        self.device = jax.devices("cpu" if options.device == "cpu" else "cuda")[0]
        params = {name: jax.device_put(jnp.asarray(w), self.device) for name, w in weights.items()}
        zeros = lambda: {name: jnp.zeros_like(p) for name, p in params.items()}
        self.state = (params, zeros(), zeros(), jax.device_put(jnp.float32(0), self.device))
        dtype = jnp.bfloat16 if options.precision == "bf16" else jnp.float32
        loss = functools.partial(loss_of, layers=options.n_layer, dtype=dtype)
        self._step = jax.jit(functools.partial(update, loss=loss, clip=options.clip), donate_argnums=0)
        self._last: Any = None
        self.update_s = 0.0

    def put(self, array: np.ndarray) -> jax.Array:
        return jax.device_put(jnp.asarray(array, jnp.int32), self.device)

    def step(self, batches: Sequence[tuple[Any, Any]]) -> jax.Array:
        began = time.perf_counter()
        self.state, self._last = self._step(self.state, list(batches))
        self.update_s = time.perf_counter() - began  # the step is one call
        return self._last

    def synchronize(self) -> None:
        jax.block_until_ready((self.state, self._last))


def loss_of(p: dict, idx: jax.Array, targets: jax.Array, layers: int, dtype: Any) -> jax.Array:
    """Mean cross entropy of MLP-GPT; operands of products in `dtype`, everything else in f32."""
    x = p["wte.weight"][idx] + p["wpe.weight"][: idx.shape[1]]
    for i in range(layers):
        at = f"h.{i}."
        h = linear(p, at + "fc", norm(p, at + "ln", x), dtype)
        x = x + linear(p, at + "proj", jax.nn.gelu(h, approximate=True), dtype).astype(jnp.float32)
    logits = (norm(p, "ln_f", x).astype(dtype) @ p["head.weight"].astype(dtype).T).astype(jnp.float32)
    target = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - target).mean()


def linear(p: dict, name: str, x: jax.Array, dtype: Any) -> jax.Array:
    return x.astype(dtype) @ p[name + ".weight"].astype(dtype).T + p[name + ".bias"].astype(dtype)


def norm(p: dict, name: str, x: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p[name + ".weight"] + p[name + ".bias"]


def update(state: tuple, batches: list, loss: Any, clip: float | None) -> tuple[tuple, jax.Array]:
    """Gradients summed over micro-batches, clipped, and AdamW with torch's defaults."""
    params, m, v, t = state
    grads, value = None, None
    for x, y in batches:
        value, g = jax.value_and_grad(loss)(params, x, y)
        g = jax.tree.map(lambda a: a / len(batches), g)
        grads = g if grads is None else jax.tree.map(jnp.add, grads, g)
    if clip:
        size = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(grads)))
        grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, clip / (size + 1e-6)), grads)
    t = t + 1
    m = jax.tree.map(lambda a, g: BETA1 * a + (1 - BETA1) * g, m, grads)
    v = jax.tree.map(lambda a, g: BETA2 * a + (1 - BETA2) * g * g, v, grads)

    def adamw(p: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
        moved = (a / (1 - BETA1**t)) / (jnp.sqrt(b / (1 - BETA2**t)) + EPS)
        return p - LEARNING_RATE * (moved + WEIGHT_DECAY * p)

    return (jax.tree.map(adamw, params, m, v), m, v, t), value
