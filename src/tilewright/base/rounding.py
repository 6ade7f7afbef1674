"""Whole numbers rounded to multiples."""

from __future__ import annotations


def round_up(value: int, multiple: int) -> int:
    """The least multiple of a positive number that is not below `value`."""
    return -(-value // multiple) * multiple
