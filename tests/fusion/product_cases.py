"""The cross product of scheduled products: every feature with every other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import erf
from random import Random
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import FusionDefinition

AXES: Mapping[str, Sequence[Any]] = {
    "form": ("matmul", "linear", "multiply-sum"),
    "swizzle": ((), (4,), (16,), (16, 8), (3,)),
    "blocks": (0, 5, "tiles/2", "tiles+3"),
    "cluster": (1, 2),
    "order": ("NN", "NT", "TN", "TT"),
    "epilogue": ("none", "bias", "gelu", "residual", "all", "two"),
    "batch": ("none", "both", "one"),
    "sizes": ((64, 32, 32), (70, 40, 36), (33, 17, 50), (1, 40, 20), (40, 1, 20), (40, 24, 1)),
    "layout": ("contiguous", "strided", "same"),
}
Shape = tuple[int, int, int]
TILE: Shape = (32, 16, 16)


@dataclass(frozen=True)
class Case:
    """One point of the product; see `AXES`."""

    form: str
    swizzle: tuple[int, ...]
    blocks: int | str
    cluster: int
    order: str
    epilogue: str
    batch: str
    sizes: tuple[int, int, int]
    layout: str

    def __str__(self) -> str:
        return "-".join(str(getattr(self, a)).replace(" ", "") for a in AXES)

    @property
    def is_possible(self) -> bool:
        """Whether the features fit together at all."""
        square = self.sizes[0] == self.sizes[1]
        same = self.layout != "same" or (square and self.batch == "none")
        return same and (self.form != "linear" or self.batch != "both")


def everything() -> Iterator[Case]:
    """The whole product. Operands that are one tensor need equal sizes."""
    for point in product(*AXES.values()):
        case = Case(*point)
        if case.layout == "same":
            n, k = case.sizes[1:]
            # a times a needs a square; a times its own transpose does not.
            sizes = (n, n, n if case.order in ("NN", "TT") else k)
            case = Case(*point[:-2], sizes, "same")
        if case.is_possible:
            yield case


def covering(strength: int, seed: int = 1) -> list[Case]:
    """Few cases in which every `strength` features occur with all their values together."""
    names = list(AXES)
    cases = list(everything())
    Random(seed).shuffle(cases)
    missing: set[Any] = set()

    def parts(case: Case) -> set[Any]:
        values = [(n, getattr(case, n)) for n in names if n != "sizes" or case.layout != "same"]
        return set(combinations(values, strength))

    pool = cases[:6000]
    for case in pool:
        missing |= parts(case)
    chosen: list[Case] = []
    while missing:
        trial = Random(seed + len(chosen)).sample(pool, min(300, len(pool)))
        best = max(trial, key=lambda c: len(parts(c) & missing))
        found = parts(best) & missing
        if not found:
            best = next(c for c in pool if parts(c) & missing)
            found = parts(best) & missing
        missing -= found
        chosen.append(best)
    return chosen


def define(
    case: Case, tile: tuple[int, int, int] = TILE, share: int = 16, shape: Shape | None = None
) -> FusionDefinition:
    """The fusion with its schedule: tiles of M, N, K, and each warp's share of M."""
    with FusionDefinition() as fd:
        batch = case.batch != "none"
        a = fd.define_tensor([-1] * (2 + batch), dtype=tw.f16)
        second = a
        if case.layout != "same":
            second = fd.define_tensor([-1] * (2 + (case.batch == "both")), dtype=tw.f16)
        rows = fd.ops.permute(a, _turned(2 + batch)) if case.order[0] == "T" else a
        out = _epilogue(fd, case, _product(fd, case, rows, second))
        _schedule(fd, case, out, tile, share, shape or case.sizes)
    return fd


