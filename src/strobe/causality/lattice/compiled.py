"""Compiles the kernels with numba on first use: importing numba alone takes more than a second.

Compiled code is kept in numba's cache beside this package, or in the user's cache directory if the package is
read-only. Numba keys it by the version of the source, of numba and of the processor. Anyone who can write there can
also write `__pycache__`, so the cache adds no risk. NUMBA_CACHE_DIR moves it. Without a writable cache, kernels are
compiled every time, which takes some seconds.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from strobe.causality.lattice import kernels
from strobe.errors import MissingExtra

EXTRA = "lattice"


class Kernels(NamedTuple):
    """One set of kernels, compiled or plain."""

    lexical: Callable[..., int]
    successors: Callable[..., int]
    clock_rows: Callable[..., None]
    least_cuts: Callable[..., None]


PLAIN = Kernels(kernels.lexical, kernels.successors, kernels.clock_rows, kernels.least_cuts)

PLAIN_STEPS_MAX = 4_000_000
"""Maximum number of steps run uncompiled: they take about as long as importing the compiler. A cut takes up to the
square of the number of processes in steps, and some more.
"""
_STEPS_MIN = 64


def plain_cuts_max(width: int) -> int:
    """Return how many cuts of `width` processes are examined without the compiler."""
    return 0 if is_loaded() else PLAIN_STEPS_MAX // (width * width + _STEPS_MIN)


def kernels_for(examined: int, width: int) -> Kernels:
    """Return the kernels for the next cuts, if `examined` cuts were examined already."""
    return PLAIN if examined < plain_cuts_max(width) else compiled()


def kernels_for_steps(steps: int) -> Kernels:
    """Return the kernels for about this many steps in total."""
    return compiled() if is_loaded() or steps > PLAIN_STEPS_MAX else PLAIN


def is_loaded() -> bool:
    """Whether the compiler was imported already."""
    return compiled.cache_info().currsize > 0


@cache
def compiled() -> Kernels:
    """Return the compiled kernels; raise MissingExtra if numba is not installed."""
    try:
        from numba import njit
    except ImportError as error:
        raise MissingExtra(EXTRA, "searching this many consistent cuts") from error

    def compile_one(kernel: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return njit(cache=True, nogil=True)(kernel)
        except RuntimeError:  # no writable cache directory
            return njit(nogil=True)(kernel)

    return Kernels(*map(compile_one, PLAIN))


def require_numpy() -> None:
    """Raise MissingExtra if numpy is not installed."""
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        raise MissingExtra(EXTRA, "looking at consistent cuts one by one") from error
