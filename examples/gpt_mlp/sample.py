"""Text from a trained model."""

from __future__ import annotations

import numpy as np

import blutrain as bt

from .model import MLPGPT


def sample(model: MLPGPT, start: int, count: int, seed: int, device: str, temperature: float = 0.8) -> np.ndarray:
    """`count` tokens drawn one after the other, beginning after token `start`.

    Without attention the next token depends on the last one and its position only, so that is all the model is given.
    """
    rng = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 2, 0]))
    tokens = [start]
    was_training = model.training
    model.eval()
    with bt.no_grad():
        for i in range(count):
            last = bt.from_numpy(np.array([[tokens[-1]]], dtype=np.int64)).to(device)
            position = bt.from_numpy(np.array([[i % model.config.block_size]], dtype=np.int64)).to(device)
            logits = np.array(model(last, positions=position).reshape(-1).tolist()) / temperature
            probabilities = np.exp(logits - logits.max())
            tokens.append(int(rng.choice(len(probabilities), p=probabilities / probabilities.sum())))
    model.train(was_training)
    return np.array(tokens[1:])
