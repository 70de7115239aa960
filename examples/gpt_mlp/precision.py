"""What --device and --precision mean."""

from __future__ import annotations

import blutrain as bt
from blutrain import config, nn
from blutrain.errors import message
from blutrain.tensor.device import Device


def pick_device(name: str) -> str:
    """ "cpu" or "cuda"; "auto" is a GPU where one can be used.

    Errors: RuntimeError where "cuda" is asked for and there is none.
    """
    if name == "cpu":
        return name
    try:
        Device("cuda").xp.zeros(1)
    except RuntimeError:
        if name == "auto":
            return "cpu"
        raise
    return "cuda"


def set_precision(model: nn.Module, precision: str, device: str, compiled: bool) -> str | None:
    """Make `model` compute in a precision; returns what to hand to Module.compile. Errors: ValueError for what cannot
    be had.

    fp64, fp32: parameters and arithmetic in it. tf32: float32, products of matrices with 10 bits of mantissa (GPUs
    only).
    bf16: float32, but the operands of matrix products are rounded to bfloat16 by the compiler.
    """
    if precision == "tf32" and device == "cpu":
        help = "use --precision fp32"
        raise ValueError(
            message("--precision", "tf32 is a precision of GPUs", got="--device cpu", location=("", 0), help=help)
        )
    if precision == "bf16" and not compiled:
        rule, help = "bf16 is mixed precision, made by the compiler", "leave out --no-compile, or use --precision fp32"
        raise ValueError(message("--precision", rule, got="--no-compile", location=("", 0), help=help))
    config.set(matmul_precision="tf32" if precision == "tf32" else "f32")
    if precision == "fp64":
        model.to(bt.float64)
    return precision if precision in ("tf32", "bf16") else None


def synchronize(device: str) -> None:
    """Wait until the device has done what was asked of it."""
    if device != "cpu":
        Device(device).xp.cuda.get_current_stream().synchronize()
