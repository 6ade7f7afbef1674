"""Rewriting and simplification: what comes out, and that it touches the same elements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_strategies import kernels
from sample_kernels import e, gemm, row_sum

from tilewright.base.dtypes import f32
from tilewright.base.spans import Span
from tilewright.kernel import ops
from tilewright.kernel.passes import simplify
from tilewright.kernel.rewrite import map_expressions, rewrite, strip_spans, substitute
from tilewright.kernel.text import parse_kernel, print_kernel
from tilewright.kernel.verify import check
from tilewright.poly.expr import Constraint, Guard, less
from tilewright.target import target_named

HEAD = """\
kernel k target sm_90a warps 2x32 grid [(M + 63) / 64, 2]
  symbol M >= 1 multiple 64
  symbol N >= 1
  symbol P >= 1
  require P <= 16
  in x: f32[M, N] strides [N, 1] align 4
  out y: f32[M, N] strides [N, 1] align 4
  shared s: f32[64, 4] at 0
  reg r: f32[4]
  decode block -> mo: (M + 63) / 64, no: 2
  decode thread -> w: 2, g: 8, t: 4
"""
SIZES = {"M": 128, "N": 3, "P": 5}


def kernel(body: str) -> ops.Kernel:
    return parse_kernel(HEAD + body)


def body_text(k: ops.Kernel) -> str:
    return print_kernel(k).split("t: 4\n", 1)[1]


# ---------------------------------------------------------------- an enumeration of a kernel

Env = dict[str, int]


def holds(guard: Guard, env: Env) -> bool:
    def one(c: Constraint) -> bool:
        value = c.expr.evaluate(env)
        return value == 0 if c.equality else value >= 0

    return all(one(c) for c in guard)


def touched(k: ops.Kernel, sizes: Env) -> list[tuple[object, ...]]:
    """What every thread reads and writes, in order, with the values' guards decided."""
    found: list[tuple[object, ...]] = []
    grid = [extent.evaluate(sizes) for extent in k.grid]
    for block, thread in product(range(prod(grid)), range(k.threads)):
        counters = {
            "block": block, "thread": thread,
            "warp": thread // k.warp_size, "lane": thread % k.warp_size,
        }  # fmt: skip
        found += [(block, thread, *event) for event in events(k.body, {**sizes, **counters})]
    return found


def events(body: ops.Body, env: Env) -> Iterator[tuple[object, ...]]:
    env = dict(env)
    for s in body:
        match s:
            case ops.Decode():
                rest = s.source.evaluate(env)
                for name, extent in reversed(s.digits):
                    rest, env[name] = divmod(rest, extent.evaluate(env))
            case ops.Loop():
                for value in range(s.extent.evaluate(env)):
                    yield from events(s.body, {**env, s.var: value})
            case ops.If():
                if holds(s.guard, env):
                    yield from events(s.body, env)
            case ops.When():
                yield ("when", *meaning(s.condition, env))
                yield from events(s.body, env)
            case ops.AsyncCommit() | ops.AsyncWait() | ops.Barrier():
                yield (type(s).__name__,)
            case _:
                along = s.along if isinstance(s, ops.Reduce) else ()
                for digits in product(*(range(n) for _, n in (*s.over, *along))):
                    names = (name for name, _ in (*s.over, *along))
                    yield from instance(s, {**env, **dict(zip(names, digits, strict=True))})


def at(ref: ops.RegRef | ops.MemRef, env: Env) -> tuple[object, ...]:
    return (ref.name, *(index.evaluate(env) for index in ref.index))


def instance(s: ops.Statement, env: Env) -> Iterator[tuple[object, ...]]:
    match s:
        case ops.Load():
            yield ("load", at(s.dst, env), at(s.src, env) if holds(s.guard, env) else s.fill)
        case ops.AsyncCopy():
            yield ("copy", at(s.dst, env), at(s.src, env) if holds(s.guard, env) else 0)
        case ops.Store():
            if holds(s.guard, env):
                yield ("store", at(s.dst, env), at(s.src, env))
        case ops.Mma():
            yield ("mma", at(s.d, env), at(s.a, env), at(s.b, env), *reduced(s.reduces, env))
        case ops.Assign():
            yield ("assign", at(s.dst, env), *meaning(s.value, env))
        case ops.Reduce():
            terms = reduced(s.reduces, env)
            yield ("reduce", s.op, at(s.dst, env), *meaning(s.value, env), *terms)
        case _:
            raise AssertionError(s)


