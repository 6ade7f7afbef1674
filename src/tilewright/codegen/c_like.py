"""The printer that every C-like back end shares: structure, loops, guards, addresses, accesses.

A statement becomes lines of text; nothing is kept between statements but the scope of
variables. What differs between dialects is asked of a `Dialect`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tilewright.base.diagnostics import AtomError, UnsupportedError
from tilewright.codegen.access import AccessPrinter, find_matrix_row
from tilewright.codegen.dialect import Dialect, assignment, call, stored_type
from tilewright.codegen.index import IndexPrinter, Range, bare, counting
from tilewright.codegen.index import Scope as Variables
from tilewright.codegen.names import COUNTERS, Names, assign_names
from tilewright.codegen.problem_table import (
    TABLE,
    TYPE,
    Field,
    find_row,
    own_block,
    table_type,
)
from tilewright.codegen.values import ValuePrinter
from tilewright.kernel.async_ops import (
    BulkLoad,
    BulkStore,
    Collect,
    Deposit,
    Phases,
    RemoteStore,
    WarpgroupMma,
)
from tilewright.kernel.ops import (
    Apply,
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    Body,
    DataIndex,
    Decode,
    If,
    Kernel,
    Load,
    Loop,
    MatrixShape,
    Mma,
    Mode,
    Over,
    Read,
    Reduce,
    Registers,
    RegRef,
    Shared,
    Statement,
    Store,
    Tensor,
    Value,
    When,
    walk,
)  # fmt: skip
from tilewright.poly.expr import Constraint, Expr
from tilewright.target.model import MmaAtom, Scope, Target

_WORD = re.compile(r"\w+")


def print_kernel(kernel: Kernel, target: Target, dialect: Dialect, room: int = 0) -> str:
    """The whole translation unit of `kernel`.

    Parameters come in this order: a pointer for each tensor, the tensor maps, an ``int`` for
    each symbol, the scalars, then a pointer for each exchange, each in the order of the kernel.
    The launch is one-dimensional: product(kernel.grid) blocks of `kernel.threads` threads. With
    `room`, the one parameter is a table of so many problems (see `kernel.problems`), and the
    launch has the blocks of all.
    """
    _check_dtypes(kernel, dialect)
    declared = {**dialect.prelude, **_atom_declarations(kernel, target, dialect)}
    names = assign_names(kernel, declared)
    printer = _Printer(kernel, target, dialect, names, room)
    function = printer.function()
    used = _used(function, declared)
    parts = [_heading(kernel, room), "\n".join(dialect.opening()), *used, "\n".join(function)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _heading(kernel: Kernel, room: int) -> str:
    blocks = " * ".join(f"({e})" if e.terms else str(e) for e in kernel.grid) or "1"
    each = f" for each of at most {room} problems" if room else ""
    return (
        f"// {kernel.name} for {kernel.target}: {blocks} blocks of {kernel.threads} threads"
        f"{each},\n// {kernel.shared_bytes} bytes of shared memory."
    )


def _used(function: Iterable[str], declared: Mapping[str, str]) -> list[str]:
    """The declarations that the function needs, directly or through others, in table order."""
    wanted: set[str] = set()
    texts = list(function)
    while texts:
        words = {w for w in _WORD.findall(texts.pop()) if w in declared} - wanted
        wanted |= words
        texts.extend(declared[word] for word in words)
    return [text for name, text in declared.items() if name in wanted]


def _check_dtypes(kernel: Kernel, dialect: Dialect) -> None:
    for item in (*kernel.tensors, *kernel.scalars, *kernel.shared, *kernel.registers):
        if item.dtype.name not in dialect.dtypes:
            raise UnsupportedError(
                f"{kernel.target} has no element type {item.dtype} ({item.name})",
                expected=f"one of {', '.join(sorted(dialect.dtypes))}",
                mend="choose another element type or another target",
            )


def _atom_declarations(kernel: Kernel, target: Target, dialect: Dialect) -> dict[str, str]:
    """Device functions for the instructions that the kernel uses, by name."""
    result: dict[str, str] = {}
    for statement in walk(kernel.body):
        if isinstance(statement, Mma | WarpgroupMma):
            name, text = dialect.mma_declaration(find_atom(target, statement))
            result[name] = text
        elif isinstance(statement, Load) and statement.matrix is not None:
            row = find_matrix_row(target, statement, statement.matrix)
            name, text = dialect.matrix_load_declaration(row)
            result[name] = text
        elif isinstance(statement, Store) and statement.matrix is not None:
            row = find_matrix_row(target, statement, statement.matrix)
            name, text = dialect.matrix_store_declaration(row)
            result[name] = text
    return result


def find_atom(target: Target, statement: Mma | WarpgroupMma) -> MmaAtom:
    atom = target.atom(statement.atom)
    if atom is None:
        raise AtomError(
            f"{target.name} has no instruction {statement.atom}",
            span=statement.span,
            expected=f"one of {', '.join(a.name for a in target.mma_atoms)}",
            mend="choose an instruction of the target",
        )
    if isinstance(statement, Mma) and atom.scope is Scope.WARPGROUP:
        raise UnsupportedError(
            f"an Mma statement prints no warpgroup atoms, and {atom.name} is one",
            span=statement.span,
            expected="an atom that one warp executes, or a WarpgroupMma",
            mend="choose a warp atom",
        )
    return atom


@dataclass(frozen=True, slots=True)
class _Printer:
    kernel: Kernel
    target: Target
    dialect: Dialect
    names: Names
    room: int

    # ------------------------------------------------------------ the function

    def function(self) -> list[str]:
        kernel = self.kernel
        fields, first, types = list(self._arguments()), list[str](), list[str]()
        if self.room:
            types = table_type(fields, self.room)
            first = find_row(fields, self.room, self.dialect.counters["block"])
            parameters = [self.dialect.table_parameter(TYPE, TABLE)]
        else:
            parameters = [
                *(f"{f.used} {f.name}" for f in fields[: len(kernel.tensors)]),
                *(self.dialect.map_parameter(self.names.memory[m.name]) for m in kernel.maps),
                *(f"{f.used} {f.name}" for f in fields[len(kernel.tensors) + len(kernel.maps) :]),
            ]
        head = self.dialect.signature(self.names.kernel, kernel)
        lines = [
            *(self._shared(s) for s in kernel.shared),
            *(self._phases(p) for p in kernel.phases),
        ]
        if lines:
            lines.insert(0, self.dialect.shared(kernel.shared_bytes))
        body = self.body(kernel.body, self._outer_scope())
        lines += self._counters(body)
        lines += [self._fragment(r) for r in kernel.registers]
        return [
            *types,
            f"{head}(",
            *(f"    {p}{',' if p is not parameters[-1] else ''}" for p in parameters),
            ") {",
            *_indented([*first, *lines, *body]),
            "}",
        ]

    def _arguments(self) -> Iterator[Field]:
        """What a launch gives: pointers, maps, symbols, scalars, exchanges."""
        kernel, names = self.kernel, self.names
        for tensor in kernel.tensors:
            kind = self._pointer(tensor)
            yield Field(kind, names.memory[tensor.name], f"{kind} __restrict__")
        for box in kernel.maps:
            yield Field("tw_tensor_map", names.memory[box.name], "const tw_tensor_map&")
        for symbol in kernel.symbols:
            yield Field("int", names.variables[symbol.name], "const int")
        for scalar in kernel.scalars:
            kind = stored_type(scalar.dtype)
            yield Field(kind, names.scalars[scalar.name], f"const {kind}")
        for exchange in kernel.exchanges:
            kind = "unsigned char*"
            yield Field(kind, names.memory[exchange.name], f"{kind} __restrict__")

    def _pointer(self, tensor: Tensor) -> str:
        const = "const " if tensor.mode is Mode.IN else ""
        return f"{const}{stored_type(tensor.dtype)}*"

    def _shared(self, buffer: Shared) -> str:
        kind = stored_type(buffer.dtype)
        shape = " x ".join(map(str, buffer.shape))
        place = f"tw_shared + {buffer.offset}" if buffer.offset else "tw_shared"
        name = self.names.memory[buffer.name]
        return f"{kind}* const {name} = reinterpret_cast<{kind}*>({place});  // {shape}"

    def _phases(self, phases: Phases) -> str:
        name, kind = self.names.memory[phases.name], "unsigned long long"
        place = f"tw_shared + {phases.offset}"
        return (
            f"{kind}* const {name} = reinterpret_cast<{kind}*>({place});"
            f"  // {phases.count}, {phases.arrivals} arrivals"
        )

    def _fragment(self, fragment: Registers) -> str:
        extents = "".join(f"[{n}]" for n in fragment.shape)
        comment = f"  // {fragment.holds}" if fragment.holds else ""
        name = self.names.registers[fragment.name]
        return f"alignas(16) {stored_type(fragment.dtype)} {name}{extents};{comment}"

    def _counters(self, body: list[str]) -> list[str]:
        """Definitions of the hardware counters that the body reads."""
        words = {word for line in body for word in _WORD.findall(line)}
        name = self.names.variables
        size = self.kernel.warp_size
        block = self.dialect.counters["block"]
        texts = {
            "block": own_block(block) if self.room else block,
            "thread": self.dialect.counters["thread"],
            "warp": self.dialect.warp(f"{name['thread']} / {size}", self.kernel),
            "lane": f"{name['thread']} % {size}",
        }
        wanted = {counter for counter in COUNTERS if name[counter] in words}
        if wanted & {"warp", "lane"}:
            wanted.add("thread")
        return [f"const int {name[c]} = {texts[c]};" for c in COUNTERS if c in wanted]

    def _outer_scope(self) -> Variables:
        kernel = self.kernel
        counters = {
            "block": Range(0, None),
            "thread": Range(0, kernel.threads - 1),
            "warp": Range(0, kernel.warps - 1),
            "lane": Range(0, kernel.warp_size - 1),
        }
        return Variables({**counters, **{s.name: Range(s.low, None) for s in kernel.symbols}})

    # ------------------------------------------------------------ statements

    def body(self, body: Body, scope: Variables) -> list[str]:
        lines: list[str] = []
        for statement in body:
            lines += _noted(statement, self.statement(statement, scope))
            if isinstance(statement, Decode):
                for name, extent in statement.digits:
                    scope = scope.with_variable(name, counting(scope.resolve(extent)))
            if isinstance(statement, DataIndex):
                limit = counting(scope.resolve(statement.extent))
                scope = scope.with_variable(statement.var, limit)
        return lines

    def statement(self, statement: Statement, scope: Variables) -> list[str]:
        match statement:
            case Decode():
                return self._decode(statement, scope)
            case DataIndex(var, _, ref):
                value = self._access(scope).register(ref)
                return [f"const int {self.names.variables[var]} = {value};"]
            case Loop():
                return self._loop(statement, scope)
            case If(guard, body):
                test = self._index(scope).guard(guard)
                inner = self.body(body, scope)
                return _block(f"if ({test})", inner) if test else _block("", inner)
            case When(condition, body):
                test = self._values(scope).computed(condition)
                return _block(f"if ({bare(test)})", self.body(body, scope))
            case AsyncCommit():
                return self.dialect.async_commit()
            case AsyncWait(pending):
                return self.dialect.async_wait(pending)
            case Barrier():
                return [self.dialect.barrier()]
            case Assign() | Reduce() | Load() | Store() | AsyncCopy() | Mma():
                return self._instances(statement, scope)
            case (
                BulkLoad() | BulkStore() | RemoteStore() | WarpgroupMma() | Deposit() | Collect()
            ):  # fmt: skip
                return self._each(
                    statement.over,
                    scope,
                    lambda s: self.dialect.asynchronous(statement, self._access(s)),
                )
            case _:
                return self.dialect.asynchronous(statement, self._access(scope))

    def _instances(
        self, statement: Assign | Reduce | Load | Store | AsyncCopy | Mma, scope: Variables
    ) -> list[str]:
        """A statement once per value of its unrolled digits."""
        match statement:
            case Assign(over, dst, value):
                return self._each(over, scope, lambda s: self._assign(dst, value, s))
            case Reduce():
                return self._reduce(statement, scope)
            case (
                Load(matrix=MatrixShape(tiles=tiles) as shape)
                | Store(matrix=MatrixShape(tiles=tiles) as shape)
            ):
                over = tuple(d for d in statement.over if d[0] not in tiles)
                return self._each(
                    over, scope, lambda s: self._access(s).matrix_move(statement, shape)
                )
            case Load(over=over, src=src, axis=axis, width=width):
                pieces = self._access(scope).pieces(src, axis, width)
                return self._each(
                    over + pieces.over, scope, lambda s: self._access(s).load(statement, pieces)
                )
            case Store(over=over, dst=dst, axis=axis, width=width):
                pieces = self._access(scope).pieces(dst, axis, width)
                return self._each(
                    over + pieces.over, scope, lambda s: self._access(s).store(statement, pieces)
                )
            case AsyncCopy():
                return self._async_copy(statement, scope)
            case Mma(over=over):
                return self._each(over, scope, lambda s: self._mma(statement, s))

    def _decode(self, decode: Decode, scope: Variables) -> list[str]:
        """``digit = source / (product of the extents after it) % extent``."""
        name = self.names.variables
        printer = self._index(scope)
        digits = [(name[digit], scope.resolve(extent)) for digit, extent in decode.digits]
        lines: list[str] = []
        rest = printer.operand(decode.source)
        if any(not extent.is_const for _, extent in digits[1:]):
            return self._decode_stepwise(decode, scope)
        below = 1
        for place, (digit, extent) in reversed(list(enumerate(digits))):
            text = rest if below == 1 else f"{rest} / {below}"
            if place > 0:
                text += f" % {extent.const}"
            lines.append(f"const int {digit} = {bare(text)};")
            below *= extent.const
        return lines[::-1]

    def _decode_stepwise(self, decode: Decode, scope: Variables) -> list[str]:
        name = self.names.variables
        printer = self._index(scope)
        lines: list[str] = []
        rest = printer.text(decode.source)
        for place, (digit, extent) in reversed(list(enumerate(decode.digits))):
            if place == 0:
                lines.append(f"const int {name[digit]} = {rest};")
                break
            count = printer.operand(extent)
            later = f"tw_rest_{name[digit]}"
            lines.append(f"const int {later} = {rest};")
            lines.append(f"const int {name[digit]} = {later} % {count};")
            rest = f"{later} / {count}"
        return lines

    def _loop(self, loop: Loop, scope: Variables) -> list[str]:
        var = self.names.variables[loop.var]
        body, lows, ends = _bounded(loop)
        text = self._index(scope).text
        first = _nested("tw_max", [text(e) for e in lows])
        end = _nested("tw_min", [text(e) for e in ends])
        within = scope.with_loop(loop.var, counting(loop.extent), unrolled=loop.unroll)
        inner = self.body(body, within)
        pragma = ["#pragma unroll"] if loop.unroll else []
        return [*pragma, *_block(f"for (int {var} = {first}; {var} < {end}; ++{var})", inner)]

    def _each(
        self, over: Over, scope: Variables, inner: Callable[[Variables], list[str]]
    ) -> list[str]:
        """The unrolled loops over digits around the lines of one instance."""
        lines = inner(scope.with_over(over))
        for name, extent in reversed(over):
            if extent > 1:
                var = self.names.variables[name]
                head = f"for (int {var} = 0; {var} < {extent}; ++{var})"
                lines = ["#pragma unroll", *_block(head, lines)]
        return lines

    def _assign(self, dst: RegRef, value: Value, scope: Variables) -> list[str]:
        return assignment(self._access(scope).register(dst), self._values(scope).stored(value))

    def _reduce(self, reduce: Reduce, scope: Variables) -> list[str]:
        dtype = self.kernel.fragment(reduce.dst.name).dtype
        step = Apply(reduce.op, (Read(reduce.dst, dtype), reduce.value), dtype)
        over = reduce.over + reduce.along
        return self._each(over, scope, lambda s: self._assign(reduce.dst, step, s))

    def _async_copy(self, copy: AsyncCopy, scope: Variables) -> list[str]:
        access = self._access(scope)
        pieces = access.pieces(copy.dst, copy.dst_axis, copy.width, (copy.src, copy.src_axis))
        over = copy.over + pieces.over
        return self._each(over, scope, lambda s: self._access(s).async_copy(copy, pieces))

    def _mma(self, mma: Mma, scope: Variables) -> list[str]:
        name, _ = self.dialect.mma_declaration(find_atom(self.target, mma))
        access = self._access(scope)
        return call(name, *(f"&{access.register(ref)}" for ref in (mma.d, mma.a, mma.b)))

    # ------------------------------------------------------------ printers of a scope

    def _index(self, scope: Variables) -> IndexPrinter:
        return IndexPrinter(scope, self.names.variables.__getitem__)

    def _access(self, scope: Variables) -> AccessPrinter:
        index = self._index(scope)
        return AccessPrinter(self.kernel, self.target, self.dialect, self.names, index)

    def _values(self, scope: Variables) -> ValuePrinter:
        access = self._access(scope)
        return ValuePrinter(self.dialect, self.names, access.index, access.register)


# ---------------------------------------------------------------- lines


def _bounded(loop: Loop) -> tuple[Body, list[Expr], list[Expr]]:
    """The loop's body, what its counter is not below, and what it is below.

    A guard around the whole body that bounds the counter becomes bounds: no turn is skipped.
    """
    lows, ends = [Expr.of(0)], [loop.extent]
    match loop.body:
        case (If(guard, body),) if not loop.unroll and all(_steps(c, loop.var) for c in guard):
            for c in guard:
                factor = dict(c.expr.terms)[loop.var]
                rest = c.expr - Expr.of(loop.var) * factor
                lows += [-rest] if factor == 1 else []
                ends += [rest + 1] if factor == -1 else []
            return body, lows, ends
        case _:
            return loop.body, lows, ends


def _steps(constraint: Constraint, var: str) -> bool:
    """Whether the constraint bounds the counter by what does not depend on it."""
    factor = dict(constraint.expr.terms).get(var, 0)
    rest = constraint.expr - Expr.of(var) * factor
    return abs(factor) == 1 and not constraint.equality and var not in rest.variables()


def _nested(function: str, texts: list[str]) -> str:
    """A function of two applied over all."""
    first, *rest = texts
    return f"{function}({first}, {_nested(function, rest)})" if rest else first


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" if line else line for line in lines]


def _block(head: str, lines: list[str]) -> list[str]:
    return [f"{head} {{".lstrip(), *_indented(lines), "}"]


def _noted(statement: Statement, lines: list[str]) -> list[str]:
    note = getattr(statement, "note", "")
    return [f"// {' '.join(note.split())}", *lines] if note and lines else lines
