"""Kernels with asynchronous statements are proved like others in what concerns no order."""

from __future__ import annotations

from tilewright.kernel.text import parse_kernel
from tilewright.lower.obligations import report, verify
from tilewright.poly.prove import Kind, Proved
from tilewright.target.nvidia import SM_90A

KERNEL = """\
kernel turn target sm_90a warps 4x32 grid [1]
  out c: f32[128] strides [1] align 16
  phases ready: 1 arrivals 128 at 0
  reg r: f32[1]
  decode thread -> t: 128
  init ready
  barrier
  r[0] = 0.0:f32
  store c[t] = r[0]
  arrive ready[0]
  wait ready[0] parity 0
"""


def test_what_concerns_no_order_is_proved_beside_phases() -> None:
    found = verify(parse_kernel(KERNEL), SM_90A)
    relations = (Kind.COVERAGE, Kind.BOUNDS, Kind.UNWRITTEN, Kind.INDEX_WIDTH, Kind.DECODE)
    for kind in relations:
        own = [o.result for o in found if o.kind is kind]
        assert own, kind
        assert all(isinstance(r, Proved) for r in own), kind


def test_the_same_without_them_is_proved() -> None:
    lines = (
        line for line in KERNEL.splitlines() if not line.strip().startswith(("init", "arr", "wait"))
    )
    found = verify(parse_kernel("\n".join(lines)), SM_90A)
    assert "0 refuted, 0 assumed, 0 unknown" in report(found)