def reduced(axes: tuple[ops.ReducedAxis, ...], env: Env) -> list[int]:
    return [r.coordinate.evaluate(env) for r in axes]


def meaning(v: ops.Value, env: Env) -> Iterator[object]:
    """The value with guards decided and selections by them taken: comparable across passes."""
    match v:
        case ops.Apply("select", (condition, yes, no)):
            decided = list(meaning(condition, env))
            if decided in ([True], [False]):
                yield from meaning(yes if decided[0] else no, env)
            else:
                yield from ("select", *decided, *meaning(yes, env), *meaning(no, env))
        case ops.Apply(op, args):
            yield op
            for arg in args:
                yield from meaning(arg, env)
        case ops.Cast(inner, dtype):
            yield from (dtype, *meaning(inner, env))
        case ops.Holds(guard):
            yield holds(guard, env)
        case ops.IndexValue(expr):
            yield expr.evaluate(env)
        case ops.Read(ref) | ops.LaneXor(ref):
            yield (*at(ref, env), v) if isinstance(v, ops.LaneXor) else at(ref, env)
        case ops.Const(number):
            yield number
        case ops.ScalarValue(name):
            yield name
        case ops.LaneRead(ref, lane):
            yield (*at(ref, env), lane.evaluate(env))


# ---------------------------------------------------------------- simplification

# (before, after): bodies under HEAD
CASES = [
    pytest.param("  if g < 8:\n    barrier\n", "  barrier\n", id="a guard that holds"),
    pytest.param("  if g < 7:\n    barrier\n", "  if g < 7:\n    barrier\n", id="one that may not"),
    pytest.param("  if 8 <= g:\n    barrier\n", "", id="one that never holds"),
    pytest.param(
        "  if g < 8 and t < 3:\n    barrier\n", "  if t < 3:\n    barrier\n", id="one of two"
    ),
    pytest.param("  if t + 4 == g:\n    barrier\n", "  if t + 4 == g:\n    barrier\n", id="eq"),
    pytest.param("  if 8 + t == g:\n    barrier\n", "", id="an equality that never holds"),
    pytest.param(
        "  load r[0] = x[64*mo + 32*w + 4*g + t, 0] if 64*mo + 32*w + 4*g + t < M\n",
        "  load r[0] = x[4*g + 64*mo + t + 32*w, 0]\n",
        id="a tile of a symbol's multiple",
    ),
    pytest.param(
        "  load r[0] = x[64*mo, 0] if 64*mo + 64 < M\n",
        "  load r[0] = x[64*mo, 0] if 64*mo + 64 < M\n",
        id="the next tile may be outside",
    ),
    pytest.param(
        "  loop k < (N + 3) / 4:\n    load r[0] = x[0, t + 4*k] if t + 4*k < N\n",
        "  loop k < (N + 3) / 4:\n    load r[0] = x[0, 4*k + t] if 4*k + t < N\n",
        id="the last tile of a plain symbol",
    ),
    pytest.param(
        "  loop k < N:\n    loop h < k + 1:\n      load r[0] = x[0, h] if h < N\n",
        "  loop k < N:\n    loop h < k + 1:\n      load r[0] = x[0, h]\n",
        id="an extent that depends on an outer counter",
    ),
    pytest.param("  if P < 17:\n    barrier\n", "  barrier\n", id="a contract"),
    pytest.param("  if N < 17:\n    barrier\n", "  if N < 17:\n    barrier\n", id="no contract"),
    pytest.param(
        "  loop k < 1:\n    load r[k] = x[g + k, k]\n", "  load r[0] = x[g, 0]\n", id="loop of one"
    ),
    pytest.param("  loop k < 0:\n    barrier\n", "", id="loop of none"),
    pytest.param(
        "  loop k < 1:\n    decode t + k -> u: 4\n    load r[0] = x[u, 0]\n",
        "  loop k < 1:\n    decode k + t -> u: 4\n    load r[0] = x[u, 0]\n",
        id="a loop of one that declares",
    ),
    pytest.param(
        "  for i < 1, j < 4: load r[i + j] = x[0, 0] if j < 4 + i\n",
        "  for j < 4: load r[j] = x[0, 0]\n",
        id="digits of one",
    ),
    pytest.param("  store y[0, 0] = r[0] if t < 0\n", "", id="a store that never happens"),
    pytest.param(
        "  r[0] = select(holds(g < 8), 1.0:f32, 2.0:f32)\n"
        "  r[1] = select(holds(g < 4), 1.0:f32, 2.0:f32)\n"
        "  r[2] = select(holds(8 < g), 1.0:f32, 2.0:f32)\n",
        "  r[0] = 1.0:f32\n"
        "  r[1] = select(holds(g < 4), 1.0:f32, 2.0:f32)\n"
        "  r[2] = 2.0:f32\n",
        id="selections",
    ),
    pytest.param(
        "  along j < 4: r[0] max= select(holds(j < 4 and j < N), r[j], 0.0:f32)\n",
        "  along j < 4: r[0] max= select(holds(j < N), r[j], 0.0:f32)\n",
        id="a reduction's term",
    ),
    pytest.param(
        "  async copy s[g, t] = x[g, t] if t < 4\n  async commit\n",
        "  async copy s[g, t] = x[g, t]\n  async commit\n",
        id="a copy",
    ),
    pytest.param(
        "  if g % 2 < 2 and (g + 1) / 8 < 1:\n    barrier\n",
        "  if (g + 1) / 8 < 1:\n    barrier\n",
        id="division and remainder",
    ),
    pytest.param(
        "  if g < 8:\n    if t < 4:\n      loop k < 1:\n        store y[k, t] = r[k]\n",
        "  store y[0, t] = r[0]\n",
        id="nested",
    ),
    pytest.param("  loop k < 4:\n    if g < 0:\n      barrier\n", "", id="an emptied loop"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), CASES)
