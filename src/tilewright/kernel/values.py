"""The elementwise operations: one row each. Back ends read the rows; they know no operation.

Arithmetic on types narrower than 32 bits is done in f32 (or i32) and rounded once to the
result, as torch does. `max`, `min` propagate NaN. `floordiv` and `mod` round towards minus
infinity. Comparisons and logic give bool.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.dtypes import DType, boolean


@dataclass(frozen=True, slots=True)
class Operation:
    """An elementwise operation. `{0}`, `{1}`, .. in `c` are its operands, as C expressions.

    `c` serves floats (f32 spelling; f64 where `c64` is given), `c_int` integers and bools;
    an empty spelling means that the operation does not exist for that kind.
    """

    name: str
    arity: int
    c: str
    c_int: str = ""
    c64: str = ""
    gives_bool: bool = False


def _infix(name: str, sign: str, *, gives_bool: bool = False, floats: bool = True) -> Operation:
    text = f"({{0}} {sign} {{1}})"
    return Operation(name, 2, text if floats else "", text, text if floats else "", gives_bool)


def _own(name: str) -> Operation:
    """A function that every back end defines, overloaded by the operands' type."""
    text = f"tw_{name}({{0}}, {{1}})"
    return Operation(name, 2, text, text, text)


def _function(name: str, call: str = "") -> Operation:
    call = call or name
    return Operation(name, 1, f"{call}f({{0}})", "", f"{call}({{0}})")


OPERATIONS: dict[str, Operation] = {
    row.name: row
    for row in (
        _infix("add", "+"),
        _infix("sub", "-"),
        _infix("mul", "*"),
        _infix("div", "/"),
        _own("floordiv"),
        _own("mod"),
        Operation("pow", 2, "powf({0}, {1})", "", "pow({0}, {1})"),
        _own("max"),
        _own("min"),
        _infix("and", "&", floats=False),
        _infix("or", "|", floats=False),
        _infix("xor", "^", floats=False),
        _infix("shl", "<<", floats=False),
        _infix("shr", ">>", floats=False),
        _infix("lt", "<", gives_bool=True),
        _infix("le", "<=", gives_bool=True),
        _infix("gt", ">", gives_bool=True),
        _infix("ge", ">=", gives_bool=True),
        _infix("eq", "==", gives_bool=True),
        _infix("ne", "!=", gives_bool=True),
        Operation("select", 3, "({0} ? {1} : {2})", "({0} ? {1} : {2})", "({0} ? {1} : {2})"),
        Operation("neg", 1, "(-{0})", "(-{0})", "(-{0})"),
        Operation("not", 1, "", "(!{0})", gives_bool=True),
        Operation("abs", 1, "fabsf({0})", "({0} < 0 ? -{0} : {0})", "fabs({0})"),
        Operation("reciprocal", 1, "(1.0f / {0})", "", "(1.0 / {0})"),
        _function("exp"),
        _function("exp2"),
        _function("log"),
        _function("log2"),
        _function("sqrt"),
        _function("rsqrt"),
        _function("tanh"),
        _function("sin"),
        _function("cos"),
        _function("erf"),
        # Within 2^-23, as the sum of rounded operands is; cheaper than erf.
        Operation("one_plus_erf", 1, "tw_one_plus_erf({0})", "", "erfc(-{0})"),
        # x (1 + erf(x / sqrt 2)) / 2 within 2^-22 |x|, about what rounded operations give.
        Operation("gelu", 1, "tw_gelu({0})", "", "({0} * 0.5 * erfc({0} * -0.7071067811865476))"),
        _function("floor"),
        _function("ceil"),
        _function("round", "rint"),  # half to even
    )
}

# Operations that lowering makes of others, and which those are: a proof counts them.
MERGED: dict[str, tuple[str, ...]] = {
    "one_plus_erf": ("erf", "add"),
    "gelu": ("mul", "mul", "erf", "add", "mul"),
}

# How the text form writes operations between their operands.
INFIX: dict[str, str] = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "mod": "%",
    "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip


def inferred_dtype(op: str, args: tuple[DType, ...]) -> DType | None:
    """The type of the operation's result; None for no such operation or too few operands."""
    row = OPERATIONS.get(op)
    if row is None or len(args) < row.arity:
        return None
    return boolean if row.gives_bool else args[-1]
