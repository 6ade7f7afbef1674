"""Faults at numbers: what stays open with symbolic sizes is looked for at a few concrete ones.

With all sizes known, a product of sizes is a number and every counter is affine, so a fault that
the symbolic question could not decide is found there, with a true witness. A symbolic witness in
which a product symbol is not the product of its sizes is none: it has to be found again so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from tilewright.base.rounding import round_up
from tilewright.kernel.ops import Decode, If, Kernel, Load, Loop, Store, walk
from tilewright.kernel.rewrite import substitute
from tilewright.poly.expr import Div, Expr, Mod
from tilewright.poly.prove import Kind, Obligation, Refuted, Unknown

Sizes = dict[str, int]
Prove = Callable[[Kernel, frozenset[Kind]], Sequence[Obligation]]
_MOST_WITNESSES = 2


def settle(kernel: Kernel, found: Sequence[Obligation], prove: Prove) -> tuple[Obligation, ...]:
    """The obligations, those refuted that are open with symbolic sizes and fail at concrete ones.

    `prove` gives the obligations of some kinds of a kernel. A refutation with an impossible
    witness that no concrete sizes confirm becomes Unknown.
    """
    waiting = {_key(o) for o in found if _is_open(kernel, o)}
    faults: dict[tuple[Kind, str, str], Refuted] = {}
    if kernel.symbols and waiting:
        for sizes in _candidates(kernel, found):
            kinds = frozenset(kind for kind, _, _ in waiting)
            if Kind.DECODE in kinds:
                kinds |= {Kind.COVERAGE}  # whose proof takes the decodes for granted
            for o in prove(at_sizes(kernel, sizes), kinds):
                if isinstance(o.result, Refuted):
                    faults.setdefault(_key(o), _with_sizes(o.result, sizes))
            waiting -= faults.keys()
            if not waiting:
                break
    return tuple(_settled(kernel, o, faults.get(_key(o))) for o in found)


def _key(obligation: Obligation) -> tuple[Kind, str, str]:
    return obligation.kind, obligation.subject, obligation.statement


def _is_open(kernel: Kernel, obligation: Obligation) -> bool:
    result = obligation.result
    return isinstance(result, Unknown) or (
        isinstance(result, Refuted) and not _possible(kernel, dict(result.witness.symbols))
    )


def _possible(kernel: Kernel, sizes: Sizes) -> bool:
    """Whether each product among the sizes is the product of the others."""
    whole = complete(kernel, sizes)
    return all(whole.get(name, value) == value for name, value in sizes.items())


def _settled(kernel: Kernel, obligation: Obligation, fault: Refuted | None) -> Obligation:
    result = obligation.result
    if isinstance(result, Refuted) and not _is_open(kernel, obligation):
        return obligation
    if fault is not None:
        return replace(obligation, result=fault)
    if isinstance(result, Refuted):
        return replace(obligation, result=Unknown(f"maybe {result.message}"))
    return obligation


def _with_sizes(fault: Refuted, sizes: Sizes) -> Refuted:
    text = ", ".join(f"{n} = {v}" for n, v in sizes.items())
    witness = replace(fault.witness, symbols=tuple(sizes.items()))
    return replace(fault, witness=witness, notes=(*fault.notes, f"with {text}"))


# ---------------------------------------------------------------- sizes


def complete(kernel: Kernel, sizes: Mapping[str, int]) -> Sizes:
    """The sizes with the value of every product symbol whose factors are known."""
    whole = {s.name: sizes[s.name] for s in kernel.symbols if not s.product and s.name in sizes}
    for symbol in kernel.symbols:
        if symbol.product and all(f.variables() <= whole.keys() for f in symbol.product):
            whole[symbol.name] = 1
            for factor in symbol.product:
                whole[symbol.name] *= factor.evaluate(whole)
    return whole


def at_sizes(kernel: Kernel, sizes: Mapping[str, int]) -> Kernel:
    """The kernel with every symbol replaced by its size."""

    def put(exprs: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(e.substitute(sizes) for e in exprs)

    return replace(
        kernel,
        grid=put(kernel.grid),
        symbols=(),
        tensors=tuple(
            replace(t, shape=put(t.shape), strides=put(t.strides)) for t in kernel.tensors
        ),
        body=substitute(kernel.body, sizes),
        contracts=(),
    )


def _candidates(kernel: Kernel, found: Sequence[Obligation]) -> Iterator[Sizes]:
    """Sizes that witnesses name, then one, some and several tiles of each axis."""
    symbols = [s for s in kernel.symbols if not s.product]
    tiles = {s.name: _largest_divisor(kernel, s.name) for s in symbols}
    named = [o.result.witness.symbols for o in found if isinstance(o.result, Refuted)]
    wanted = [dict(pairs) for pairs in dict.fromkeys(named) if pairs][:_MOST_WITNESSES]
    wanted += [
        {s.name: 7 * tiles[s.name] - 1 for s in symbols},
        {s.name: (i % 2 + 1) * tiles[s.name] for i, s in enumerate(symbols)},
        {s.name: 1 for s in symbols},
    ]
    seen: list[Sizes] = []
    for sizes in wanted:
        full = {s.name: _admitted(sizes.get(s.name, 1), s.low, s.multiple) for s in symbols}
        whole = complete(kernel, full)
        promised = [(c.expr.evaluate(whole), c.equality) for c in kernel.contracts]
        kept = all(side == 0 if equality else side >= 0 for side, equality in promised)
        if kept and whole not in seen:
            seen.append(whole)
            yield whole


def _admitted(value: int, low: int, multiple: int) -> int:
    """The least admitted size that is not below `value`."""
    return round_up(max(value, low), multiple)


def _largest_divisor(kernel: Kernel, symbol: str) -> int:
    """By how much a size is divided, at most, to count its tiles."""
    exprs = list(kernel.grid)
    for statement in walk(kernel.body):
        match statement:
            case Loop(extent=extent):
                exprs.append(extent)
            case If(guard=guard) | Load(guard=guard) | Store(guard=guard):
                exprs += [c.expr for c in guard]
            case Decode(digits=digits):
                exprs += [e for _, e in digits]
            case _:
                pass
    return max((_divisor(e, symbol) for e in exprs), default=1)


def _divisor(expr: Expr, symbol: str) -> int:
    found = 1
    for term, _ in expr.terms:
        match term:
            case Div(num, den) if symbol in num.variables():
                found = max(found, den * _divisor(num, symbol))
            case Mod(num, _):
                found = max(found, _divisor(num, symbol))
            case _:
                pass
    return found
