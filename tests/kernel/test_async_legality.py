"""Asynchronous statements: exact text, rewriting, and each rule against a kernel that breaks it."""

from __future__ import annotations

import pytest
from async_samples import PIPELINE, pipeline

from tilewright.base.diagnostics import KernelTextError, LegalityError
from tilewright.kernel.async_ops import AsyncStatement, BulkLoad, PhaseWait, WarpgroupMma
from tilewright.kernel.ops import walk
from tilewright.kernel.rewrite import substitute
from tilewright.kernel.rules_async import ASYNC
from tilewright.kernel.scopes import expressions
from tilewright.kernel.text import parse_kernel, print_kernel
from tilewright.kernel.verify import check
from tilewright.target.nvidia import SM_90A

COPY_A = "bulk load sa[ko % 2, 0, 0] = box_a[128*m + 64*rank, 64*ko] signals full[ko % 2]"
STORE_C = "bulk store box_c[128*m + 64*rank, 0] = sc[0, 0]"
TILE_A, TILE_B = "sa[ko % 2, 0, 16*kk](1, 2)", "sb[ko % 2, 0, 16*kk](1, 2)"
STMATRIX = "sc[g + 8*h + 16*w, 16*n + 2*p + 8*t]"

# rule, what to find in the text of the pipeline, what to put there, what the message must say
EDITS = [
    ("phases", "full: 2 arrivals 1", "full: 2 arrivals 0", "full has 2 barriers of 0 arrivals"),
    ("phases", "8 at 40976", "8 at 40980", "empty starts at byte 40980"),
    ("phases", "8 at 40976", "8 at 40968", r"full and empty overlap: bytes 40960\.\.40976"),
    ("phases", "8 at 40976", "8 at 32768", "sc and empty overlap"),
    ("phases", "8 at 40976", "8 at 232440", "empty ends at byte 232456"),
    ("phases", "init full, empty", "init full", "empty is used before it is initialised"),
    ("phases", "init full, empty", "init full, empty, full", "full is initialised twice"),
    ("phases", "init full, empty", "init full, nothing", "no phases nothing are declared"),
    ("phases", "  init full, empty", "  if m < 2:\n    init full, empty", "inside a loop or guard"),
    ("phases", "wait full[", "wait fill[", "no phases fill are declared"),
    ("phase-uses", "wait full[ko % 2]", "wait full[ko]", r"full is indexed 0\.\.3"),
    ("phase-uses", "expect 16384", "expect 16383", "16383 bytes are expected"),
    ("phase-uses", "in block 1", "in block 2", "block 2 of a cluster of 2"),
    ("phase-uses", "multicast 3", "multicast 4", "the mask 4 for a cluster of 2"),
    ("maps", "box_a: a box", "box_a: z box", "map box_a: no tensor z is declared"),
    ("maps", "a box [64, 64] swizzle 128", "a box [64, 64] swizzle 48", "a swizzle of 48 bytes"),
    ("maps", "a box [64, 64]", "a box [64, 128]", "rows of 256 bytes, not .* 16 up to 128"),
    ("maps", "a box [64, 64]", "a box [512, 64]", r"a box \[512, 64\] .* 1 to 256 long"),
    ("maps", "a box [64, 64]", "a box [64]", r"axes \[0\] of a tensor of 2 axes"),
    ("maps", "a box [64, 64] swizzle 128", "a box [64, 64] swizzle 128 axes [1, 0]",
     "the last axis has the stride 256"),
    ("maps", "strides [256, 1]", "strides [257, 1]", "a stride of 257 elements is no multiple"),
    ("maps", "strides [256, 1] align 16", "strides [256, 1] align 8", "aligned to 8 bytes"),
    ("bulk", "= box_a[", "= box_z[", "no map box_z is declared"),
    ("bulk", "box_a[128*m + 64*rank, 64*ko]", "box_a[64*ko]", "box_a has 2 axes, indexed by 1"),
    ("bulk", "in a:", "out a:", "a is read, but declared out"),
    ("bulk", "out c:", "in c:", "c is written, but declared in"),
    ("bulk", "load sa[ko % 2, 0, 0]", "load a[ko % 2, 0]", "a is not a shared buffer"),
    ("bulk", "shared sb: bf16", "shared sb: f16", "sb holds f16, b bf16"),
    ("bulk", "shared sa: bf16[2, 64, 64] swizzle(3, 3, 3)", "shared sa: bf16[2, 64, 64]",
     "sa has a swizzle of 0 bytes, box_a one of 128"),
    ("bulk", "shared sc: bf16[64, 64]", "shared sc: bf16[32, 128]", "not rows of 64 elements"),
    ("bulk", "load sa[ko % 2, 0, 0]", "load sa[ko % 2, 4, 0]", "at a multiple of 1024 bytes"),
    ("bulk", "load sa[ko % 2, 0, 0]", "load sa[ko % 2, 8, 0]", "may pass the end of sa"),
    ("remote", "arrive empty[ko % 2] in block 1",
     "remote store 3 sc[w, 8*g] in block 1 = out[0] signals empty[0]", "stores 6 bytes together"),
    ("warpgroup", "wgmma.m64n64k16.f32.bf16", "wgmma.m64n65k16.f32.bf16", "has no warpgroup atom"),
    ("warpgroup", "wgmma.m64n64k16.f32.bf16", "mma.sync.m16n8k16.f32.bf16", "no warpgroup atom"),
    ("warpgroup", "wgmma.m64n64k16.f32.bf16", "wgmma.m64n64k16.f32.bf16.rs", "a from registers"),
    ("warpgroup", "wgmma.m64n64k16.f32.bf16", "wgmma.m64n64k16.f32.f16", "holds bf16"),
    ("warpgroup", TILE_A, "out[0]", "takes a from shared memory"),
    ("warpgroup", TILE_A, "sa[ko % 2, 0, 16*kk](1, 1)", "sa has no axes 1, 1 apart"),
    ("warpgroup", TILE_A, "sa[ko % 2, 0, 16*kk](0, 1)", "neither rows nor depth run along"),
    ("warpgroup", TILE_A, "sa[ko % 2, 4, 16*kk](1, 2)", "axis 1 of sa is not .* steps of 8"),
    ("warpgroup", TILE_A, "sa[ko % 2, 0, 4*kk](1, 2)", "axis 2 of sa is not .* steps of 16"),
    ("warpgroup", TILE_A, "sa[ko % 2, 0, 16*kk](0, 2)", "do not follow one another along axis 0"),
    ("roles", "warpgroup wait 0", "warpgroup wait -1", "waits until -1 groups are pending"),
    ("roles", "registers grow 232", "registers grow 231", "231 registers"),
    ("roles", "named barrier 1 of", "named barrier m of", r"barrier 0\.\.3"),
    ("roles", "barrier 1 of 128", "barrier 1 of 120", "a barrier of 120 of 256 threads"),
    ("convergence", "warpgroup commit", "if w < 2:\n        warpgroup commit", "not all its w"),
    ("convergence", "    named barrier", "    if g < 2:\n     named barrier", "a warp-wide"),
    ("convergence", "  cluster arrive  //", "  if role == 0:\n    cluster arrive  //", "whole"),
    ("matrix-load", "via x4(row", "via x8(row", "sm_90a has no matrix store x8"),
    ("matrix-load", "n < 4, t < 2, h < 2", "n < 4, t < 2, h < 1", "x4 stores 4 tiles, not 2"),
    ("matrix-load", STMATRIX, "sc[g + 8*h, 16*n + 2*p + 8*t + 4]", "not start at multiples of 8"),
    ("scope", "multicast 3", "multicast z", "z is not in scope"),
    ("register-bounds", "d[0] +=", "d[8] +=", r"axis 0 of d is indexed 8\.\.39"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "old", "new", "message"), EDITS)
