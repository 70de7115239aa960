"""Random numbers as functions of (seed, draw number, element index): `random_bits` and what is made of it.

Every primitive takes two integer scalars, seed and draw; the draw number used is draw + site, where `site` numbers
the draws of one recorded step. Values: see philox.py for the bits. Of 32-bit words b: uniform takes the leading bits,
as many as the dtype has digits, so 1.0 never comes out (float64: two words); normal is Box-Muller on two words;
bernoulli keeps where b < round(p * 2**32).
"""

from __future__ import annotations

import math

import numpy

from ...errors import message
from .. import dispatch
from ..aval import Aval
from ..device import Device, as_device
from ..dispatch import apply
from ..dtype import as_dtype, bool_, float32, float64, get_default_dtype, int32, int64
from ..generator import Generator, default_generator
from ..primitive import Composed, NotDifferentiable, Special, Unsupported, define
from ..shapes import as_shape
from .compare import bitwise_and, bitwise_right_shift, bitwise_xor, lt
from .create import FULL
from .eager_rule import eager_rule
from .movement import narrow, reshape
from .philox import philox_blocks

_NONE = NotDifferentiable("random numbers depend on no tensor")
_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
_WORD = 1 << 32


def next_draw(generator: Generator | None) -> tuple[int, int, int]:
    """(seed, draw, site) for one random primitive; while a step is recorded they are the recorder's."""
    generator = default_generator if generator is None else generator
    if dispatch.recorder is not None and dispatch.recorder.recording:
        return dispatch.recorder.draw(generator)
    return generator.seed, generator.draw(), 0


def draw_number(draw, site: int) -> int:
    """The draw number of a primitive, modulo 2**64."""
    return (int(draw) + site) & 0xFFFFFFFFFFFFFFFF


def seed_number(seed) -> int:
    """The seed as an unsigned 64-bit number."""
    return int(seed) & 0xFFFFFFFFFFFFFFFF


def _size(shape) -> int:
    return math.prod(shape)


def _infer_bits(seed, draw, *, shape, site=0, device=None):
    return Aval(shape, int32)


def _eager_bits(xp, seed, draw, *, shape, site=0, device=None):
    bits = numpy.empty(_size(shape), numpy.uint32)
    for start, words in philox_blocks(seed_number(seed), draw_number(draw, site), bits.size):
        bits[start : start + words.size] = words
    return bits.view(numpy.int32).reshape(shape)


RANDOM_BITS = define(
    "random_bits",
    "random",
    infer=_infer_bits,
    eager=eager_rule("random_bits", _eager_bits),
    vjp=_NONE,
    nova=Special("random_bits"),
    doc="random_bits(seed, draw, *, shape, site, device): 32 random bits per element as int32, Philox4x32-10.",
)


def _words(xp, seed, draw, shape, site, per_element: int):
    """uint32 words, `per_element` last."""
    bits = RANDOM_BITS.eager(xp, seed, draw, shape=(*shape, per_element), site=site)
    return bits.view(xp.uint32)


def _bits(seed, draw, shape, site, device, per_element: int):
    """The same as tensors of int32, one for each word of an element."""
    bits = apply(RANDOM_BITS, seed, draw, shape=(*shape, per_element), site=site, device=device)
    return [reshape(narrow(bits, -1, i, 1), shape) for i in range(per_element)]


def _leading(bits, digits: int):
    """The leading `digits` < 32 bits of int32 words as non-negative int32."""
    return bitwise_and(bitwise_right_shift(bits, 32 - digits), (1 << digits) - 1)


def _infer_floats(seed, draw, *, shape, dtype, site=0, device=None, **_):
    if not dtype.is_floating:
        raise TypeError(message("random", "uniform and normal numbers are floating", got=repr(dtype)))
    return Aval(shape, dtype)


def _eager_uniform(xp, seed, draw, *, shape, low, high, dtype, site=0, device=None):
    digits = _DIGITS[dtype.name]
    if dtype is float64:
        words = _words(xp, seed, draw, shape, site, 2)
        unit = (words[..., 0] >> 5) * 2.0**26 + (words[..., 1] >> 6)
        unit *= 2.0**-53
    else:
        unit = (_words(xp, seed, draw, shape, site, 1)[..., 0] >> (32 - digits)).astype(numpy.float32)
        unit *= 2.0**-digits
    if (low, high) != (0, 1):
        unit *= high - low
        unit += low
    return unit.astype(dtype.numpy, copy=False)


