"""Containers: Sequential, ModuleList, ModuleDict, ParameterList. Their members are attributes named by position or key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import message
from .module import Module
from .parameter import Parameter


class _Indexed(Module):
    """Modules in order, named "0", "1", ..."""

    def _members(self) -> list[Module]:
        return [value for value in self.__dict__.values() if isinstance(value, Module)]

    def _replace_all(self, modules: list[Module]) -> None:
        for name in [name for name, value in self.__dict__.items() if isinstance(value, Module)]:
            delattr(self, name)
        for i, module in enumerate(modules):
            setattr(self, str(i), _checked(type(self).__name__, module))

    def __len__(self) -> int:
        return len(self._members())

    def __iter__(self) -> Iterator[Module]:
        return iter(self._members())

    def __getitem__(self, index: int | slice) -> Any:
        members = self._members()
        if isinstance(index, slice):
            part = type(self)()
            part._replace_all(members[index])
            return part
        return members[index]

    def __setitem__(self, index: int, module: Module) -> None:
        position = range(len(self))[index]
        setattr(self, str(position), _checked(type(self).__name__, module))

    def __delitem__(self, index: int | slice) -> None:
        members = self._members()
        del members[index]
        self._replace_all(members)

    def append(self, module: Module) -> _Indexed:
        setattr(self, str(len(self)), _checked(type(self).__name__, module))
        return self

    def extend(self, modules: Iterable[Module]) -> _Indexed:
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> None:
        members = self._members()
        members.insert(index, module)
        self._replace_all(members)


class Sequential(_Indexed):
    """Calls its modules one after the other; takes modules, or one dict of names to modules.

    >>> nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))(bt.ones(5, 2)).shape
    (5, 1)
    """

    def __init__(self, *modules: Module | dict[str, Module]):
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], dict):
            for name, module in modules[0].items():
                setattr(self, name, _checked("Sequential", module))
        else:
            self.extend(modules)  # type: ignore[arg-type]

    def forward(self, x: Any) -> Any:
        for module in self._members():
            x = module(x)
        return x


class ModuleList(_Indexed):
    """A list of modules that the owner's forward uses as it likes."""

    def __init__(self, modules: Iterable[Module] = ()):
        super().__init__()
        self.extend(modules)


class _Named(Module):
    """A dictionary whose members are attributes; a subclass says of which type they are."""

    _member: type = Module

    def __init__(self, members: dict[str, Any] | None = None):
        super().__init__()
        self.update(members or {})

    def update(self, members: dict[str, Any]) -> None:
        for key, member in members.items():
            self[key] = member

    def keys(self) -> list[str]:
        return [name for name, value in self.__dict__.items() if isinstance(value, self._member)]

    def values(self) -> list[Any]:
        return [self.__dict__[key] for key in self.keys()]

    def items(self) -> list[tuple[str, Any]]:
        return [(key, self.__dict__[key]) for key in self.keys()]

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            rule = f"no {self._member.__name__.lower()} {key!r}"
            raise KeyError(message(type(self).__name__, rule, expected=", ".join(self.keys())))
        return self.__dict__[key]

    def __setitem__(self, key: str, member: Any) -> None:
        op = type(self).__name__
        is_free = isinstance(key, str) and "." not in key and (key in self or not hasattr(self, key))
        if not is_free:
            raise ValueError(message(op, "a key must be a string that is no attribute", got=repr(key)))
        if not isinstance(member, self._member):
            kind, got = self._member.__name__, type(member).__name__
            raise TypeError(message(op, f"members must be {kind.lower()}s", expected=f"a {kind}", got=got))
        setattr(self, key, member)

    def __delitem__(self, key: str) -> None:
        self[key]
        delattr(self, key)

    def __contains__(self, key: str) -> bool:
        return isinstance(self.__dict__.get(key), self._member)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())


class ModuleDict(_Named):
    """A dictionary of modules."""


class ParameterDict(_Named):
    """A dictionary of parameters that the owner's forward uses as it likes."""

    _member = Parameter


def _checked(op: str, module: Any) -> Module:
    if not isinstance(module, Module):
        raise TypeError(message(op, "members must be modules", expected="a Module", got=type(module).__name__))
    return module


class ParameterList(Module):
    """A list of parameters that the owner's forward uses as it likes."""

    def __init__(self, parameters: Iterable[Parameter] = ()):
        super().__init__()
        for parameter in parameters:
            self.append(parameter)

    def append(self, parameter: Parameter) -> ParameterList:
        if not isinstance(parameter, Parameter):
            got = type(parameter).__name__
            raise TypeError(message("ParameterList", "members must be parameters", expected="a Parameter", got=got))
        setattr(self, str(len(self)), parameter)
        return self

    def __getitem__(self, index: int) -> Parameter:
        members = self._members()
        if not -len(members) <= index < len(members):
            raise IndexError(
                message("ParameterList", "no such parameter", expected=f"0 to {len(self) - 1}", got=str(index))
            )
        return members[index]

    def __len__(self) -> int:
        return len(self._members())

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._members())

    def _members(self) -> list[Parameter]:
        return [p for p in self.__dict__.values() if isinstance(p, Parameter)]