def test_simplify_gives_the_stated_code(before: str, after: str) -> None:
    assert body_text(simplify(kernel(before))) == after


@pytest.mark.parametrize(("before", "after"), CASES)
def test_simplify_touches_the_same_elements(before: str, after: str) -> None:
    original, result = kernel(before), simplify(kernel(before))
    assert touched(result, SIZES) == touched(original, SIZES)


@pytest.mark.parametrize("build", [gemm, row_sum])
def test_simplified_samples_are_legal_and_touch_the_same(build) -> None:
    original = build()
    result = simplify(original)
    check(result, target_named(original.target))
    sizes = {"M": 65, "N": 24, "K": 40}
    assert touched(result, sizes) == touched(original, sizes)


def test_guards_of_a_static_size_go() -> None:
    text = print_kernel(gemm())
    for name, size in (("M", 128), ("N", 64), ("K", 64)):
        text = text.replace(f"symbol {name} >= 1", f"symbol {name} >= {size}", 1)
        text = text.replace("  in a", f"  require {name} == {size}\n  in a", 1)
    static = parse_kernel(text)
    sizes = {"M": 128, "N": 64, "K": 64}
    result = simplify(static)
    # mo < (M + 63) / 64 with M == 128 bounds the rows; nothing guards a load or a store any more.
    assert " if " not in print_kernel(result)
    assert touched(result, sizes) == touched(static, sizes)


def test_what_does_not_change_is_shared() -> None:
    k = kernel("  loop k < N:\n    barrier\n  if t < 2:\n    barrier\n")
    assert simplify(k).body is k.body


# ---------------------------------------------------------------- generated code

digit = st.sampled_from(["g", "t", "w", "mo", "M", "N", "k", "h", "i"])


