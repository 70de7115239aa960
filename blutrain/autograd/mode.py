"""Whether operations are recorded: no_grad, enable_grad, set_grad_enabled. One state per thread, on unless changed."""

from __future__ import annotations

import functools
import inspect
import threading
from typing import Any


class _State(threading.local):
    enabled = True
    saver: Any = None  # what packs saved tensors (see saved.py)


state = _State()


def is_grad_enabled() -> bool:
    """Does this thread record operations for backward?"""
    return state.enabled


class set_grad_enabled:
    """`with set_grad_enabled(flag):`, a decorator `@set_grad_enabled(flag)`, or a plain call that sets the mode until
    changed.
    """

    def __init__(self, enabled: bool):
        self._wanted, self._stack = bool(enabled), [state.enabled]
        state.enabled = self._wanted

    def __enter__(self) -> set_grad_enabled:
        state.enabled = self._wanted
        return self

    def __exit__(self, *exc) -> None:
        state.enabled = self._stack[-1]

    def __call__(self, function):
        state.enabled = self._stack[-1]  # used as a decorator: creating it changed the mode
        return _Scope(self._wanted)(function)


class _Scope:
    def __init__(self, wanted: bool):
        self._wanted, self._stack = wanted, []

    def __enter__(self):
        self._stack.append(state.enabled)
        state.enabled = self._wanted
        return self

    def __exit__(self, *exc) -> None:
        state.enabled = self._stack.pop()

    def __call__(self, function):
        if inspect.isgeneratorfunction(function):
            return _generator(function, self._wanted)

        @functools.wraps(function)
        def run(*args, **kwargs):
            before, state.enabled = state.enabled, self._wanted
            try:
                return function(*args, **kwargs)
            finally:
                state.enabled = before

        return run


def _generator(function, wanted: bool):
    """The generator function with the mode set while its body runs, and put back while it waits."""

    @functools.wraps(function)
    def run(*args, **kwargs):
        body = function(*args, **kwargs)
        resume = functools.partial(body.send, None)
        while True:
            with _Scope(wanted):
                try:
                    value = resume()
                except StopIteration as end:
                    return end.value
            try:
                resume = functools.partial(body.send, (yield value))
            except GeneratorExit:
                body.close()
                raise
            except BaseException as fault:  # thrown in from outside: the body's to handle
                resume = functools.partial(body.throw, fault)

    return run


class no_grad(_Scope):
    """`with no_grad():` or `@no_grad()`: operations are not recorded, their results require no gradient.

    >>> x = bt.ones(2, requires_grad=True)
    >>> with bt.no_grad():
    ...     x *= 2  # a leaf may be written here
    >>> x
    tensor([2., 2.], requires_grad=True)
    """

    def __init__(self, function=None):
        super().__init__(False)

    def __new__(cls, function=None) -> Any:
        self = super().__new__(cls)
        if function is None:
            return self
        self.__init__()
        return self(function)  # @no_grad without parentheses


class enable_grad(_Scope):
    """`with enable_grad():` or `@enable_grad()`: operations are recorded, inside no_grad too."""

    def __init__(self):
        super().__init__(True)