def test_an_edited_pipeline_is_refused(rule: str, old: str, new: str, message: str) -> None:
    assert old in PIPELINE
    kernel = parse_kernel(PIPELINE.replace(old, new, 1))
    with pytest.raises(LegalityError, match=message) as caught:
        check(kernel, SM_90A)
    assert caught.value.diagnostic.message.startswith(f"{rule}: ")


def test_every_asynchronous_rule_has_a_kernel_that_breaks_it() -> None:
    assert {rule.name for rule in ASYNC} <= {rule for rule, *_ in EDITS}


def test_the_sample_is_legal() -> None:
    check(pipeline(), SM_90A)


def test_the_text_is_exact() -> None:
    assert print_kernel(pipeline()) == PIPELINE
    assert parse_kernel(print_kernel(pipeline())) == pipeline()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("cluster wait", "cluster arrive"),
        ("warpgroup wait 0", "warpgroup wait 1"),
        ("bulk wait 0", "bulk wait 1 read"),
        ("named barrier", "named arrive"),
        (" swizzle 128", " swizzle 64 axes [1, 0]"),
        (TILE_B, "sb[0, 16*kk, 0](2, 1, 0)"),
        (TILE_A, "out[8*kk]"),
    ],
)
def test_other_forms_come_back_from_text(old: str, new: str) -> None:
    text = PIPELINE.replace(old, new, 1)
    assert text != PIPELINE
    assert print_kernel(parse_kernel(text)) == text


def test_a_word_that_does_not_belong_is_named() -> None:
    with pytest.raises(KernelTextError, match="expected 'grow' or 'shrink', found 'keep'"):
        parse_kernel(PIPELINE.replace("registers grow", "registers keep"))


def test_substitution_reaches_every_expression() -> None:
    """After ko := 1 no statement of the loops mentions ko, and the copies read the second slice."""
    loops = substitute(pipeline().body, {"ko": 1, "m": 2, "rank": 1})
    left = {
        name
        for statement in walk(loops)
        if isinstance(statement, AsyncStatement)
        for expr in expressions(statement)
        for name in expr.variables()
    }
    assert left <= {"kk"}
    found = {type(s): s for s in walk(loops) if isinstance(s, BulkLoad | PhaseWait | WarpgroupMma)}
    load, mma = found[BulkLoad], found[WarpgroupMma]
    assert isinstance(load, BulkLoad)
    assert [str(e) for e in load.coordinates] == ["0", "64"]
    assert isinstance(mma, WarpgroupMma)
    assert [str(e) for e in mma.b.index] == ["1", "0", "16*kk"]
