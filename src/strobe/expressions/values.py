"""The arithmetic and comparison of values in expressions. It never raises.

A value is a number, a string, true, false, null, or any other JSON value. Null means unknown: a variable before its
first value, a division by zero, arithmetic on something that is not a number. It equals only itself, and is neither
less nor greater than anything. Only `true` counts as true.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

Value = Any
"""bool, int, float, str, None, or a list or dict of these."""

_DIGITS_MAX = 4096
"""In bits. Larger numbers are not needed, and would let a short expression use all memory."""


def is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_true(value: Value) -> bool:
    return value is True


def same(left: Value, right: Value) -> bool:
    """Whether two values are equal: true is not 1, but 1 is 1.0."""
    pairs = [(left, right)]  # not by recursion: values may be nested as deeply as JSON allows
    while pairs:
        left, right = pairs.pop()
        if isinstance(left, bool) or isinstance(right, bool):
            equal = left is right
        elif isinstance(left, list) and isinstance(right, list):
            equal = len(left) == len(right)
            pairs += zip(left, right, strict=False)
        elif isinstance(left, dict) and isinstance(right, dict):
            equal = left.keys() == right.keys()
            pairs += [(left[key], right[key]) for key in left.keys() & right.keys()]
        else:
            equal = bool(left == right)
        if not equal:
            return False
    return True


def different(left: Value, right: Value) -> bool:
    return not same(left, right)


def _ordering(compare: Callable[[Any, Any], bool]) -> Callable[[Value, Value], bool]:
    def ordered(left: Value, right: Value) -> bool:
        both_numbers = is_number(left) and is_number(right)
        return (both_numbers or (isinstance(left, str) and isinstance(right, str))) and compare(left, right)

    return ordered


def _arithmetic(compute: Callable[[Any, Any], Any]) -> Callable[[Value, Value], Value]:
    def computed(left: Value, right: Value) -> Value:
        if not (is_number(left) and is_number(right)):
            return None
        try:
            value = compute(left, right)
        except (ZeroDivisionError, OverflowError):
            return None
        return None if _is_beyond(value) else value

    return computed


def _is_beyond(value: Value) -> bool:
    return value.bit_length() > _DIGITS_MAX if isinstance(value, int) else math.isnan(value)


def negated(value: Value) -> Value:
    return -value if is_number(value) else None


BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "==": same,
    "!=": different,
    "<": _ordering(operator.lt),
    "<=": _ordering(operator.le),
    ">": _ordering(operator.gt),
    ">=": _ordering(operator.ge),
    "+": _arithmetic(operator.add),
    "-": _arithmetic(operator.sub),
    "*": _arithmetic(operator.mul),
    "/": _arithmetic(operator.truediv),
    "%": _arithmetic(operator.mod),
    "and": lambda left, right: is_true(left) and is_true(right),
    "or": lambda left, right: is_true(left) or is_true(right),
}
