"""check: a condition on values that has to hold before anything is updated.

Eager, it raises at once (kernels on a GPU: see late_checks.py). In a compiled step it is a flag that the host reads after
the step, and every assign is predicated on all flags being zero, so that nothing is half-updated.
"""

from __future__ import annotations

import re

from ....errors import CheckError, user_location
from ...aval import Aval
from ...dispatch import apply
from ...dtype import int32
from ...primitive import NotDifferentiable, Special, define
from ..arithmetic import where
from ..cast import cast
from ..compare import eq

INT32_MIN = -(2**31)


def describe(text: str, flag: int) -> str:
    """The message of a check that failed: `{flag}` stands for the flag's value, `{flag|a|b}` for a if it is 1, b if 2."""
    return re.sub(r"\{flag([^}]*)\}", lambda found: found[1].split("|")[flag] if found[1] else str(flag), text)


def fail(text: str, flag: int, location: tuple[str, int] | None = None):
    """Raise the CheckError of a check that failed, at the user's line (by default where the user is now)."""
    raise CheckError(describe(text, flag), location or user_location())


def _infer(flag, *, message):
    if flag != Aval((), int32):
        raise TypeError(f"check: the flag is one int32, got {flag}")
    return ()


def _eager(xp, flag, *, message):
    value = int(flag)
    if value:
        fail(message, value)
    return ()


CHECK = define(
    "check",
    "effect",
    infer=_infer,
    eager=_eager,
    vjp=NotDifferentiable("a check has no result"),
    nova=Special("check"),
    num_results=0,
    doc=(
        "check(flag i32[], *, message): CheckError with `message` where the flag is not zero; see `describe` for what "
        "`{flag}` in it becomes."
    ),
)


def check(flag, message: str) -> None:
    """Raise CheckError(message) unless `flag` (i32, 0-d) is zero. In a compiled step: after it, with nothing
    updated.
    """
    apply(CHECK, flag, message=message)


def check_none(bad, values, message: str) -> None:
    """Raise CheckError where `bad` (bool) holds anywhere; `{flag}` in `message` becomes the largest of the bad
    `values` (integers).

    A value outside the int32 range is reported as the nearest one inside. Zero cannot be bad: it is what a passed
    check reads.
    """
    if not values.numel():
        return
    clipped = cast(values.clamp(INT32_MIN + 1, 2**31 - 1) if values.element_size() == 8 else values, int32)
    largest = where(bad, clipped, INT32_MIN).amax()
    check(where(eq(largest, INT32_MIN), 0, largest), message)
