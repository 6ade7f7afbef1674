"""Random products for warp roles: what is drawn, the program of it, and its result in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from role_programs import NUMPY, Array, G, K, M, N, poison, wide

import tilewright as tw
from tilewright import TileKernel
from tilewright.driver.compile import Compilation, Rewrites, Specialisation, compile_program
from tilewright.target.model import Target
from tilewright.target.nvidia import SM_90A

B = tw.sym.B
AXES = {"M": M, "N": N, "K": K, "B": B}
MOST_STEPS = 64  # of all tiles together
MOST_PRODUCTS = 8_000_000


@dataclass(frozen=True)
class Case:
    """One product. Sizes and tiles by axis; each tensor's axes as stored; rows' extra elements.

    `loop` says what a step does with its product. `held` is what a is stored as, and cast from.
    """

    seed: int
    operand: tw.DType
    out: tw.DType
    sizes: Mapping[str, int]
    tiles: Mapping[str, int]
    orders: Mapping[str, str]
    pads: Mapping[str, int]
    open_axes: frozenset[str] = frozenset()
    hardware: Mapping[str, Any] = field(default_factory=dict[str, Any])
    schedule: tuple[tuple[Any, ...], ...] = ()
    multiprocessors: int = 132
    start: str = "zero"
    loop: str = "sum"
    held: tw.DType | None = None
    epilogue: tuple[str, ...] = ()

    @property
    def total(self) -> tw.DType:
        """What terms are summed in."""
        return tw.i32 if self.operand is tw.i8 else tw.f32

    @property
    def target(self) -> Target:
        return replace(SM_90A, multiprocessors=self.multiprocessors)


class Dice:
    """Choices of one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def of(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, part: float) -> bool:
        return bool(self.rng.random() < part)

    def size(self, tile: int, most: int, grain: int) -> int:
        """Around multiples of the tile, multiples of a grain, or anything."""
        kind = "any" if self.chance(0.04) else self.of("tiles", "grain", "grain", "near")
        if kind == "tiles" and tile % grain == 0:
            return min(tile * int(self.rng.integers(1, 4)), max(tile, most))
        if kind == "near":
            near = tile * int(self.rng.integers(1, 3)) + grain * self.of(-1, 1)
            return max(grain, min(near, most // grain * grain))
        if kind == "grain":
            return grain * int(self.rng.integers(1, most // grain + 1))
        return int(self.rng.integers(1, most + 1))


def draw(seed: int) -> Case:
    """A product that often, but not always, can have warp roles."""
    d = Dice(seed)
    operand = d.of(tw.f16, tw.bf16, tw.bf16, tw.bf16, tw.f8e4m3, tw.f8e5m2, tw.i8)
    out = tw.i32 if operand is tw.i8 else d.of(tw.f32, tw.bf16, tw.f16)
    step_bytes = d.of(32, 64, 128, 128, 128, 256)
    tiles = {
        "M": d.of(64, 64, 128, 128, 192, 256, 16), "N": d.of(8, 16, 24, 64, 64, 104, 128, 128, 256),
        "K": step_bytes // operand.bytes,
    }  # fmt: skip
    if d.chance(0.1):
        tiles["M"], tiles["N"] = tiles["N"], tiles["M"]
    grain = 16 // operand.bytes
    sizes = {a: d.size(tiles[a], most, grain) for a, most in (("M", 330), ("N", 330), ("K", 400))}
    batch = d.chance(0.25)
    orders = {"a": "MK", "b": "NK", "c": "MN"}
    if d.chance(0.5) and (operand.bytes == 2 or d.chance(0.1)):
        orders = {"a": d.of("MK", "KM"), "b": d.of("NK", "KN"), "c": "MN"}
    orders["c"] = d.of("MN", "MN", "NM")
    if batch:
        sizes["B"] = d.of(1, 2, 3, 5)
        shared = d.of("", "", "", "a", "b")
        orders = {n: o if n == shared else _with_batch(d, o) for n, o in orders.items()}
    sizes = _limited(sizes, tiles)
    pads = {n: d.of(0, 0, 0, grain, 2 * grain) if d.chance(0.97) else 1 for n in ("a", "b", "c")}
    case = Case(seed, operand, out, sizes, tiles, orders, pads)
    return _arranged(d, _followed(d, case))


def _with_batch(d: Dice, order: str) -> str:
    return d.of(f"B{order}", f"B{order}", f"{order[0]}B{order[1]}", f"{order}B")


def _limited(sizes: Mapping[str, int], tiles: Mapping[str, int]) -> dict[str, int]:
    """Fewer tiles where there are many, for the simulator's sake."""
    sizes = dict(sizes)
    counts = {a: -(-n // tiles.get(a, 1)) for a, n in sizes.items()}
    while prod(counts.values()) > MOST_STEPS or prod(sizes.values()) > MOST_PRODUCTS:
        most = max(counts, key=lambda a: counts[a])
        if counts[most] == 1:
            break
        sizes[most] -= tiles.get(most, 1) * (1 if counts[most] < 4 else counts[most] // 2)
        counts[most] = -(-sizes[most] // tiles.get(most, 1))
    return sizes


def _followed(d: Dice, case: Case) -> Case:
    """With what the sum starts at, and what follows the loop."""
    steps: list[str] = []
    for name, part in (("bias", 0.25), ("scale", 0.15), ("relu", 0.25), ("residual", 0.2),
                       ("second", 0.15), ("turned", 0.1), ("rows", 0.1), ("columns", 0.06),
                       ("most", 0.05)):  # fmt: skip
        if d.chance(part):
            steps.append(name)
    loop = d.of("sum", "sum", "sum", "sum", "sum", "sum", "doubled", "columns", "rescaled")
    if case.sizes["K"] > 6 * case.tiles["K"] and loop == "rescaled":
        loop = "sum"  # sums would pass what single precision holds exactly
    held = tw.i8 if case.operand.bytes == 2 and d.chance(0.1) else None
    start = d.of("zero", "zero", "zero", "zero", "number", "tensor", "bias")
    sizes, tiles = dict(case.sizes), dict(case.tiles)
    # A reduction is along an axis that a block has whole.
    if "rows" in steps or "most" in steps:
        sizes["N"] = tiles["N"]
    if "columns" in steps:
        sizes["M"] = tiles["M"]
    return replace(
        case, start=start, loop=loop, held=held, epilogue=tuple(steps), sizes=sizes, tiles=tiles
    )


def _arranged(d: Dice, case: Case) -> Case:
    """With open sizes, hardware options, or a schedule by hand."""
    axes = [a for a in case.sizes if not {"rows", "columns", "most"} & set(case.epilogue)]
    chosen = frozenset(a for a in axes if d.chance(0.5)) if d.chance(0.25) else frozenset[str]()
    few = d.of(132, 132, 3, 4, 5, 7)
    case = replace(case, open_axes=chosen, multiprocessors=few)
    if d.chance(0.3):
        steps: list[tuple[Any, ...]] = []
        if d.chance(0.6):
            side = d.of(("M.outer", "N.outer"), ("N.outer", "M.outer"))
            steps.append(("swizzle", *side, d.of(2, 3, 4)))
        if d.chance(0.6):
            steps.append(("persistent", d.of(1, 2, 3, 4, 6), d.of(1, 1, 1, 2)))
        if d.chance(0.3):
            steps.append(("stage", d.of(2, 3, 4)))
        if d.chance(0.3):
            steps.append(("specialize", d.of("cooperative", "pingpong")))
        return replace(case, schedule=tuple(steps) or (("stage", 2),))
    hardware: dict[str, Any] = {}
    if d.chance(0.3):
        hardware["stages"] = d.of(2, 3, 4, 5)
    if d.chance(0.25):
        hardware["cluster"] = d.of(2, 2, 3, 4)
    if d.chance(0.2):
        hardware["pingpong"] = True
    if d.chance(0.2):
        hardware["split_k"] = d.of(2, 2, 3, 4)
    if d.chance(0.2):
        hardware["specialize"] = True
    return replace(case, hardware=hardware)


# ---------------------------------------------------------------- the program


def parameters(case: Case) -> dict[str, tuple[str, tw.DType]]:
    """Each tensor's axes as stored, and its type."""
    result = "BMN" if "B" in case.sizes else "MN"
    found = {
        "a": (case.orders["a"], case.held or case.operand),
        "b": (case.orders["b"], case.operand),
    }
    if "bias" in case.epilogue or case.start == "bias":
        found["bias"] = ("N", case.total)
    if "scale" in case.epilogue:
        found["scale"] = ("M", case.total)
    if "residual" in case.epilogue:
        found["residual"] = (result, case.out)
    if case.loop == "columns":
        found["each"] = ("N", case.total)
    if case.start == "tensor":
        found["d"] = (result, case.total)
    return found


def outputs(case: Case) -> dict[str, tuple[str, tw.DType]]:
    result = "BMN" if "B" in case.sizes else "MN"
    found = {"c": (case.orders["c"], case.out)}
    if "second" in case.epilogue:
        found["second"] = (result, case.total)
    if "turned" in case.epilogue:
        found["turned"] = (result.replace("MN", "NM"), case.out)
    if "rows" in case.epilogue:
        found["rows"] = (result.replace("N", ""), case.total)
    if "most" in case.epilogue:
        found["most"] = (result.replace("N", ""), case.total)
    if "columns" in case.epilogue:
        found["columns"] = (result.replace("M", ""), case.total)
    return found


def program(case: Case) -> TileKernel:
    """The tile program, with constraints unless it is scheduled by hand."""
    result = [AXES[x] for x in ("BMN" if "B" in case.sizes else "MN")]
    register: Any = tw.Register[(*result, case.total)]
    names = [*parameters(case), *outputs(case)]

    def body(*tensors: Any) -> None:
        t = dict(zip(names, tensors, strict=True))
        begun: Any = register(3 if case.start == "number" else 0)
        if case.start == "tensor":
            begun = tw.read(t["d"])
        elif case.start == "bias":
            begun = tw.broadcast(tw.read(t["bias"]), result)

        @tw.iterate(K, init_args=[begun])
        def total(acc: Any) -> Any:
            rows, columns = tw.read(t["a"]), tw.read(t["b"])
            rows = tw.cast(rows, case.operand) if case.held else rows
            match case.loop:
                case "doubled":
                    return acc + tw.mma(rows, columns, register(0)) * 2
                case "columns":
                    return acc + tw.mma(rows, columns, register(0)) * tw.read(t["each"])
                case "rescaled":
                    return tw.mma(rows, columns, acc * 2)
                case _:
                    return tw.mma(rows, columns, acc)

        _write(case, t, _follow(case, t, total))

    function = _named(body, names)
    every = {**parameters(case), **outputs(case)}
    function.__annotations__ = {
        n: tw.Memory[(*(AXES[x] for x in axes), G, kind)] for n, (axes, kind) in every.items()
    }
    return tw.kernel(() if case.schedule else _constraints(case))(function)


def _follow(case: Case, t: Mapping[str, Any], value: Any) -> Any:
    """What is computed with the sum."""
    if "bias" in case.epilogue:
        value = value + tw.read(t["bias"])
    if "scale" in case.epilogue:
        value = value * tw.read(t["scale"])
    if "relu" in case.epilogue:
        value = tw.maximum(value, 0)
    if "residual" in case.epilogue:
        value = value + tw.cast(tw.read(t["residual"]), case.total)
    return value


def _write(case: Case, t: Mapping[str, Any], value: Any) -> None:
    narrow = tw.cast(value, case.out)
    tw.write(tw.permute(narrow, [AXES[x] for x in case.orders["c"]]), t["c"])
    written: dict[str, Callable[[], Any]] = {
        "second": lambda: value, "turned": lambda: narrow, "rows": lambda: tw.sum(value, dim=N),
        "most": lambda: tw.max(value, dim=N), "columns": lambda: tw.sum(value, dim=M),
    }  # fmt: skip
    for name, made in written.items():
        if name in case.epilogue:
            tw.write(made(), t[name])


def _named(body: Callable[..., None], names: Sequence[str]) -> Any:
    """A function whose arguments have these names."""
    scope: dict[str, Any] = {"body": body}
    exec(f"def product({', '.join(names)}):\n    body({', '.join(names)})", scope)
    return scope["product"]


def _constraints(case: Case) -> list[Any]:
    found: list[Any] = [
        tw.WorkgroupConstraint(M, case.tiles["M"], 0),
        tw.WorkgroupConstraint(N, case.tiles["N"], 1),
        tw.TilingConstraint(K, case.tiles["K"]),
    ]
    if "B" in case.sizes:
        found.append(tw.WorkgroupConstraint(B, 1, 2))
    if case.hardware:
        found.append(tw.HardwareConstraint(**case.hardware))
    return found


def _scheduled(case: Case) -> Callable[[Any], Any] | None:
    if not case.schedule:
        return None

    def transform(s: Any) -> Any:
        if "B" in case.sizes:
            s = s.split("B", 1)
        for axis in "MNK":
            s = s.split(axis, case.tiles[axis])
        for name, *arguments in case.schedule:
            s = getattr(s, name)(*arguments)
        return s

    return transform


# ---------------------------------------------------------------- arrays and compilation


def arrays(case: Case) -> tuple[dict[str, Array], dict[str, Array]]:
    """Whole numbers in every tensor, poison in the outputs; and what outputs should be."""
    random = np.random.default_rng(case.seed)
    given: dict[str, Array] = {}
    for name, (axes, kind) in parameters(case).items():
        values = random.integers(-2, 3, [case.sizes[x] for x in axes])
        given[name] = _padded(case, name, values.astype(NUMPY[kind]))
    for name, (axes, kind) in outputs(case).items():
        given[name] = _padded(case, name, poison(tuple(case.sizes[x] for x in axes), kind))
    return given, _wanted(case, given)


def _padded(case: Case, name: str, array: Array) -> Array:
    """The array with rows further apart, where the case says so."""
    pad = case.pads.get(name, 0)
    if not pad:
        return np.ascontiguousarray(array)
    held = poison((*array.shape[:-1], array.shape[-1] + pad), _kind(case, name))
    held[..., : array.shape[-1]] = array
    return held[..., : array.shape[-1]]


def _kind(case: Case, name: str) -> tw.DType:
    return {**parameters(case), **outputs(case)}[name][1]


def _step(case: Case, given: Mapping[str, Array], terms: slice, axes: str) -> Array:
    """The product of some of the terms."""
    operands = [
        wide(given[n][tuple(terms if x == "K" else slice(None) for x in case.orders[n])])
        for n in "ab"
    ]
    batched = any("B" in case.orders[n] for n in "ab")
    orders = ",".join(case.orders[n].lower() for n in "ab")
    return np.einsum(f"{orders}->{axes if batched else 'mn'}", *operands, optimize=True)


def _wanted(case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
    axes = "bmn" if "B" in case.sizes else "mn"

    def tensor(name: str) -> Array:
        return wide(given[name])

    begun = {"tensor": lambda: tensor("d"), "bias": lambda: tensor("bias"), "number": lambda: 3}
    value = np.zeros([case.sizes[x.upper()] for x in axes])
    value = value + begun.get(case.start, lambda: 0)()
    for first in range(0, case.sizes["K"], case.tiles["K"]):
        value = value * (2 if case.loop == "rescaled" else 1)
        each = _step(case, given, slice(first, first + case.tiles["K"]), axes)
        value = value + each * {"doubled": 2, "columns": given.get("each", 1)}.get(case.loop, 1)
    if "bias" in case.epilogue:
        value = value + tensor("bias")
    if "scale" in case.epilogue:
        value = value * tensor("scale")[:, None]
    if "relu" in case.epilogue:
        value = np.maximum(value, 0)
    if "residual" in case.epilogue:
        value = value + tensor("residual")
    found: dict[str, Array] = {}
    for name, (order, kind) in outputs(case).items():
        reduce = {"rows": (np.sum, "n"), "most": (np.max, "n"), "columns": (np.sum, "m")}.get(name)
        held, left = value, axes
        if reduce:
            held, left = reduce[0](value, axis=axes.index(reduce[1])), axes.replace(reduce[1], "")
        found[name] = np.einsum(f"{left}->{order.lower()}", held).astype(NUMPY[kind])
    return found


def strides(given: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    return {n: tuple(s // a.itemsize for s in a.strides) for n, a in given.items()}


def symbols(compilation: Compilation, case: Case, given: Mapping[str, Array]) -> dict[str, int]:
    """The values of the symbols that a kernel leaves open: sizes, strides, and products."""
    values = dict(case.sizes)
    for name, steps in strides(given).items():
        values |= {f"{name}_stride{i}": step for i, step in enumerate(steps)}
    for symbol in compilation.kernel.symbols:
        if symbol.product:
            values[symbol.name] = prod(f.evaluate(values) for f in symbol.product)
    return {s.name: values[s.name] for s in compilation.kernel.symbols}


def compiled(
    case: Case, given: Mapping[str, Array], rewrites: Rewrites | None = None
) -> Compilation:
    kernel = program(case)
    fixed = {a: n for a, n in case.sizes.items() if a not in case.open_axes}
    multiples = {a: int(np.gcd(case.sizes[a], 16)) for a in case.open_axes}
    aligned = {n: min(16, a.itemsize * 16) for n, a in given.items()}
    made = Specialisation(
        case.target, fixed, multiples=multiples, schedule=_scheduled(case),
        strides=strides(given) if not case.open_axes else {}, alignments=aligned,
    )  # fmt: skip
    return compile_program(kernel.program, made, rewrites)
