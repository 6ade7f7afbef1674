"""What no proof models ends as unknown, of every kind, and never as proved."""

from __future__ import annotations

from tilewright.kernel.text import parse_kernel
from tilewright.lower.obligations import report, verify
from tilewright.poly.prove import Kind, Unknown
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


def test_unmodelled_statements_leave_every_obligation_open() -> None:
    found = verify(parse_kernel(KERNEL), SM_90A)
    assert {o.kind for o in found} == set(Kind)
    assert all(isinstance(o.result, Unknown) for o in found)
    assert report(found).startswith(f"0 proved, 0 refuted, 0 assumed, {len(Kind)} unknown")
    assert "InitPhases is not modelled yet" in report(found)


def test_the_same_without_them_is_proved() -> None:
    lines = (
        line for line in KERNEL.splitlines() if not line.strip().startswith(("init", "arr", "wait"))
    )
    found = verify(parse_kernel("\n".join(lines)), SM_90A)
    assert "0 refuted, 0 assumed, 0 unknown" in report(found)
