"""Kernels with asynchronous statements, as text."""

from __future__ import annotations

from tilewright.kernel.ops import Kernel
from tilewright.kernel.text import parse_kernel

# c = a b^T by one producer and one consumer warpgroup, in clusters of two that share b's tile.
PIPELINE = """\
kernel pipeline target sm_90a warps 8x32 grid [8] cluster 2
  in a: bf16[512, 256] strides [256, 1] align 16
  in b: bf16[64, 256] strides [256, 1] align 16
  out c: bf16[512, 64] strides [64, 1] align 16
  shared sa: bf16[2, 64, 64] swizzle(3, 3, 3) at 0
  shared sb: bf16[2, 64, 64] swizzle(3, 3, 3) at 16384
  shared sc: bf16[64, 64] swizzle(3, 3, 3) at 32768
  phases full: 2 arrivals 1 at 40960
  phases empty: 2 arrivals 8 at 40976
  map box_a: a box [64, 64] swizzle 128
  map box_b: b box [64, 64] swizzle 128
  map box_c: c box [64, 64] swizzle 128
  reg d: f32[32]
  reg out: bf16[32]
  decode block -> m: 4, rank: 2
  decode thread -> role: 2, w: 4, g: 8, p: 4
  init full, empty
  cluster arrive  // the peer's barriers are ready
  cluster wait
  if role == 0:
    registers shrink 40
    if w == 0 and g == 0 and p == 0:
      loop ko < 4:
        wait empty[ko % 2] parity ko / 2 + 1
        arrive full[ko % 2] expect 16384
        bulk load sa[ko % 2, 0, 0] = box_a[128*m + 64*rank, 64*ko] signals full[ko % 2]
        if rank == 0:
          bulk load sb[ko % 2, 0, 0] = box_b[0, 64*ko] signals full[ko % 2] multicast 3  // for both
  if role == 1:
    registers grow 232
    loop ko < 4:
      wait full[ko % 2] parity ko / 2
      warpgroup fence
      for kk < 4: warpgroup mma wgmma.m64n64k16.f32.bf16 d[0] += sa[ko % 2, 0, 16*kk](1, 2) * \
sb[ko % 2, 0, 16*kk](1, 2) reduces k[16*kk + 64*ko] of 256 if 0 < kk + 4*ko
      warpgroup commit
      warpgroup wait 0
      if g == 0 and p == 0:
        arrive empty[ko % 2] in block 0
        arrive empty[ko % 2] in block 1
    for x < 32: out[x] = bf16(d[x])
    for n < 4, t < 2, h < 2: store 2 via x4(row g, column p, tiles t, h) \
sc[g + 8*h + 16*w, 16*n + 2*p + 8*t] = out[2*h + 8*n + 4*t]
    proxy fence
    named barrier 1 of 128
    if w == 0 and g == 0 and p == 0:
      bulk store box_c[128*m + 64*rank, 0] = sc[0, 0]
      bulk commit
      bulk wait 0
  cluster arrive
  cluster wait
"""


def pipeline() -> Kernel:
    return parse_kernel(PIPELINE)
