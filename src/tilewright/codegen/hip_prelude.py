"""Device functions of the HIP back end, written on compiler builtins: no device library is linked.

The f32 functions stay within a few units in the last place. Where the hardware is only
approximate they work in f64, which CDNA computes at half the rate of f32 or better.
"""

from __future__ import annotations

from collections.abc import Mapping

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

_NARROW = ("f16", "bf16", "f8e4m3", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz")

_TYPES = {
    **bits_typedefs(
        {
            "f16": "unsigned short",
            "bf16": "unsigned short",
            "f8e4m3": "unsigned char",
            "f8e5m2": "unsigned char",
            "f8e4m3fnuz": "unsigned char",
            "f8e5m2fnuz": "unsigned char",
        }
    ),
    "tw_int2": "typedef int tw_int2 __attribute__((ext_vector_type(2)));",
    "tw_int4": "typedef int tw_int4 __attribute__((ext_vector_type(4)));",
}

_ODD = """
float r = (float)x;
if ((double)r == x || x != x) return r;
int bits = __builtin_bit_cast(int, r);
bits -= __builtin_fabs((double)r) > __builtin_fabs(x);
return __builtin_bit_cast(float, bits | 1);
"""

_BF16 = """
unsigned bits = __builtin_bit_cast(unsigned, x);
if (x != x) return (tw_bf16)0x7fc0;
return (tw_bf16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
"""

_BARRIER = """
__builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
__builtin_amdgcn_s_barrier();
__builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
"""

_LANE_READ = """
int words[(sizeof(T) + 3) / 4] = {};
__builtin_memcpy(words, &x, sizeof(T));
for (int& word : words) word = __builtin_amdgcn_ds_bpermute(lane << 2, word);
__builtin_memcpy(&x, words, sizeof(T));
return x;
"""

_LANE_XOR = """
int lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
return tw_lane_read(x, lane ^ mask);
"""

# e^x for moderate x: 2^n by the exponent, the rest by its Taylor series.
_EXP = """
double n = __builtin_rint(x * 1.4426950408889634);
double r = __builtin_fma(n, -0.6931471805599453, x);
double y = 1.0;
for (int i = 11; i > 0; --i) y = __builtin_fma(y, r / i, 1.0);
return __builtin_ldexp(y, (int)n);
"""

_TANH = """
double a = __builtin_fabs((double)x), z = a * a;
double y = a < 0.01 ? a * (1.0 + z * (-1.0 / 3.0 + z * (2.0 / 15.0)))
                    : 1.0 - 2.0 / (tw_exp_f64(2.0 * __builtin_fmin(a, 20.0)) + 1.0);
return x != x ? x : __builtin_copysignf((float)y, x);
"""

# erf(x) = x P(x^2) below 1; above, 1 - 2^-Q(x). P and Q are Chebyshev interpolants.
_ERF = """
float a = __builtin_fabsf(x), z = a * a, y;
if (a < 1.0f) {
  y = -9.667043741501402e-06f;
  y = __builtin_fmaf(y, z, 0.00011265958892181516f);
  y = __builtin_fmaf(y, z, -0.0008484080317430198f);
  y = __builtin_fmaf(y, z, 0.005221031606197357f);
  y = __builtin_fmaf(y, z, -0.026865430176258087f);
  y = __builtin_fmaf(y, z, 0.11283782124519348f);
  y = __builtin_fmaf(y, z, -0.37612637877464294f);
  y = __builtin_fmaf(y, z, 1.128379225730896f);
  return x * y;
}
a = __builtin_fminf(a, 4.0f);
y = 2.0101155314478092e-05f;
y = __builtin_fmaf(y, a, -0.00047448897385038435f);
y = __builtin_fmaf(y, a, 0.005081986542791128f);
y = __builtin_fmaf(y, a, -0.03314146772027016f);
y = __builtin_fmaf(y, a, 0.1502549797296524f);
y = __builtin_fmaf(y, a, 0.9203728437423706f);
y = __builtin_fmaf(y, a, 1.6255745887756348f);
y = __builtin_fmaf(y, a, 0.0007275431999005377f);
return x != x ? x : __builtin_copysignf(1.0f - __builtin_exp2f(-y), x);
"""

# Quarter turns are taken off in f64, with a two-part pi/2; good for |x| < 2^50.
_SIN_QUARTER = """
double n = __builtin_rint(x * 0.6366197723675814);
double r = __builtin_fma(n, -6.123233995736766e-17, __builtin_fma(n, -1.5707963267948966, x));
double z = r * r, s = 1.0, c = 1.0;
for (int i = 12; i > 0; i -= 2) {
  s = __builtin_fma(s, -z / (i * (i + 1)), 1.0);
  c = __builtin_fma(c, -z / (i * (i - 1)), 1.0);
}
int turn = (int)((long long)n & 3) + quarter;
double y = turn & 1 ? c : r * s;
return (float)(turn & 2 ? -y : y);
"""

_LOG2 = """
int e;
double m = __builtin_frexp(x, &e);
if (m < 0.7071067811865476) m *= 2.0, e -= 1;
double s = (m - 1.0) / (m + 1.0), z = s * s, y = 0.0;
for (int i = 17; i > 0; i -= 2) y = __builtin_fma(y, z, 1.0 / i);
return e + 2.8853900817779268 * s * y;
"""

_POW = """
if (x == 1.0f || y == 0.0f) return 1.0f;
if (x != x || y != y) return x + y;
float a = __builtin_fabsf(x);
bool whole = __builtin_truncf(y) == y, odd = whole && __builtin_truncf(y * 0.5f) != y * 0.5f;
float r;
if (a == 0.0f || __builtin_isinf(a)) {
  r = (a == 0.0f) == (y < 0.0f) ? __builtin_inff() : 0.0f;
} else if (__builtin_isinf(y)) {
  return a == 1.0f ? 1.0f : (a > 1.0f) == (y > 0.0f) ? __builtin_inff() : 0.0f;
} else {
  double power = y * tw_log2_f64(a) * 0.6931471805599453;
  r = (float)tw_exp_f64(__builtin_fmin(__builtin_fmax(power, -200.0), 200.0));
  if (x < 0.0f && !whole) return __builtin_nanf("");
}
return odd ? __builtin_copysignf(r, x) : r;
"""

# Exact where the quotient is below 2^53. One that was rounded up leaves the wrong sign.
_FMOD = """
double q = __builtin_trunc(a / b), size = __builtin_fabs(b);
if (__builtin_isinf(b) && !__builtin_isinf(a)) return a;
double rest = __builtin_fma(-q, b, a);
if (rest != 0.0 && (rest < 0.0) != (a < 0.0)) rest += a < 0.0 ? -size : size;
return __builtin_copysign(rest, a);
"""


def _unary(name: str, body: str) -> tuple[str, str]:
    return function(name, "float", "float x", body)


_MATH_F32 = dict(
    (
        function("tw_exp_f64", "double", "double x", _EXP),
        function("tw_log2_f64", "double", "double x", _LOG2),
        function("tw_sin_quarter", "float", "double x, int quarter", _SIN_QUARTER),
        *(
            _unary(f"{name}f", f"return __builtin_{name}f(x);")
            for name in ("exp", "exp2", "log", "log2", "sqrt", "floor", "ceil", "rint", "fabs")
        ),
        _unary("rsqrtf", "return 1.0f / __builtin_sqrtf(x);"),
        _unary("tanhf", _TANH),
        _unary("erff", _ERF),
        one_plus_erf("__builtin_fmaf", "__builtin_fabsf", "__builtin_exp2f"),
        _unary("sinf", "return tw_sin_quarter(x, 0);"),
        _unary("cosf", "return tw_sin_quarter(x, 1);"),
        function("powf", "float", "float x, float y", _POW),
        function("fmod", "double", "double a, double b", _FMOD),
        function("fmodf", "float", "float a, float b", "return (float)fmod(a, b);"),
    )
)

_MATH_F64 = dict(
    (
        *(
            function(name, "double", "double x", f"return __builtin_{name}(x);")
            for name in ("sqrt", "floor", "ceil", "rint", "fabs")
        ),
        function("rsqrt", "double", "double x", "return 1.0 / __builtin_sqrt(x);"),
    )
)

# Operations on f64 that have no builtin and are not written here.
MISSING_F64 = frozenset(
    ("exp", "exp2", "log", "log2", "tanh", "sin", "cos", "erf", "one_plus_erf", "gelu", "pow"),
)

_F16_FROM = "return __builtin_bit_cast(tw_f16, (_Float16)x);"
_F16_TO = "return (float)__builtin_bit_cast(_Float16, x);"
_BF16_TO = "return __builtin_bit_cast(float, (unsigned)x << 16);"


def _fp8(name: str, top: str) -> tuple[tuple[str, str], ...]:
    """Conversions of an 8-bit float by the packed hardware conversion of its family."""
    builtin = "fp8" if name.startswith("f8e4m3") else "bf8"
    down = f"""
if (x == x) x = __builtin_amdgcn_fmed3f(x, {top}, -{top});
return (tw_{name})__builtin_amdgcn_cvt_pk_{builtin}_f32(x, 0.0f, 0, false);
"""
    up = f"return __builtin_amdgcn_cvt_f32_{builtin}((int)x, 0);"
    return (
        function(f"tw_{name}_from_f32", f"tw_{name}", "float x", down),
        function(f"tw_f32_from_{name}", "float", f"tw_{name} x", up),
        _through_odd(name),
    )


def _through_odd(name: str) -> tuple[str, str]:
    body = f"return tw_{name}_from_f32(tw_odd_f32(x));"
    return function(f"tw_{name}_from_f64", f"tw_{name}", "double x", body)


def _plain_extremum(name: str, sign: str) -> tuple[str, str]:
    return extremum(name, sign, f"return a != a ? a : b != b ? b : a {sign} b ? a : b;")


def _conversions() -> Mapping[str, str]:
    return dict(
        (
            function("tw_odd_f32", "float", "double x", _ODD),
            function("tw_f16_from_f32", "tw_f16", "float x", _F16_FROM),
            function("tw_f16_from_f64", "tw_f16", "double x", _F16_FROM),
            function("tw_f32_from_f16", "float", "tw_f16 x", _F16_TO),
            function("tw_bf16_from_f32", "tw_bf16", "float x", _BF16),
            function("tw_f32_from_bf16", "float", "tw_bf16 x", _BF16_TO),
            _through_odd("bf16"),
            *_fp8("f8e4m3", "448.0f"),
            *_fp8("f8e5m2", "57344.0f"),
            *_fp8("f8e4m3fnuz", "240.0f"),
            *_fp8("f8e5m2fnuz", "57344.0f"),
            *(rounded(name) for name in _NARROW),
        )
    )


PRELUDE: dict[str, str] = {
    **_TYPES,
    **_MATH_F32,
    **_MATH_F64,
    **COMMON,
    **_conversions(),
    **dict(
        (
            floor_division("a / b"),
            function("tw_inf", "float", "", "return __builtin_inff();"),
            function("tw_nan", "float", "", 'return __builtin_nanf("");'),
            _plain_extremum("tw_max", ">"),
            _plain_extremum("tw_min", "<"),
            gelu("__builtin_fmaf", "__builtin_fabsf", "__builtin_fmaxf", "__builtin_exp2f"),
            function("tw_barrier", "void", "", _BARRIER),
        )
    ),
    **{
        name: "template <class T>\n" + text
        for name, text in (
            function("tw_lane_read", "T", "T x, int lane", _LANE_READ),
            function("tw_lane_xor", "T", "T x, int mask", _LANE_XOR),
        )
    },
}
