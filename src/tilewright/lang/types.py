"""The types that a kernel's signature and body name: `Memory[M, K, GLOBAL, f16]` and
`Register[M, N, f32]`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from tilewright.base.diagnostics import DTypeError, ShapeError
from tilewright.base.dtypes import DType
from tilewright.base.spaces import Space
from tilewright.base.spans import Span, here
from tilewright.lang.symbols import Size, axis_name


@dataclass(frozen=True, slots=True)
class MemoryType:
    """A tensor argument's type. `space` may be a symbol that the bindings set."""

    axes: tuple[str, ...]
    space: Space | Size
    dtype: DType
    strides: tuple[Size | int, ...] | None
    span: Span | None

    def with_strides(self, strides: Sequence[Size | int]) -> MemoryType:
        """The same tensor laid out with these strides, in elements; sizes may be symbols."""
        if len(strides) != len(self.axes):
            raise ShapeError(
                f"{len(strides)} strides for {len(self.axes)} axes",
                span=here(),
                expected=f"one stride for each of {', '.join(self.axes)}",
                mend="give as many strides as the memory has axes",
            )
        return replace(self, strides=tuple(strides))


@dataclass(frozen=True, slots=True)
class RegisterType:
    """A value's type; calling it makes the value whose every element is `value`."""

    axes: tuple[str, ...]
    dtype: DType
    span: Span | None

    def __call__(self, value: float | int | bool) -> Any:
        from tilewright.lang.tracing import constant  # the tracer knows values, not types

        return constant(self, value, here())


def _axes(items: Sequence[object], span: Span | None) -> tuple[str, ...]:
    names: list[str] = []
    for item in items:
        name = axis_name(item, span)
        if name in names:
            raise ShapeError(
                f"the axis {name} occurs twice",
                span=span,
                expected="each axis of a tensor named once",
                mend="give the second one a symbol of its own",
            )
        names.append(name)
    return tuple(names)


def element_type(item: object, span: Span | None) -> DType:
    """The element type itself; DTypeError where `item` is none."""
    if not isinstance(item, DType):
        raise DTypeError(
            f"{item!r} is not an element type",
            span=span,
            expected="an element type of tilewright, for example tw.f16",
            mend="in Memory[axes.., space, dtype] and Register[axes.., dtype] it comes last",
        )
    return item


class Memory:
    """``Memory[M, K, GLOBAL, f16]``: axes, memory space, element type."""

    def __class_getitem__(cls, items: tuple[object, ...]) -> MemoryType:
        span = here()
        if not isinstance(items, tuple) or len(items) < 2:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ShapeError(
                "a memory type needs a space and an element type",
                span=span,
                expected="Memory[axes.., space, dtype]",
                mend="for example Memory[M, K, tw.GLOBAL, tw.f16]",
            )
        *axes, space, dtype = items
        if not isinstance(space, Space | Size):
            raise ShapeError(
                f"{space!r} is not a memory space",
                span=span,
                expected="tw.GLOBAL, tw.SHARED or a symbol that the bindings set to one of them",
                mend="put the space before the element type",
            )
        return MemoryType(_axes(axes, span), space, element_type(dtype, span), None, span)


class Register:
    """``Register[M, N, f32]``: axes and element type of a value held in registers."""

    def __class_getitem__(cls, items: object) -> RegisterType:
        span = here()
        parts = [*cast("tuple[object, ...]", items)] if isinstance(items, tuple) else [items]
        return RegisterType(_axes(parts[:-1], span), element_type(parts[-1], span), span)