def _turned(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def _product(fd: Any, case: Case, a: Any, second: Any) -> Any:
    """a is [.., M, K]; the second operand lies as [K, N], or as [N, K] where the order says T."""
    rank = second.ndim
    turned = case.order[1] == "T"
    match case.form:
        case "linear":
            weight = second if turned else fd.ops.permute(second, _turned(rank))
            return fd.ops.linear(a, weight)
        case "matmul":
            return fd.ops.matmul(a, fd.ops.permute(second, _turned(rank)) if turned else second)
        case _:
            wide = second if turned else fd.ops.permute(second, _turned(rank))  # [.., N, K]
            left = fd.ops.broadcast(a, [False] * (a.ndim - 1) + [True, False])
            right = fd.ops.broadcast(
                wide, [*([True] * (a.ndim - rank)), *([False] * (rank - 2)), True, False, False]
            )
            return fd.ops.sum(fd.ops.mul(left, right), [-1])


def _epilogue(fd: Any, case: Case, c: Any) -> Any:
    out = c
    if case.epilogue in ("bias", "all"):
        out = fd.ops.add(out, fd.define_tensor([-1], dtype=tw.f16))
    if case.epilogue in ("gelu", "all"):
        out = fd.ops.gelu(out)
    if case.epilogue in ("residual", "all"):
        out = fd.ops.add(out, fd.define_tensor([-1] * c.ndim, dtype=tw.f16))
    if case.epilogue == "two":
        fd.add_output(fd.ops.relu(out))
    fd.add_output(out)
    return out


def _schedule(
    fd: Any, case: Case, out: Any, tile: tuple[int, int, int], share: int, shape: Shape
) -> None:
    s, rank = fd.sched, out.ndim
    if rank > 2:
        s.split(s.axis(out, 0), 1, "bo", "bi")
    s.split(s.axis(out, rank - 2), tile[0], "mo", "mi")
    s.split(s.axis(out, rank - 1), tile[1], "no", "ni")
    s.split(s.terms(), tile[2], "ko", "ki")
    s.split("mi", share, "mw", "mii")
    s.parallelize("mw", "warp")
    s.stage(2)
    for factor, name, over in zip(case.swizzle, ("mo", "no"), ("no", "mo.in_group"), strict=False):
        s.swizzle(name, over, factor)
    count = -(-shape[0] // tile[0]) * -(-shape[1] // tile[1]) * (3 if rank > 2 else 1)
    named = {"tiles/2": max(1, count // 2), "tiles+3": count + 3}
    blocks = named.get(str(case.blocks), case.blocks)
    if blocks:
        s.persistent(int(blocks) * case.cluster, case.cluster)
    elif case.cluster > 1:
        fastest = "no.in_group" if len(case.swizzle) > 1 else "no"
        s.split(fastest, 2, "pack", "peer")
        s.parallelize("peer", "cluster")


def inputs(case: Case, random: np.random.Generator) -> list[np.ndarray]:
    """Arrays for the fusion's inputs, in order."""
    m, n, k = case.sizes
    first = (k, m) if case.order[0] == "T" else (m, k)
    second = (n, k) if case.order[1] == "T" else (k, n)
    batch = (3,) if case.batch != "none" else ()
    found = [_array(case, random, (*batch, *first))]
    if case.layout != "same":
        found.append(_array(case, random, ((3,) if case.batch == "both" else ()) + second))
    if case.epilogue in ("bias", "all"):
        found.append(_array(case, random, (n,)))
    if case.epilogue in ("residual", "all"):
        found.append(_array(case, random, (*batch, m, n)))
    return found


def _array(case: Case, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    if case.layout != "strided":
        return random.standard_normal(shape).astype(np.float16)
    wide = random.standard_normal((*shape[:-1], shape[-1] * 2 + 3)).astype(np.float16)
    return wide[..., 1 : 1 + 2 * shape[-1] : 2]


def expected(case: Case, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results in double precision."""
    rest = [a.astype(np.float64) for a in arrays]
    a = rest.pop(0)
    first = a
    if case.order[0] == "T":
        a = np.swapaxes(a, -1, -2)
    b = first if case.layout == "same" else rest.pop(0)
    if case.order[1] == "T":
        b = np.swapaxes(b, -1, -2)
    out = a @ b
    if case.epilogue in ("bias", "all"):
        out = out + rest.pop(0)
    if case.epilogue in ("gelu", "all"):
        out = 0.5 * out * (1.0 + np.vectorize(erf)(out / np.sqrt(2.0)))
    if case.epilogue in ("residual", "all"):
        out = out + rest.pop(0)
    return [np.maximum(out, 0.0), out] if case.epilogue == "two" else [out]
