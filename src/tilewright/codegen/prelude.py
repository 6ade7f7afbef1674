"""Declarations that both dialects share: integer arithmetic, comparisons, swizzles."""

from __future__ import annotations

FUNCTION = "static __device__ __forceinline__"


def function(name: str, result: str, parameters: str, body: str) -> tuple[str, str]:
    """A table entry for an inline device function."""
    lines = [line.rstrip() for line in body.strip().splitlines()]
    head = f"{FUNCTION} {result} {name}({parameters})"
    if len(lines) == 1 and len(head) + len(lines[0]) < 92:
        return name, f"{head} {{ {lines[0].strip()} }}"
    return name, "\n".join([f"{head} {{", *(f"  {line}" for line in lines), "}"])


def bits_typedefs(sizes: dict[str, str]) -> dict[str, str]:
    """Typedefs of narrow floats, stored as their bits."""
    return {f"tw_{name}": f"typedef {kind} tw_{name};" for name, kind in sizes.items()}


_FLOORDIV = """
T quotient = a / b;
return quotient - (a % b != 0 && (a < 0) != (b < 0));
"""

_MOD_INT = """
T rest = a % b;
return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
"""

_MOD_FLOAT = """
float rest = fmodf(a, b);
return rest != 0.0f && (rest < 0.0f) != (b < 0.0f) ? rest + b : rest;
"""

_MOD_DOUBLE = """
double rest = fmod(a, b);
return rest != 0.0 && (rest < 0.0) != (b < 0.0) ? rest + b : rest;
"""

_SWIZZLE = """
return a ^ (((a >> (base + shift)) & ((1 << bits) - 1)) << base);
"""

_TEMPLATE = "template <class T>\n"


def _template(entry: tuple[str, str]) -> tuple[str, str]:
    return entry[0], _TEMPLATE + entry[1]


def _overloads(*entries: tuple[str, str]) -> tuple[str, str]:
    return entries[0][0], "\n".join(text for _, text in entries)


# 1 + erf(x) = erfc(-x), and erfc(t) = 2^-Q(t) within 2^-24 for t >= 0: minimax, weighted by erfc.
_ERFC = (
    1.6279085874557495, 0.9184163808822632, 0.1484816074371338, -0.02825368009507656,
    0.0007746290066279471, 0.0014894419582560658, -0.00044550775783136487, 4.535860716714524e-05,
)  # fmt: skip

# gelu(x) = max(x, 0) - t e, where t = |x| and e = erfc(t / sqrt 2) / 2 = 2^-Q(t), within 2^-24:
# minimax, weighted by e, and twice as much near 0, where the error of the power itself adds most.
# Q(0) need not be 1, as e is multiplied by t: with it free one term less than above is enough.
_HALF_ERFC = (
    0.9999999403953552, 1.1511088609695435, 0.4591699242591858, 0.05264297127723694,
    -0.007327078375965357, 0.00038211100036278367, 6.553096318384632e-05, -9.768736163096037e-06,
)  # fmt: skip
_FLAT = 9  # to where Q rises; t e is 1.1e-14 there


def _polynomial(fma: str, coefficients: tuple[float, ...]) -> str:
    """Statements that set `q` to a polynomial of `t`."""
    *rest, top = coefficients
    steps = (f"q = {fma}(q, t, {c!r}f);" for c in reversed(rest))
    return "\n".join((f"float q = {top!r}f;", *steps))


def one_plus_erf(fma: str, absolute: str, exp2: str) -> tuple[str, str]:
    """`tw_one_plus_erf` for f32, without a branch, by the dialect's names of three functions."""
    body = f"""
const float t = {absolute}(x);
{_polynomial(fma, _ERFC)}
const float e = {exp2}(q * -t);
return x < 0.0f ? e : 2.0f - e;
"""
    return function("tw_one_plus_erf", "float", "float x", body)


def gelu(fma: str, absolute: str, maximum: str, exp2: str) -> tuple[str, str]:
    """`tw_gelu` for f32, without a branch, by the dialect's names of four functions.

    As t stays finite no infinity meets a zero: gelu(inf) is inf. gelu(-inf) is -1.1e-14, like all
    below -9; its limit is 0, and what torch composes gives NaN. `tw_min` keeps a NaN.
    """
    body = f"""
const float t = tw_min({absolute}(x), {_FLAT}.0f);
{_polynomial(fma, _HALF_ERFC)}
return {fma}(-t, {exp2}(-q), {maximum}(x, 0.0f));
"""
    return function("tw_gelu", "float", "float x", body)


def rounded(dtype: str, body: str = "") -> tuple[str, str]:
    """`tw_f32_by_*`: f32 rounded to a narrow type, and back."""
    body = body or f"return tw_f32_from_{dtype}(tw_{dtype}_from_f32(x));"
    return function(f"tw_f32_by_{dtype}", "float", "float x", body)


COMMON: dict[str, str] = dict(
    (
        _overloads(
            _template(function("tw_mod", "T", "T a, T b", _MOD_INT)),
            function("tw_mod", "float", "float a, float b", _MOD_FLOAT),
            function("tw_mod", "double", "double a, double b", _MOD_DOUBLE),
        ),
        (
            "tw_swizzle",
            "template <int bits, int base, int shift>\n"
            + function("tw_swizzle", "int", "int a", _SWIZZLE)[1],
        ),
    )
)


def floor_division(f32: str) -> tuple[str, str]:
    """`tw_floordiv`; `f32` is the quotient of floats, correctly rounded."""
    return _overloads(
        _template(function("tw_floordiv", "T", "T a, T b", _FLOORDIV)),
        function("tw_floordiv", "float", "float a, float b", f"return floorf({f32});"),
        function("tw_floordiv", "double", "double a, double b", "return floor(a / b);"),
    )


def extremum(name: str, sign: str, f32: str) -> tuple[str, str]:
    """`tw_max` or `tw_min`: NaN where an operand is NaN. `f32` is the body for floats."""
    double = f"return a != a ? a : b != b ? b : a {sign} b ? a : b;"
    return _overloads(
        _template(function(name, "T", "T a, T b", f"return a {sign} b ? a : b;")),
        function(name, "float", "float a, float b", f32),
        function(name, "double", "double a, double b", double),
    )
