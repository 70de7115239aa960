"""The rules about operands that several composites share, as checks that raise."""

from __future__ import annotations

from ....errors import message


def require_floating(op: str, *avals) -> None:
    """TypeError unless all have one floating dtype."""
    for aval in avals:
        if not aval.dtype.is_floating:
            raise TypeError(message(op, "floating operands wanted", got=", ".join(map(str, avals))))
        if aval.dtype is not avals[0].dtype:
            text = message(
                op, "operands differ in dtype", expected=f"all {avals[0].dtype.short}", got=", ".join(map(str, avals)),
                help="convert with .to(dtype)",
            )  # fmt: skip
            raise TypeError(text)


def require_same_aval(op: str, first, *others) -> None:
    """TypeError or ValueError unless all have the shape and floating dtype of `first`."""
    require_floating(op, first, *others)
    for other in others:
        if other.shape != first.shape:
            raise ValueError(message(op, "operands differ in shape", expected=str(first), got=str(other)))


def require_one_of(op: str, name: str, value, allowed) -> None:
    """ValueError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ValueError(message(op, f"unknown {name}", expected=f"one of {allowed}", got=repr(value)))


def require_fraction(op: str, name: str, value) -> None:
    """ValueError unless 0 <= value <= 1."""
    if not 0 <= value <= 1:
        raise ValueError(message(op, f"{name} is out of range", expected=f"0 <= {name} <= 1", got=repr(value)))