@st.composite
def affine(draw: st.DrawFn) -> ops.Expr:
    total = e(draw(st.integers(-9, 9)))
    for _ in range(draw(st.integers(1, 3))):
        term = e(draw(digit)) * draw(st.integers(-4, 4)) + draw(st.integers(-2, 2))
        fold = draw(st.sampled_from(["", "", "div", "mod"]))
        total = total + (term // 3 if fold == "div" else term % 3 if fold == "mod" else term)
    return total


@st.composite
def stores(draw: st.DrawFn) -> ops.Store:
    guards = st.lists(st.builds(Constraint, affine(), st.booleans()), max_size=3)
    index = (draw(affine()), draw(affine()))
    over = (("i", draw(st.sampled_from([1, 1, 3]))),)
    ref = ops.RegRef("r", (e("i"),))
    return ops.Store(over, ops.MemRef("y", index), ref, guard=tuple(draw(guards)))


@st.composite
def nests(draw: st.DrawFn) -> ops.Body:
    inner: ops.Body = (draw(stores()),)
    for name in ("h", "k"):
        bound = e(draw(st.integers(1, 2))) if draw(st.booleans()) else e("N") // 2 + 1
        if draw(st.booleans()):
            guard = less(draw(st.sampled_from(["g", "t", "N"])), draw(st.integers(0, 9)))
            inner = (ops.If((guard,), inner),)
        inner = (ops.Loop(name, bound, inner),)
    return inner


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(nests(), st.sampled_from([1, 3]))
def test_generated_nests_touch_the_same_elements(nest: ops.Body, n: int) -> None:
    base = kernel("")
    original = replace(base, body=(*base.body, *nest), warps=2)
    sizes = {"M": 64, "N": n, "P": 1}
    assert touched(simplify(original), sizes) == touched(original, sizes)


# ---------------------------------------------------------------- rewriting


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(kernels())
def test_rewriting_by_the_identity_gives_the_same_object(k: ops.Kernel) -> None:
    assert rewrite(k.body, lambda s: (s,)) is k.body
    assert rewrite(k.body, lambda s: (map_expressions(s, lambda x: x),)) == k.body
    assert strip_spans(k) == k


def test_rewrite_drops_and_expands_inner_statements_first() -> None:
    order: list[str] = []

    def change(s: ops.Statement) -> ops.Body:
        order.append(type(s).__name__)
        match s:
            case ops.Barrier():
                return (s, s)
            case ops.AsyncCommit():
                return ()
            case _:
                return (s,)

    k = kernel("  loop k < 4:\n    barrier\n    async commit\n")
    assert print_kernel(replace(k, body=rewrite(k.body, change))).endswith(
        "  loop k < 4:\n    barrier\n    barrier\n"
    )
    assert order == ["Decode", "Decode", "Barrier", "AsyncCommit", "Loop"]


def test_substitution_reaches_every_expression() -> None:
    text = print_kernel(gemm())
    body = substitute(gemm().body, {"g": "gg", "ko": e("kk") * 2, "M": 7})
    changed = print_kernel(replace(gemm(), body=body))
    lines = changed.split("decode block", 1)[1]
    assert "ko]" not in lines.replace("loop ko", "")
    assert "32*ko" not in lines
    assert "64*kk" in lines
    assert "g + 8*i" not in lines.replace("gg + 8*i", "")
    assert "M" not in lines.split("\n", 1)[1]
    assert text == print_kernel(gemm())


def test_spans_are_stripped_everywhere() -> None:
    span = Span("f.py", 1, 0, 4)
    k = row_sum()
    load = ops.Load((), ops.RegRef("v", (e(0),)), ops.MemRef("x", (e("m"), e(0))), span=span)
    loop = ops.Loop("z", e(4), (ops.If((less("z", 2),), (load,), span),), span=span)
    when = ops.When(ops.Const(value=True, dtype=f32), (loop,), span)
    tensors = tuple(replace(t, span=span) for t in k.tensors)
    bare = strip_spans(replace(k, body=(*k.body, when), tensors=tensors))
    assert "Span" not in repr(bare)
    assert parse_kernel(print_kernel(replace(k, body=(*k.body, when)))) == bare
