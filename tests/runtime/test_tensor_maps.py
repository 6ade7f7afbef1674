"""Tensor maps: where they lie among the parameters, what they say, and when they are encoded."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest

from tilewright.base.diagnostics import CallError, UnsupportedError
from tilewright.base.dtypes import bf16, f8e4m3fnuz
from tilewright.kernel.async_ops import TensorMap
from tilewright.kernel.ops import Kernel, Mode, Symbol, Tensor
from tilewright.poly.expr import Expr
from tilewright.runtime.launch import ParameterBlock
from tilewright.runtime.tensor_maps import MapEncoder, Maps, map_encoders

V = Expr.of


def kernel() -> Kernel:
    """x[M, 40, N] with padded rows, and y stored with its first axis innermost."""
    x = Tensor("x", bf16, (V("M"), V(40), V("N")), (40 * V("P"), V("P"), V(1)), Mode.IN, 16)
    y = Tensor("y", bf16, (V("N"), V("M")), (V(1), V("P")), Mode.OUT, 16)
    return Kernel(
        name="k",
        target="sm_90a",
        warp_size=32,
        warps=4,
        grid=(V("M"),),
        symbols=(Symbol("M"), Symbol("N"), Symbol("P", multiple=8)),
        tensors=(x, y),
        scalars=(),
        shared=(),
        registers=(),
        body=(),
        maps=(
            TensorMap("mx", "x", (1, 8, 64), 128),
            TensorMap("my", "y", (16, 32), 64, axes=(1, 0)),
        ),
    )


SIZES = {"M": 3, "N": 70, "P": 80}


class Parameters(ctypes.Structure):
    """How C lays out two pointers, two maps and three symbols."""

    _fields_ = [
        ("x", ctypes.c_void_p), ("y", ctypes.c_void_p), ("gap", ctypes.c_char * 48),
        ("mx", ctypes.c_char * 128), ("my", ctypes.c_char * 128),
        ("m", ctypes.c_int), ("n", ctypes.c_int), ("p", ctypes.c_int),
    ]  # fmt: skip


def test_maps_lie_behind_the_pointers_at_multiples_of_64() -> None:
    block = ParameterBlock.of(kernel())
    names = ("x", "y", "mx", "my", "m", "n", "p")
    assert block.offsets == tuple(getattr(Parameters, name).offset for name in names)


def test_a_map_names_the_innermost_axis_first() -> None:
    x, y = map_encoders(kernel(), SIZES)
    assert (x.argument, x.extents, x.strides) == (0, (70, 40, 3), (160, 6400))
    assert (x.box, x.swizzle) == ((64, 8, 1), 128)
    assert (y.argument, y.extents, y.strides) == (1, (70, 3), (160,))
    assert (y.box, y.swizzle) == ((32, 16), 64)


def test_strides_that_the_copy_engine_cannot_follow() -> None:
    with pytest.raises(CallError, match="x has strides of 2840, 71, 1 elements") as caught:
        map_encoders(kernel(), {**SIZES, "P": 71})
    assert "multiples of 16 bytes" in caught.value.diagnostic.expected


def test_an_address_that_is_not_aligned() -> None:
    encoder = map_encoders(kernel(), SIZES)[0]
    with pytest.raises(CallError, match="map mx starts at an address that is no multiple of 16"):
        encoder.encode(4096 + 8)


def test_an_element_type_that_the_copy_engine_lacks() -> None:
    some = kernel()
    odd = replace(some.tensors[0], dtype=f8e4m3fnuz)
    with pytest.raises(UnsupportedError, match="no element type f8e4m3fnuz"):
        map_encoders(replace(some, tensors=(odd, some.tensors[1])), SIZES)


def test_maps_are_encoded_once_for_each_set_of_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def encode(self: MapEncoder, pointer: int) -> bytes:
        seen.append(pointer)
        return bytes([pointer]) * 128

    monkeypatch.setattr(MapEncoder, "encode", encode)
    maps = Maps(map_encoders(kernel(), SIZES), 64)
    buffer = ctypes.create_string_buffer(384)
    for pointers in ((1, 2), (3, 4), (1, 2), (1, 2)):
        maps.write(buffer, pointers)
    assert seen == [1, 2, 3, 4]
    assert buffer.raw[:64] == bytes(64)
    assert buffer.raw[64:320] == bytes([1]) * 128 + bytes([2]) * 128
