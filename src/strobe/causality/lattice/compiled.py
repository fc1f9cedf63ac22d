"""The kernels, compiled with numba when they are first needed: its import alone takes more than a second.

Compiled code is kept in numba's cache beside this package, or where that cannot be written in the user's own. Numba
keeps it under the version of the source, of numba and of the processor. Who can write there can also write there what
Python itself runs (`__pycache__`), so it opens no new door; NUMBA_CACHE_DIR moves it. Without a place to write to,
kernels are compiled anew every time, which takes some seconds.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from strobe.causality.lattice import kernels
from strobe.errors import MissingExtra

EXTRA = "lattice"


class Kernels(NamedTuple):
    """One set of the kernels."""

    lexical: Callable[..., int]
    successors: Callable[..., int]
    clock_rows: Callable[..., None]
    least_cuts: Callable[..., None]


PLAIN = Kernels(kernels.lexical, kernels.successors, kernels.clock_rows, kernels.least_cuts)

PLAIN_STEPS_MAX = 4_000_000
"""A cut takes up to as many steps as the square of the processes, and some more. As many as this take, uncompiled, no
longer than it takes to import the compiler, which is why short searches do without."""
_STEPS_MIN = 64


def plain_cuts_max(width: int) -> int:
    """Return how many cuts of so many processes are looked at without the compiler."""
    return 0 if is_loaded() else PLAIN_STEPS_MAX // (width * width + _STEPS_MIN)


def kernels_for(examined: int, width: int) -> Kernels:
    """Return the kernels for the next cuts, where `examined` were looked at already."""
    return PLAIN if examined < plain_cuts_max(width) else compiled()


def kernels_for_steps(steps: int) -> Kernels:
    """Return the kernels for about this many steps in all."""
    return compiled() if is_loaded() or steps > PLAIN_STEPS_MAX else PLAIN


def is_loaded() -> bool:
    """Whether the compiler was imported already."""
    return compiled.cache_info().currsize > 0


@cache
def compiled() -> Kernels:
    """Return the compiled kernels; raise MissingExtra where numba is not installed."""
    try:
        from numba import njit
    except ImportError as error:
        raise MissingExtra(EXTRA, "looking at so many consistent cuts") from error

    def compile_one(kernel: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return njit(cache=True, nogil=True)(kernel)
        except RuntimeError:  # no place for the cache
            return njit(nogil=True)(kernel)

    return Kernels(*map(compile_one, PLAIN))


def require_numpy() -> None:
    """Raise MissingExtra where numpy is not installed."""
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        raise MissingExtra(EXTRA, "looking at consistent cuts one by one") from error
