"""Device functions of the CUDA back end. The printer emits those that a kernel uses."""

from __future__ import annotations

from tilewright.codegen.prelude import (
    COMMON,
    bits_typedefs,
    extremum,
    floor_division,
    function,
    gelu,
    one_plus_erf,
    rounded,
)

DTYPES = frozenset(
    ("f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i64", "i32", "i16", "i8", "bool")
)

_TYPES = bits_typedefs(
    {
        "f16": "unsigned short",
        "bf16": "unsigned short",
        "f8e4m3": "unsigned char",
        "f8e5m2": "unsigned char",
    }
)

# A double goes to f32 rounded to odd, which keeps enough to round once more, correctly.
_ODD = """
float r = __double2float_rz(x);
return (double)r != x && x == x ? __int_as_float(__float_as_int(r) | 1) : r;
"""


def _from_f32(name: str) -> dict[str, str]:
    """Conversions of one narrow type from the computed types, to nearest even."""
    kind = f"tw_{name}"
    if name in ("f16", "bf16"):
        body = f"""
tw_{name} r;
asm("cvt.rn.{name}.f32 %0, %1;" : "=h"(r) : "f"(x));
return r;
"""
    else:
        ptx = name.removeprefix("f8")
        body = f"""
unsigned short r;
asm("cvt.rn.satfinite.{ptx}x2.f32 %0, %1, %2;" : "=h"(r) : "f"(0.0f), "f"(x));
return (tw_{name})r;
"""
    through_odd = f"return tw_{name}_from_f32(tw_odd_f32(x));"
    return dict(
        (
            function(f"tw_{name}_from_f32", kind, "float x", body),
            function(f"tw_{name}_from_f64", kind, "double x", through_odd),
        )
    )


def _to_f32(name: str) -> dict[str, str]:
    match name:
        case "bf16":
            body = "return __int_as_float((int)x << 16);"
        case "f16":
            body = """
float r;
asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x));
return r;
"""
        case _:
            ptx = name.removeprefix("f8")
            body = f"""
unsigned pair;
asm("cvt.rn.f16x2.{ptx}x2 %0, %1;" : "=r"(pair) : "h"((unsigned short)x));
float r;
asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"((unsigned short)pair));
return r;
"""
    return dict((function(f"tw_f32_from_{name}", "float", f"tw_{name} x", body),))


# The upper half of a pair is an f32 already.
_BY_BF16 = """
int r;
asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(x), "f"(0.0f));
return __int_as_float(r);
"""

# Results below 2^-126 become zero.
_EXP2 = """
float r;
asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
return r;
"""

_NARROW = ("f16", "bf16", "f8e4m3", "f8e5m2")

_SHARED_ADDRESS = function(
    "tw_shared_address",
    "unsigned",
    "const void* p",
    "return (unsigned)__cvta_generic_to_shared(p);",
)


def _async_copies(size: int) -> tuple[tuple[str, str], ...]:
    """Copies of `size` bytes; where `ok` is false one reads nothing and writes zeros."""
    cache = "cg" if size == 16 else "ca"
    opcode = f"cp.async.{cache}.shared.global"
    operands = '"r"(tw_shared_address(dst)), "l"(src)'
    return (
        function(
            f"tw_copy_async_{size}",
            "void",
            "void* dst, const void* src",
            f'asm volatile("{opcode} [%0], [%1], {size};" :: {operands} : "memory");',
        ),
        function(
            f"tw_copy_async_{size}_if",
            "void",
            "bool ok, void* dst, const void* src",
            f'asm volatile("{opcode} [%0], [%1], {size}, %2;"\n'
            f'             :: {operands}, "r"(ok ? {size} : 0) : "memory");',
        ),
    )


def _f32_extremum(name: str) -> tuple[str, str]:
    ptx = name.removeprefix("tw_")
    body = f"""
float r;
asm("{ptx}.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
return r;
"""
    return extremum(name, ">" if ptx == "max" else "<", body)


PRELUDE: dict[str, str] = {
    **_TYPES,
    **COMMON,
    **dict(
        (
            floor_division("__fdiv_rn(a, b)"),
            function("tw_inf", "float", "", "return __int_as_float(0x7f800000);"),
            function("tw_nan", "float", "", "return __int_as_float(0x7fc00000);"),
            _f32_extremum("tw_max"),
            _f32_extremum("tw_min"),
            function("tw_odd_f32", "float", "double x", _ODD),
            function("tw_exp2_fast", "float", "float x", _EXP2),
            one_plus_erf("fmaf", "fabsf", "tw_exp2_fast"),
            gelu("fmaf", "fabsf", "fmaxf", "tw_exp2_fast"),
            _SHARED_ADDRESS,
            *(entry for size in (4, 8, 16) for entry in _async_copies(size)),
        )
    ),
    **{name: text for kind in _NARROW for name, text in _from_f32(kind).items()},
    **{name: text for kind in _NARROW for name, text in _to_f32(kind).items()},
    **dict(rounded(kind, _BY_BF16 if kind == "bf16" else "") for kind in _NARROW),
}
