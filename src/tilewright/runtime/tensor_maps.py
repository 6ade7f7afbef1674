"""Tensor maps: how the copy engine sees a tensor, encoded by the driver for each address."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.base.diagnostics import CallError, UnsupportedError
from tilewright.base.dtypes import DType
from tilewright.kernel.declared import Interface, TensorMap
from tilewright.runtime.cuda_driver import checked, load_driver

MAP_FORMAT = "128s"  # as `struct` packs one
_BYTES = 128
_KEPT = 64  # sets of addresses whose maps are kept

_ELEMENTS = {
    "f64": "FLOAT64",
    "f32": "FLOAT32",
    "f16": "FLOAT16",
    "bf16": "BFLOAT16",
    "i64": "INT64",
    "i32": "INT32",
    "i16": "UINT16",
    "i8": "UINT8",
    "f8e4m3": "UINT8",
    "f8e5m2": "UINT8",
    "bool": "UINT8",
}
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}


@dataclass(frozen=True, slots=True)
class MapEncoder:
    """A map with all but the address fixed. The sequences have the tensor's last axis first.

    `argument` is the tensor's position among the kernel's; strides are bytes.
    """

    name: str
    argument: int
    dtype: DType
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int

    def encode(self, pointer: int) -> bytes:
        """The map of the tensor at `pointer`. CallError where the copy engine cannot see it."""
        if pointer % 16:
            raise CallError(
                f"the tensor of map {self.name} starts at an address that is no multiple of 16",
                expected="a tensor aligned to 16 bytes",
                mend="make a copy of the tensor",
            )
        driver = load_driver()
        kind = getattr(
            driver.CUtensorMapDataType,
            f"CU_TENSOR_MAP_DATA_TYPE_{_ELEMENTS[self.dtype.name]}",
        )
        swizzle = getattr(
            driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[self.swizzle]}"
        )
        wide, narrow = driver.cuuint64_t, driver.cuuint32_t
        result = driver.cuTensorMapEncodeTiled(
            kind,
            len(self.box),
            pointer,
            [wide(n) for n in self.extents],
            [wide(n) for n in self.strides],
            [narrow(n) for n in self.box],
            [narrow(1) for _ in self.box],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        return ctypes.string_at(int(checked(driver, result).getPtr()), _BYTES)


class Maps:
    """The maps of one bound launch, from byte `offset` of its parameters on.

    Encoding takes some microseconds, so the maps of recent addresses are kept.
    """

    def __init__(self, encoders: Sequence[MapEncoder], offset: int) -> None:
        self._encoders = tuple(encoders)
        self._offset = offset
        self._pack = struct.Struct(f"{_BYTES * len(encoders)}s").pack_into
        self._kept: dict[tuple[int, ...], bytes] = {}

    def write(self, buffer: Any, pointers: Sequence[int]) -> None:
        """Put the maps of the tensors at `pointers` into the buffer of parameters."""
        key = tuple(pointers)
        maps = self._kept.get(key)
        if maps is None:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            maps = b"".join(e.encode(pointers[e.argument]) for e in self._encoders)
            self._kept[key] = maps
        self._pack(buffer, self._offset, maps)


def map_encoders(kernel: Interface, symbols: Mapping[str, int]) -> tuple[MapEncoder, ...]:
    """The kernel's maps for these sizes. CallError where strides do not fit the copy engine."""
    return tuple(_encoder(kernel, declared, symbols) for declared in kernel.maps)


def _encoder(kernel: Interface, declared: TensorMap, symbols: Mapping[str, int]) -> MapEncoder:
    position = next(i for i, t in enumerate(kernel.tensors) if t.name == declared.tensor)
    tensor = kernel.tensors[position]
    if tensor.dtype.name not in _ELEMENTS:
        raise UnsupportedError(
            f"the copy engine has no element type {tensor.dtype} ({tensor.name})",
            expected=f"one of {', '.join(_ELEMENTS)}",
        )
    axes = declared.order[::-1]
    extents = tuple(tensor.shape[axis].evaluate(symbols) for axis in axes)
    steps = [tensor.strides[axis].evaluate(symbols) for axis in axes]
    size = tensor.dtype.bytes
    bad = [step for step in steps[1:] if step * size % 16 or not 0 < step * size < 1 << 40]
    if steps[0] != 1 or bad:
        raise CallError(
            f"{tensor.name} has strides of {', '.join(map(str, steps[::-1]))} elements,"
            " which the copy engine cannot follow",
            span=tensor.span,
            expected="a last axis of stride 1, the others multiples of 16 bytes",
            mend="pad the rows, or choose a plan without tensor maps",
        )
    strides = tuple(step * size for step in steps[1:])
    box = declared.box[::-1]
    return MapEncoder(
        declared.name, position, tensor.dtype, extents, strides, box, declared.swizzle
    )
