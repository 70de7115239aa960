"""Drawing by given probabilities, and filling tensors with random numbers in place."""

from __future__ import annotations

from ...errors import message
from ..dtype import compute_dtype, float64, int32
from ..generator import Generator
from ..tensor import Tensor
from . import cast, compare, random, reduce, search, sort, unary
from .composite.check import check


def multinomial(x, num_samples: int, replacement: bool = False, *, generator: Generator | None = None):
    """`num_samples` indices (int64) drawn from the weights x (categories, or rows of them), which need not sum to 1.

    Without replacement no index comes twice; those of weight 0 come last. Errors: CheckError for weights that are
    negative, infinite, NaN or all 0.

    >>> bt.multinomial(bt.tensor([[0.0, 3.0, 0.0]]), 2, replacement=True)
    tensor([[1, 1]])
    """
    _check(x, num_samples, replacement)
    weights = cast.cast(x.detach(), compute_dtype(x.dtype))
    if replacement and num_samples > 1:
        return _by_running_sum(weights, num_samples, generator)
    # Of exponential times with these rates the first are drawn in proportion (Efraimidis and Spirakis, 2006).
    u = random.uniform(x.shape, generator=generator, dtype=weights.dtype, device=x.device)
    speed = weights / -unary.log(u.clamp(min=2.0**-25))
    return speed.argmax(-1, True) if num_samples == 1 else sort.topk(speed, num_samples, -1).indices


def _by_running_sum(weights, num_samples: int, generator):
    """The first category at which the running sum passes a number drawn below the total."""
    sums = reduce.cumsum(weights, -1)
    total = sums[..., -1:]
    shape = (*weights.shape[:-1], num_samples)
    u = random.uniform(shape, generator=generator, dtype=weights.dtype, device=weights.device)
    found = search.searchsorted(sums, u * total, right=True)
    return found.minimum(reduce.sum(compare.lt(sums, total), -1, True))  # u * total may round to the total


def _check(x, num_samples: int, replacement: bool) -> None:
    if x.ndim not in (1, 2) or not x.dtype.is_floating or not x.numel():
        raise ValueError(message("multinomial", "weights of one or two dimensions are needed", got=str(x._aval)))
    if num_samples < 1 or (not replacement and num_samples > x.shape[-1]):
        expected = "at least 1" if replacement else f"1 to {x.shape[-1]} (without replacement)"
        raise ValueError(message("multinomial", "num_samples is out of range", expected=expected, got=str(num_samples)))
    total = reduce.sum(cast.cast(x.detach(), float64), -1)
    wrong = ~(unary.isfinite(total) & compare.gt(total, 0)) | reduce.any(compare.lt(x.detach(), 0), -1)
    check(cast.cast(reduce.any(wrong), int32), "multinomial: a weight is negative, infinite or NaN, or all are 0")


def bernoulli(shape, p: float = 0.5, *, generator: Generator | None = None, device=None):
    """bool of `shape`, true with probability p; bernoulli(probabilities): 0 or 1 in the dtype of that tensor, as in PyTorch."""
    if not isinstance(shape, Tensor):
        return random.bernoulli(shape, p, generator=generator, device=device)
    u = random.uniform(shape.shape, generator=generator, dtype=compute_dtype(shape.dtype), device=shape.device)
    return cast.cast(compare.lt(u, shape.detach()), shape.dtype)


def uniform_(x, low: float = 0.0, high: float = 1.0, *, generator: Generator | None = None):
    """Fill x with numbers evenly in [low, high); returns x."""
    return x.copy_(random.uniform(x.shape, low, high, generator=generator, dtype=x.dtype, device=x.device))


def normal_(x, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None):
    """Fill x with normally distributed numbers; returns x."""
    return x.copy_(random.normal(x.shape, mean, std, generator=generator, dtype=x.dtype, device=x.device))


def exponential_(x, lambd: float = 1.0, *, generator: Generator | None = None):
    """Fill x with exponentially distributed numbers of rate `lambd`; returns x."""
    u = random.uniform(x.shape, generator=generator, dtype=compute_dtype(x.dtype), device=x.device)
    return x.copy_(-unary.log1p(-u) / lambd)


def bernoulli_(x, p=0.5, *, generator: Generator | None = None):
    """Fill x with 1 with probability p (a number or a tensor), else 0; returns x."""
    if isinstance(p, Tensor):
        return x.copy_(bernoulli(p, generator=generator))
    return x.copy_(cast.cast(random.bernoulli(x.shape, p, generator=generator, device=x.device), x.dtype))
