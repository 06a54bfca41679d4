"""`jit`: numba's compiler where it is installed, else Python as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., object])

_compiler: Any = None
try:
    import numba

    _compiler = numba.njit(cache=True)
    # NUMBA_DISABLE_JIT=1 runs the Python itself
    IS_COMPILED = not vars(numba.config).get("DISABLE_JIT")
except ImportError:
    IS_COMPILED = False


def jit(function: Function) -> Function:
    """The same function, compiled. The machine code is kept for the next process."""
    if not IS_COMPILED:
        return function
    compiled: Function = _compiler(function)
    return compiled
