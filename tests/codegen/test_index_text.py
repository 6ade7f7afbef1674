"""Expressions as C text compute what the expressions mean, also where C would truncate."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.codegen.index import IndexPrinter, Range, Scope, running_part, swizzled
from tilewright.kernel.ops import Swizzle
from tilewright.poly.expr import Constraint, Expr, at_least, equal, less

RANGES = {"x": Range(0, 31), "y": Range(-9, 9), "z": Range(0, 7), "n": Range(1, None)}
PRINTER = IndexPrinter(Scope(RANGES), str)


def c_divide(a: int, b: int) -> int:
    return abs(a) // b * (1 if a >= 0 else -1)


class CInt(int):
    """An int whose division and remainder truncate, as in C."""

    def __truediv__(self, other: int) -> CInt:
        return CInt(c_divide(int(self), int(other)))

    def __mod__(self, other: int) -> CInt:
        return CInt(int(self) - int(other) * c_divide(int(self), int(other)))

    def __neg__(self) -> CInt:
        return CInt(-int(self))


def closed(name: str) -> Callable[[CInt, int], CInt]:
    return lambda self, other: CInt(getattr(int, name)(self, other))


for operator in ("add", "radd", "sub", "rsub", "mul", "rmul", "and", "rshift", "xor"):
    setattr(CInt, f"__{operator}__", closed(f"__{operator}__"))


def run_c(text: str, values: Mapping[str, int]) -> int:
    """Evaluate C text of the integer operators that the printer uses."""
    text = re.sub(r"tw_swizzle<(\d+), (\d+), (\d+)>\(", r"swizzle(\1, \2, \3, ", text)
    text = text.replace("(long long)", "").replace("&&", "and")
    text = re.sub(r"(\d+)ll\b", r"\1", text)
    known = {
        "tw_floordiv": lambda a, b: CInt(int(a) // int(b)),
        "tw_mod": lambda a, b: CInt(int(a) % int(b)),
        "swizzle": lambda bits, base, shift, a: CInt(Swizzle(bits, base, shift).apply(int(a))),
    }
    variables = {name: CInt(value) for name, value in values.items()}
    return int(eval(text, known, variables))


def expressions() -> st.SearchStrategy[Expr]:
    leaf = st.sampled_from(sorted(RANGES)).map(Expr.of) | st.integers(-40, 40).map(Expr.of)
    den = st.sampled_from([2, 3, 4, 5, 8, 12])
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
            st.tuples(inner, st.integers(-6, 6)).map(lambda p: p[0] * p[1]),
            st.tuples(inner, den).map(lambda p: p[0] // p[1]),
            st.tuples(inner, den).map(lambda p: p[0] % p[1]),
        ),
        max_leaves=6,
    )


def valuations() -> st.SearchStrategy[dict[str, int]]:
    return st.fixed_dictionaries(
        {k: st.integers(r.low, r.high if r.high is not None else 999) for k, r in RANGES.items()}
    )


@settings(max_examples=400, deadline=None)
@given(expressions(), valuations(), st.booleans())
def test_text_computes_the_expression(expr: Expr, values: dict[str, int], wide: bool) -> None:
    text = IndexPrinter(Scope(RANGES), str, wide=wide).text(expr)
    assert run_c(text, values) == expr.evaluate(values), text
    assert run_c(f"{IndexPrinter(Scope(RANGES), str, wide).operand(expr)} * 3", values) == (
        3 * expr.evaluate(values)
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(expressions(), min_size=1, max_size=3), st.booleans(), valuations())
def test_guards_hold_as_they_say(parts: list[Expr], equality: bool, values: dict[str, int]) -> None:
    guard = tuple(Constraint(e, equality) for e in parts)
    text = PRINTER.guard(guard)
    holds = all(
        c.expr.evaluate(values) == 0 if equality else c.expr.evaluate(values) >= 0 for c in guard
    )
    assert (bool(run_c(text, values)) if text else True) == holds, text


@pytest.mark.parametrize(
    ("guard", "text"),
    [
        (less("x", "n"), "x < n"),
        (less(Expr.of("x") * 8 + "z", "n"), "x * 8 + z < n"),
        (at_least("n", 4), "4 <= n"),
        (equal("y", 3), "3 == y"),
        (less("x", 32), ""),
        (at_least("z", 0), ""),
    ],
)
def test_guards_read_well_and_evident_ones_vanish(guard: Constraint, text: str) -> None:
    assert PRINTER.guard((guard,)) == text


def test_divisions_of_what_may_be_negative_round_down() -> None:
    assert PRINTER.text(Expr.of("x") // 8) == "(x / 8)"
    assert PRINTER.text(Expr.of("y") // 8) == "(y >> 3)"
    assert PRINTER.text(Expr.of("y") // 3) == "tw_floordiv(y, 3)"
    assert PRINTER.text(Expr.of("y") % 4) == "(y & 3)"


# ---------------------------------------------------------------- swizzles

SWIZZLES = [Swizzle(3, 3, 3), Swizzle(2, 3, 3), Swizzle(3, 2, 4), Swizzle(1, 0, 2)]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(SWIZZLES),
    st.lists(
        st.tuples(st.sampled_from("xzik"), st.sampled_from([1, 2, 8, 16, 24, 32, 64, 256, 512])),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([0, 8, 16, 40, 512, 4096]),
    st.data(),
)
def test_a_swizzle_in_parts_is_the_swizzle(
    swizzle: Swizzle, terms: list[tuple[str, int]], const: int, data: st.DataObject
) -> None:
    offset = sum((Expr.of(name) * factor for name, factor in terms), Expr.of(const))
    scope = Scope(RANGES).with_over((("i", 4), ("k", 2)))
    printer = IndexPrinter(scope, str)
    values = data.draw(
        st.fixed_dictionaries(
            {
                "x": st.integers(0, 31),
                "z": st.integers(0, 7),
                "i": st.integers(0, 3),
                "k": st.integers(0, 1),
            }
        )
    )
    text = swizzled(offset, swizzle, printer)
    assert run_c(text, values) == swizzle.apply(offset.evaluate(values)), text


def test_what_only_a_loop_changes_moves_the_pointer() -> None:
    scope = Scope({"row": Range(0, 7)}).with_loop("step", Range(0, None), unrolled=False)
    offset = Expr.of("step") % 3 * 512 + Expr.of("step") % 4 * 8 + Expr.of("row") * 64
    assert running_part(offset, Swizzle(3, 3, 3), scope) == Expr.of("step") % 3 * 512
    assert running_part(offset, None, scope) == offset - Expr.of("row") * 64
    unrolled = Scope({}).with_loop("step", Range(0, 3), unrolled=True)
    assert running_part(Expr.of("step") * 512, None, unrolled) == Expr.of(0)


def test_an_unrolled_digit_costs_one_xor_and_a_high_one_an_addition() -> None:
    scope = Scope({"row": Range(0, 7)}).with_over((("k", 4), ("i", 4)))
    offset = Expr.of("row") * 64 + Expr.of("k") * 16 + Expr.of("i") * 512
    text = swizzled(offset, Swizzle(3, 3, 3), IndexPrinter(scope, str))
    assert text == "(tw_swizzle<3, 3, 3>(row * 64) ^ (k * 16)) + i * 512"
