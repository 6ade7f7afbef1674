"""The legality table: each rule against a kernel that breaks it, made by editing a legal one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sample_kernels import gemm, row_sum

from tilewright.base.diagnostics import LegalityError
from tilewright.base.spans import Span
from tilewright.kernel.ops import Kernel, Store
from tilewright.kernel.rules_async import ASYNC
from tilewright.kernel.rules_exchange import EXCHANGE
from tilewright.kernel.text import parse_kernel, print_kernel
from tilewright.kernel.verify import RULES, check
from tilewright.target import target_named

LOAD_A = "ra[2*i + 4*kh] = sa[g + 8*i + 16*wm, 8*kh + 16*kk + 2*t]"
LOAD = "load v[0] = x[m, l + 64*no]"
MMA = "acc[j, 0] += ra[0] * rb[j, 0]"

# rule, what to find in the text of the gemm, what to put there, what the message must say
GEMM_EDITS = [
    ("names", "reg ra", "reg sa", "sa is declared twice"),
    ("names", "symbol M >= 1\n", "symbol M >= 1\n  symbol lane >= 1\n", "lane means something"),
    ("shapes", "strides [N, 1]", "strides [1]", "tensor c has 2 extents and 1 strides"),
    ("shapes", "reg out: f16[8, 4]", "reg out: f16[8, 0]", r"out has the shape \[8, 0\]"),
    ("shapes", "align 16 index 32", "align 12 index 32", "aligned to 12 bytes"),
    ("shapes", "index 32", "index 48", "tensor c has 48 index bits"),
    ("shapes", "pitch 40", "pitch 24", "shared sb has pitch 24 under rows of 32"),
    ("shapes", "symbol N >= 1 multiple 2", "symbol N >= 1 multiple 0", "symbol N: .* multiple 0"),
    ("shapes", "grid [(M + 63) / 64, (N + 63) / 64]", "grid []", "the grid has no axis"),
    ("sizes", "strides [N, 1]", "strides [Q, 1]", "tensor c depends on Q"),
    ("sizes", "grid [(M", "grid [(P", "the grid depends on P"),
    ("target", "target sm_90a", "target gfx942", "the kernel is for gfx942"),
    ("target", "warps 4x32", "warps 4x64", "warps of 64 lanes; sm_90a has 32"),
    ("threads", "warps 4x32", "warps 40x32", "40 warps of 32 lanes are 1280 threads"),
    ("shared-memory", "at 4096", "at 4001", "sb starts at byte 4001"),
    ("shared-memory", "at 4096", "at 4000", "sa and sb overlap: bytes 0..4096 and 4000..9120"),
    ("shared-memory", "at 4096", "at 229000", "sb ends at byte 234120"),
    ("swizzle", "swizzle(2, 3, 3)", "swizzle(4, 3, 3)", r"swizzle\(4, 3, 3\) of sa is no perm"),
    ("swizzle", "sb: f16[64, 32]", "sb: f16[63, 32] swizzle(3, 5, 3)", "leaves the buffer"),
    ("binding", "loop ko", "loop wm", "wm is bound already"),
    ("binding", "decode warp -> wm: 4", "decode warp -> M: 4", "M is bound already"),
    ("binding", "for j < 8, r < 4: acc", "for j < 8, j < 4: acc", "j is bound already"),
    ("binding", "for j < 8, r < 4: acc", "for j < 8, r < 0: acc", "r has the extent 0"),
    ("binding", "for j < 8, r < 4: acc", "for lane < 8, r < 4: acc", "'lane' cannot name"),
    ("scope", "sa[p + 32*r, 8*q]", "sa[p + 32*z, 8*q]", "z is not in scope"),
    ("scope", "out[j, 2*i] if g", "out[j, 2*i] if ko", "ko is not in scope"),
    ("scope", "sa[p + 32*r, 8*q]", "sa[thread + 32*r, 8*q]", "thread is used as a variable"),
    ("scope", "decode warp ->", "decode warp + z ->", "z is not in scope"),
    ("decode", "g: 8, t: 4", "g: 8, t: 8", "lane takes 32 values, its digits 64"),
    ("decode", "g: 8, t: 4", "g: 8, t: 0", "a digit of extent 0"),
    ("references", MMA, MMA.replace("ra", "rz"), "no fragment rz is declared"),
    ("references", MMA, MMA.replace("ra[0]", "ra[0, 0]"), "ra has 1 axes, indexed by 2"),
    ("references", "= a[64*mo + p", "= z[64*mo + p", "no tensor or shared buffer z"),
    ("references", "copy 8 sa[p + 32*r", "copy 8 b[p + 32*r", "b is not a shared buffer"),
    ("references", "0.0:f32", "beta:f32", "no scalar beta is declared"),
    ("modes", "out c", "in c", "c is written, but declared in"),
    ("modes", "in a:", "out a:", "a is read, but declared out"),
    ("register-index", "acc[j, r] = 0", "acc[wm, r] = 0", "acc is indexed by wm, a decoded digit"),
    ("register-index", MMA, MMA.replace("ra[0]", "ra[8*ko]"), "ra is indexed by ko, a loop"),
    ("register-bounds", "acc[j, r] = 0", "acc[j, r + 1] = 0", r"axis 1 of acc is indexed 1\.\.4"),
    ("register-bounds", MMA, MMA.replace("ra[0]", "ra[8]"), r"axis 0 of ra is indexed 8\.\.15"),
    ("register-bounds", "rb[j, 2*kh] =", "rb[j, 2*kh + 1] =", r"axis 1 of rb is indexed 1\.\.4"),
    ("unroll", "unroll kk < 2", "unroll kk < (K + 15) / 16", r"the extent is \(K \+ 15\) / 16"),
    ("convergence", "loop ko < (K + 31) / 32", "loop ko < g", "the extent differs between"),
    ("convergence", "    barrier\n", "    if g < 3:\n      barrier\n", "a barrier under a guard"),
    ("convergence", "    barrier\n", "    if wm < 3:\n      barrier\n", "a barrier under a guard"),
    ("convergence", "      for j < 8: mma", "      if t == 0:\n       for j < 8: mma", "warp-wide"),
    ("convergence", "      for kh < 2, i", "      if t == 0:\n       for kh < 2, i", "warp-wide"),
    ("values", "0.0:f32", "true:f32", "True is no f32"),
    ("values", "f16(acc[j, r])", "f16(acc[j, r]:f16)", "read as f16, declared f32"),
    ("values", "f16(acc[j, r])", "acc[j, r] + out[j, r]", "operands of types f32 and f16"),
    ("values", "f16(acc[j, r])", "gamma(acc[j, r]):f16", "there is no operation gamma"),
    ("values", "f16(acc[j, r])", "exp(out[j, r], out[j, r])", "exp takes 1 operands, not 2"),
    ("values", "f16(acc[j, r])", "exp(3:i32)", "exp does not exist for i32"),
    ("values", "f16(acc[j, r])", "exp(acc[j, r]):f16", "gives f32, not f16"),
    ("values", "f16(acc[j, r])", "select(1:i32, out[j, r], out[j, r])", "the condition is i32"),
    ("values", "f16(acc[j, r])", "f16(index(g):f32)", "an index is an integer, not f32"),
    ("values", "f16(acc[j, r])", "f16(300:i8)", "300 is no i8"),
    ("values", "f16(acc[j, r])", "f16(holds(g < 3):f16)", "a guard is a bool, not f16"),
    ("values", "f16(acc[j, r])", "f16(bool(acc[j, r]))", "no conversion gives bool"),
    ("moves", "f16(acc[j, r])", "acc[j, r]", "f32 where f16 is needed"),
    ("moves", "reg rb: f16", "reg rb: f32", "f16 where f32 is needed"),
    ("moves", "out c: f16", "out c: f32", "f16 where f32 is needed"),
    ("moves", "shared sa: f16", "shared sa: i16", "f16 where i16 is needed"),
    ("moves", "16*kk + 2*t]\n", "16*kk + 2*t] else true\n", "the fill True is no f16"),
    ("vectors", "load 2 rb[j, 2*kh]", "load 3 rb[j, kh]", "3 elements, not a power of two"),
    ("vectors", "[M, N] strides [N, 1]", "[M, N] strides [N, 2]", "the stride 2"),
    ("vectors", "= out[j, 2*i] if", "= out[j, 2*i] axis 0 if", "axis 0 of c has the stride N"),
    ("vectors", "= out[j, 2*i] if", "= out[j, 2*i] axis 2 if", "c has 2 axes, not an axis 2"),
    ("alignment", "symbol N >= 1 multiple 2", "symbol N >= 1", "in c is a multiple of 1 elements"),
    ("alignment", "pitch 40", "pitch 41", "the offset in sb is a multiple of 1 elements"),
    ("alignment", "2*t] = out", "t] = out", "the offset in c is a multiple of 1 elements"),
    ("async-copy", "copy 8 sa", "copy sa", "copies 2 bytes at a time"),
    ("async-copy", "[K, 1] align 16", "[K, 1] align 8", "a is aligned to 8 bytes of 16"),
    ("async-copy", "swizzle(2, 3, 3)", "swizzle(2, 2, 3)", "swizzled in pieces of 4 elements"),
    ("async-copy", "at 4096", "at 4104", "sb starts at byte 4104, not a multiple of 16"),
    ("async-copy", "wait 0", "wait -1", "waits until -1 groups are pending"),
    ("matrix-load", "via x4(", "via x8(", "sm_90a has no matrix load x8"),
    ("matrix-load", "row g, column t", "row t, column g", "are not the lane's last digits"),
    ("matrix-load", "row g, column t", "row p, column q", "are not the lane's last digits"),
    ("matrix-load", "tiles kh, i", "tiles i", "x4 loads 4 tiles, not 2"),
    ("matrix-load", "tiles kh, i", "tiles kh, g", "g is not an unrolled digit"),
    ("matrix-load", LOAD_A, LOAD_A + " if mo < M", "a matrix load takes no guard"),
    ("matrix-load", LOAD_A, LOAD_A.replace("2*t", "4*t"), "do not start at multiples of 8"),
    ("matrix-load", LOAD_A, LOAD_A.replace("8*kh", "4*kh"), "do not start at multiples of 8"),
    ("matrix-load", LOAD_A, LOAD_A.replace("sa[g", "sa[t"), "axis 0 of sa does not follow t"),
    ("matrix-load", LOAD_A, LOAD_A + " axis 0", "x4 gives pairs along the memory's rows"),
    ("matrix-load", "via x4(", "via x4.trans(", "x4.trans gives pairs across the memory's rows"),
    ("matrix-load", LOAD_A, LOAD_A.replace("sa", "a"), "a is not in shared memory"),
    ("atoms", "m16n8k16.f32.f16", "m16n8k64.f32.f16", "sm_90a has no atom mma.sync.m16n8k64"),
    ("atoms", "mma.sync.m16n8k16.f32.f16", "wgmma.m64n8k16.f32.f16", "reads shared memory"),
    ("atoms", "m16n8k16.f32.f16", "m16n8k16.f32.bf16", "a is ra of f16, .* takes bf16"),
    ("atoms", "reg ra: f16[8]", "reg ra: f16[12]", "a takes 8 registers, .* ra has 12"),
    ("registers", "reg acc: f32[8, 4]", "reg acc: f32[64, 4]", "fragments occupy 27. registers"),
]  # fmt: skip

SCANS = "s[0] = 0.0:f32 scans {} term N[{}] of N at [m]"
ROW_SUM_EDITS = [
    ("reduce", "s[0] = 0.0:f32", SCANS.format("sub", "l"), "sub does not scan"),
    ("scope", "s[0] = 0.0:f32", SCANS.format("add", "q"), "q is not in scope"),
    ("reduce", "s[0] add= ", "s[0] sub= ", "sub is not a reduction"),
    ("reduce", "s[0] add= ", "s[j] add= ", "j is reduced along, but s keeps it"),
    ("shuffle", "lane_xor(s[0], 32)", "lane_xor(s[0], 64)", "the mask is 64"),
    ("shuffle", "lane_xor(s[0], 1)", "lane_xor(s[0], 0)", "the mask is 0"),
    ("shuffle", "lane_xor(s[0], 1)", "lane_read(s[0], l + 1)", r"the lane is 1\.\.64"),
    ("convergence", "when index(m):i32", "when index(l):i32", "the condition differs"),
    ("convergence", "    store", "    s[0] = lane_xor(s[0], 1)\n    store", "warp-wide operation"),
    ("gathers", LOAD, "load v[0] = x[0, l] gather 0 by s[0]", "s of f32 is an index"),
    ("gathers", LOAD, f"{LOAD} gather 0 by at[0]", "axis 0 of x has an index besides the data"),
    ("gathers", LOAD, f"{LOAD} gather 2 by at[0]", "x has no axis 2 of its own for an index"),
    ("gathers", LOAD, "load v[0] = x[0, 0] gather 0 by at[0], 0 by at[0]", "no axis 0 of its own"),
    ("gathers", LOAD, "load 2 v[0] = x[0, 0] gather 1 by at[0]", "a vector runs along axis 1"),
    ("moves", "when index(m):i32 == 0:i32", "when index(m):i32", "i32 where bool is needed"),
    ("async-copy", "    load v", "    async copy v2[l] = x[m, l + 64*no]\n    load v",
     "expected: no such copy on gfx942"),
]  # fmt: skip


def refuse(kernel: Kernel, rule: str, message: str) -> LegalityError:
    with pytest.raises(LegalityError, match=message) as caught:
        check(kernel, target_named("gfx942" if kernel.name == "row_sum" else "sm_90a"))
    assert caught.value.diagnostic.message.startswith(f"{rule}: ")
    return caught.value


def edited(kernel: Kernel, old: str, new: str) -> Kernel:
    text = print_kernel(kernel)
    assert old in text
    return parse_kernel(text.replace(old, new, 1))


@pytest.mark.parametrize("kernel", [gemm(), row_sum()], ids=lambda k: k.name)
def test_the_samples_are_legal(kernel: Kernel) -> None:
    check(kernel, target_named(kernel.target))


@pytest.mark.parametrize(("rule", "old", "new", "message"), GEMM_EDITS)
def test_an_edited_gemm_is_refused(rule: str, old: str, new: str, message: str) -> None:
    refuse(edited(gemm(), old, new), rule, message)


@pytest.mark.parametrize(("rule", "old", "new", "message"), ROW_SUM_EDITS)
def test_an_edited_reduction_is_refused(rule: str, old: str, new: str, message: str) -> None:
    kernel = row_sum()
    if "v2" in new:
        kernel = edited(kernel, "  reg v:", "  shared v2: f32[64] at 0\n  reg v:")
    if "by at" in new:
        kernel = edited(kernel, "reg v: f32[1]", "reg at: i32[1]\n  reg v: f32[2]")
    refuse(edited(kernel, old, new), rule, message)


def test_every_rule_has_a_kernel_that_breaks_it() -> None:
    broken = {rule for rule, *_ in (*GEMM_EDITS, *ROW_SUM_EDITS)}
    # `test_async_legality` and `test_exchange_legality` have theirs.
    elsewhere = {rule.name for rule in (*ASYNC, *EXCHANGE)}
    assert broken == {rule.name for rule in RULES} - elsewhere


def test_a_vector_has_a_widest_width() -> None:
    kernel = edited(row_sum(), "reg v: f32[1]", "reg v: f32[8]")
    kernel = edited(kernel, "load v[0] = x[m, l + 64*no]", "load 8 v[0] = x[m, 8*l + 64*no]")
    error = refuse(kernel, "vectors", "a vector of 32 bytes")
    assert error.diagnostic.expected == "at most 16 bytes on gfx942"


def test_names_that_text_cannot_spell_are_refused() -> None:
    kernel = row_sum()
    odd = replace(kernel.registers[0], name="a b")
    refuse(replace(kernel, registers=(odd, *kernel.registers[1:])), "names", "'a b' is not a name")


# b as the memory has it for a product with b[k, n]: rows of k, eight n side by side.
TRANSPOSED = "for kh < 2, j < 2: load 2 via x4.trans(row g, column t, tiles j, kh) {} = {}"
TRANSPOSED_DST = "rb[j, 2*kh]"
TRANSPOSED_SRC = "sb[8*kh + 16*kk + 2*t, 8*j + g] axis 0"


def transposed(dst: str = TRANSPOSED_DST, src: str = TRANSPOSED_SRC) -> Kernel:
    old = "for j < 8, kh < 2: load 2 rb[j, 2*kh] = sb[g + 8*j, 8*kh + 16*kk + 2*t]"
    return edited(gemm(), old, TRANSPOSED.format(dst, src))


def test_a_transposed_matrix_load_runs_across_the_rows() -> None:
    check(transposed(), target_named("sm_90a"))


@pytest.mark.parametrize(
    ("src", "message"),
    [
        ("sb[8*kh + 16*kk + 2*t, 8*j + g]", "x4.trans gives pairs across the memory's rows"),
        ("sb[8*kh + 16*kk + t, 8*j + g] axis 0", "axis 0 of sb does not follow t"),
        ("sb[8*kh + 16*kk + 2*t + 8*g, 8*j + g] axis 0", "axis 0 of sb does not follow g"),
        ("sb[8*kh + 16*kk + 2*t, 4*j + g] axis 0", "do not start at multiples of 8"),
        ("sb[8*kh + 16*kk + 2*t, 8*j + 2*g] axis 0", "do not start at multiples of 8"),
    ],
)
def test_a_bent_transposed_matrix_load_is_refused(src: str, message: str) -> None:
    refuse(transposed(src=src), "matrix-load", message)


def test_a_refusal_shows_the_users_line_the_statement_and_a_mend(tmp_path: Path) -> None:
    file = tmp_path / "user.py"
    file.write_text("x = tw.write(c)\n")
    kernel = edited(gemm(), "symbol N >= 1 multiple 2", "symbol N >= 1")
    *before, store = kernel.body
    assert isinstance(store, Store)
    marked = replace(store, span=Span(str(file), 1, 4, 15))
    text = str(refuse(replace(kernel, body=(*before, marked)), "alignment", "offset in c"))
    assert "1 | x = tw.write(c)\n  |     ^^^^^^^^^^^" in text
    assert "note: in kernel gemm: for j < 8, i < 2: store 2 c[g + 8*i" in text
    assert "expected: a multiple of 2" in text
    assert "mend: use a narrower vector, or declare a symbol's multiple" in text