def _compose_uniform(seed, draw, *, shape, low, high, dtype, site=0, device=None):
    if dtype is float64:
        first, second = _bits(seed, draw, shape, site, device, 2)
        unit = (_leading(first, 27).to(float64) * 2.0**26 + _leading(second, 26).to(float64)) * 2.0**-53
    else:
        digits = _DIGITS[dtype.name]
        unit = _leading(_bits(seed, draw, shape, site, device, 1)[0], digits).to(float32) * 2.0**-digits
    return (unit if (low, high) == (0, 1) else unit * (high - low) + low).to(dtype)


UNIFORM = define(
    "uniform",
    "random",
    infer=_infer_floats,
    eager=_eager_uniform,
    vjp=_NONE,
    nova=Composed(),
    compose=_compose_uniform,
    doc="uniform(seed, draw, *, shape, low, high, dtype, site, device): evenly in [low, high).",
)


def _eager_normal(xp, seed, draw, *, shape, mean, std, dtype, site=0, device=None):
    words = _words(xp, seed, draw, shape, site, 2)
    shift, scale, compute = (0, 2.0**-32, numpy.float64) if dtype is float64 else (8, 2.0**-24, numpy.float32)
    radius, angle = [xp.asarray(words[..., i] >> shift, compute) for i in range(2)]
    radius += 1
    radius *= scale
    xp.log(radius, out=radius)
    radius *= -2
    xp.sqrt(radius, out=radius)
    angle *= 2 * math.pi * scale
    radius *= xp.cos(angle, out=angle)
    if (mean, std) != (0, 1):
        radius *= std
        radius += mean
    return radius.astype(dtype.numpy, copy=False)


def _compose_normal(seed, draw, *, shape, mean, std, dtype, site=0, device=None):
    words = _bits(seed, draw, shape, site, device, 2)
    if dtype is float64:
        first, second = [bitwise_and(w.to(int64), _WORD - 1).to(float64) for w in words]
        scale = 2.0**-32
    else:
        first, second = [_leading(w, 24).to(float32) for w in words]
        scale = 2.0**-24
    radius = (((first + 1) * scale).log() * -2).sqrt()
    value = radius * (second * (2 * math.pi * scale)).cos()
    return (value if (mean, std) == (0, 1) else value * std + mean).to(dtype)


NORMAL = define(
    "normal",
    "random",
    infer=_infer_floats,
    eager=_eager_normal,
    vjp=_NONE,
    nova=Composed(),
    compose=_compose_normal,
    doc="normal(seed, draw, *, shape, mean, std, dtype, site, device): normally distributed, by Box-Muller.",
)


def keep_threshold(p: float) -> int:
    """Bits below this number are kept: round(p * 2**32); at 2**32 every element is."""
    return round(p * _WORD)


def bits_below(bits, threshold: int):
    """Are int32 words, read as unsigned, below `threshold` < 2**32: flipping the sign bit turns one order into the
    other.
    """
    return lt(bitwise_xor(bits, -(1 << 31)), threshold - (1 << 31))


def _eager_bernoulli(xp, seed, draw, *, shape, p, site=0, device=None):
    threshold = keep_threshold(p)
    if threshold == _WORD:
        return xp.ones(shape, bool)
    return _words(xp, seed, draw, shape, site, 1)[..., 0] < threshold


def _compose_bernoulli(seed, draw, *, shape, p, site=0, device=None):
    threshold = keep_threshold(p)
    if threshold == _WORD:
        return apply(FULL, shape=shape, value=True, dtype=bool_, device=device)
    return bits_below(apply(RANDOM_BITS, seed, draw, shape=shape, site=site, device=device), threshold)


BERNOULLI = define(
    "bernoulli",
    "random",
    infer=lambda seed, draw, *, shape, p, site=0, device=None: Aval(shape, bool_),
    eager=_eager_bernoulli,
    vjp=_NONE,
    nova=Composed(),
    compose=_compose_bernoulli,
    doc="bernoulli(seed, draw, *, shape, p, site, device): true with probability p.",
)


def _infer_randint(seed, draw, *, shape, low, high, dtype, site=0, device=None):
    if not 0 < high - low <= 1 << 31:
        raise ValueError(
            message("randint", "the range is empty or wider than 2**31", expected="low < high", got=f"[{low}, {high})")
        )
    return Aval(shape, dtype)


def _eager_randint(xp, seed, draw, *, shape, low, high, dtype, site=0, device=None):
    words = _words(xp, seed, draw, shape, site, 1)[..., 0].astype(numpy.int64)
    return ((words * (high - low) >> 32) + low).astype(dtype.numpy)


def _compose_randint(seed, draw, *, shape, low, high, dtype, site=0, device=None):
    words = bitwise_and(_bits(seed, draw, shape, site, device, 1)[0].to(int64), _WORD - 1)
    return (bitwise_right_shift(words * (high - low), 32) + low).to(dtype)


