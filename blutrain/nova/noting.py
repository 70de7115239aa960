"""Modules whose attributes are noted as they are read: for the time of a recording they are of a class that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..nn.module import Module
from .guards import MISSING

if TYPE_CHECKING:
    from .compiled import Compiled
    from .log import Log

# Attributes of every Module that the key covers by itself, or that are no business of forward.
OWN = frozenset(Module().__dict__) | {"__dict__", "__class__"}


def noting_class(cls: type, compiled: Compiled, modules: dict[int, Module], log: Log) -> type:
    """A subclass whose instances report the reads of their attributes."""

    def __getattribute__(self, name):
        if name in OWN or id(self) not in modules:
            return super(noting, self).__getattribute__(name)
        try:
            value = super(noting, self).__getattribute__(name)
        except AttributeError:
            compiled.note(self, cls, name, MISSING, log)
            raise
        if not isinstance(value, Module):
            compiled.note(self, cls, name, value, log)
        return value

    noting = type(cls.__name__, (cls,), {"__getattribute__": __getattribute__, "__module__": cls.__module__})
    return noting
