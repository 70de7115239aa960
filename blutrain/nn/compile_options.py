"""The options of Module.compile, checked."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import message

PRECISIONS = (None, "fp32", "tf32", "bf16")
FIRST_STEPS = ("eager", "compiled")


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What Module.compile was given; see there. Errors: ValueError for a value outside the lists above."""

    strict: bool = False
    precision: str | None = None
    first_step: str = "eager"
    keep_grads: bool = False
    max_programs: int = 8
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        _one_of("precision", self.precision, PRECISIONS)
        _one_of("first_step", self.first_step, FIRST_STEPS)
        for name in ("strict", "keep_grads"):
            _one_of(name, getattr(self, name), (True, False))
        _at_least_one("max_programs", self.max_programs)
        if self.memory_limit is not None:
            _at_least_one("memory_limit", self.memory_limit)


def _one_of(name: str, value, allowed: tuple) -> None:
    if value not in allowed:
        raise ValueError(
            message("Module.compile", f"unknown {name}", expected=" or ".join(map(repr, allowed)), got=repr(value))
        )


def _at_least_one(name: str, value) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(message("Module.compile", f"{name} must be a positive integer", got=repr(value)))