RANDINT = define(
    "randint",
    "random",
    infer=_infer_randint,
    eager=_eager_randint,
    vjp=_NONE,
    nova=Composed(),
    compose=_compose_randint,
    doc=(
        "randint(seed, draw, *, shape, low, high, dtype, site, device): integers in [low, high), floor(word * "
        "range / 2**32) + low."
    ),
)


def _eager_randperm(xp, seed, draw, *, size, dtype, site=0, device=None):
    words = _words(xp, seed, draw, (size,), site, 2).astype(numpy.uint64)
    return xp.argsort(words[:, 0] << numpy.uint64(32) | words[:, 1], kind="stable").astype(dtype.numpy)


RANDPERM = define(
    "randperm",
    "random",
    infer=lambda seed, draw, *, size, dtype, site=0, device=None: Aval((size,), dtype),
    eager=_eager_randperm,
    vjp=_NONE,
    nova=Unsupported("randperm sorts, and no kernel does"),
    doc="randperm(seed, draw, *, size, dtype, site, device): 0 .. size-1 in the order of random 64-bit keys.",
)


def uniform(shape, low: float = 0.0, high: float = 1.0, *, generator=None, dtype=None, device=None):
    """Evenly distributed in [low, high)."""
    attrs = {"low": float(low), "high": float(high), "dtype": _float_dtype(dtype)}
    return _draw(UNIFORM, generator, device, shape=as_shape("uniform", (shape,)), **attrs)


def normal(shape, mean: float = 0.0, std: float = 1.0, *, generator=None, dtype=None, device=None):
    """Normally distributed. Errors: ValueError for a negative std."""
    if std < 0:
        raise ValueError(message("normal", "std is negative", got=repr(std)))
    attrs = {"mean": float(mean), "std": float(std), "dtype": _float_dtype(dtype)}
    return _draw(NORMAL, generator, device, shape=as_shape("normal", (shape,)), **attrs)


def rand(*shape, generator=None, dtype=None, device=None, requires_grad: bool = False):
    """Evenly distributed in [0, 1)."""
    result = uniform(as_shape("rand", shape), generator=generator, dtype=dtype, device=device)
    return result.requires_grad_() if requires_grad else result


def randn(*shape, generator=None, dtype=None, device=None, requires_grad: bool = False):
    """Normally distributed with mean 0 and deviation 1."""
    result = normal(as_shape("randn", shape), generator=generator, dtype=dtype, device=device)
    return result.requires_grad_() if requires_grad else result


def rand_like(x, *, dtype=None, device=None, requires_grad: bool = False):
    """As `rand`, of the shape, dtype and device of x."""
    return rand(x.shape, dtype=dtype or x.dtype, device=device or x.device, requires_grad=requires_grad)


def randn_like(x, *, dtype=None, device=None, requires_grad: bool = False):
    """As `randn`, of the shape, dtype and device of x."""
    return randn(x.shape, dtype=dtype or x.dtype, device=device or x.device, requires_grad=requires_grad)


def bernoulli(shape, p: float, *, generator=None, device=None):
    """bool, true with probability p. Errors: ValueError unless 0 <= p <= 1."""
    if not 0 <= p <= 1:
        raise ValueError(message("bernoulli", "p is out of range", expected="0 <= p <= 1", got=repr(p)))
    return _draw(BERNOULLI, generator, device, shape=as_shape("bernoulli", (shape,)), p=float(p))


def randint(low: int, high: int | None = None, size=None, *, generator=None, dtype=int64, device=None):
    """Integers in [low, high), or [0, low) where high is None. size: the shape.

    Errors: ValueError for a range that is empty or too wide.
    """
    if size is None and not isinstance(high, int | None):
        high, size = None, high  # randint(high, size), as in PyTorch
    low, high = (0, low) if high is None else (low, high)
    dtype = as_dtype(dtype, "randint")
    return _draw(
        RANDINT, generator, device, shape=as_shape("randint", (size,)), low=int(low), high=int(high), dtype=dtype
    )


def randperm(n: int, *, generator=None, dtype=int64, device=None):
    """The numbers 0 .. n-1 in random order."""
    return _draw(RANDPERM, generator, device, size=as_shape("randperm", (n,))[0], dtype=as_dtype(dtype, "randperm"))


def _draw(prim, generator, device: Device | str | None, **attrs):
    seed, draw, site = next_draw(generator)
    return apply(prim, seed, draw, site=site, device=as_device(device), **attrs)


def _float_dtype(dtype):
    return get_default_dtype() if dtype is None else as_dtype(dtype, "random")
