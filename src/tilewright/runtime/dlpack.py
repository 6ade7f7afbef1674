"""Reading a DLPack capsule: the C structures of the protocol, without taking ownership."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, ClassVar


class _Device(ctypes.Structure):
    _fields_: ClassVar = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_: ClassVar = [
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    ]


class _Tensor(ctypes.Structure):
    _fields_: ClassVar = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("rank", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_KINDS = {1: "cpu", 2: "cuda", 3: "cpu", 10: "hip", 13: "cuda"}  # 3: pinned, 13: managed

# The protocol's type codes: 0 int, 2 float, 4 bfloat, 6 bool, 10.. 8-bit floats.
_TYPES = {
    (0, 8): "int8",
    (0, 16): "int16",
    (0, 32): "int32",
    (0, 64): "int64",
    (2, 16): "float16",
    (2, 32): "float32",
    (2, 64): "float64",
    (4, 16): "bfloat16",
    (6, 8): "bool",
    (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz",
}


@dataclass(frozen=True, slots=True)
class DlpackTensor:
    """`strides` count elements, None where row-major; `owner` keeps the memory alive."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    device_kind: str
    device_index: int
    owner: object


def read_dlpack(value: Any) -> DlpackTensor:
    """What `value.__dlpack__()` describes. An unconsumed capsule frees itself with its owner."""
    capsule = value.__dlpack__()
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype = ctypes.c_void_p
    address.argtypes = [ctypes.py_object, ctypes.c_char_p]
    tensor = _Tensor.from_address(address(capsule, b"dltensor"))
    rank = int(tensor.rank)
    code = (int(tensor.dtype.code), int(tensor.dtype.bits))
    spelling = _TYPES.get(code, f"DLPack type {code[0]} of {code[1]} bits")
    if tensor.dtype.lanes != 1:
        spelling += f" x {tensor.dtype.lanes}"
    return DlpackTensor(
        pointer=int(tensor.data or 0) + int(tensor.byte_offset),
        shape=tuple(int(tensor.shape[i]) for i in range(rank)),
        strides=tuple(int(tensor.strides[i]) for i in range(rank)) if tensor.strides else None,
        dtype=spelling,
        device_kind=_KINDS.get(int(tensor.device.kind), str(int(tensor.device.kind))),
        device_index=int(tensor.device.index),
        owner=(capsule, value),
    )
