"""Arguments of a call, seen alike: NumPy arrays, torch tensors, DLPack, CUDA array interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.base import dtypes
from tilewright.base.diagnostics import CallError, DTypeError
from tilewright.base.dtypes import DType

if TYPE_CHECKING:
    from numpy.typing import NDArray

# How NumPy, ml_dtypes and torch spell element types.
DTYPE_NAMES: dict[str, DType] = {
    "float64": dtypes.f64,
    "float32": dtypes.f32,
    "float16": dtypes.f16,
    "bfloat16": dtypes.bf16,
    "float8_e4m3fn": dtypes.f8e4m3,
    "float8_e5m2": dtypes.f8e5m2,
    "float8_e4m3fnuz": dtypes.f8e4m3fnuz,
    "float8_e5m2fnuz": dtypes.f8e5m2fnuz,
    "int64": dtypes.i64,
    "int32": dtypes.i32,
    "int16": dtypes.i16,
    "int8": dtypes.i8,
    "bool": dtypes.boolean,
}
_SPELLINGS = {dtype.name: name for name, dtype in DTYPE_NAMES.items()}


@dataclass(frozen=True, slots=True)
class Device:
    """Where data lives: `kind` is cpu, cuda or hip."""

    kind: str
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


CPU = Device("cpu")


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor's memory: strides count elements. `owner` keeps the memory alive."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: Device
    owner: object
    writable: bool = True

    @property
    def alignment(self) -> int:
        """The largest power of two that divides the address; 2**62 for an empty tensor."""
        return self.pointer & -self.pointer or 1 << 62

    def array(self) -> NDArray[Any]:
        """The same memory as a NumPy array. CallError where it is not on the CPU."""
        if self.device.kind != "cpu":
            raise CallError(
                f"a tensor on {self.device} has no NumPy view",
                expected="a tensor on the CPU",
                mend="copy it to the CPU",
            )
        kind = numpy_dtype(self.dtype)
        window = _Window(
            {
                "version": 3,
                "data": (self.pointer, not self.writable),
                "shape": self.shape,
                "strides": tuple(stride * kind.itemsize for stride in self.strides),
                "typestr": f"|V{kind.itemsize}",  # NumPy has no code for the types of ml_dtypes
            },
            self.owner,
        )
        return np.asarray(window).view(kind)


@dataclass(frozen=True, slots=True)
class _Window:
    """Memory as NumPy's array interface tells it; arrays made from it keep `owner` alive."""

    __array_interface__: dict[str, object]
    owner: object


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The NumPy element type, from ml_dtypes where NumPy has none."""
    name = _SPELLINGS[dtype.name]
    own = getattr(np, name, None)
    if own is not None:
        return np.dtype(own)
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name))


def is_tensor(value: object) -> bool:
    """Whether `view` can read `value`."""
    markers = ("data_ptr", "__cuda_array_interface__", "__dlpack__")
    return isinstance(value, np.ndarray) or any(hasattr(value, marker) for marker in markers)


Glance = tuple[tuple[object, ...], list[int]]


def glance(arguments: Sequence[Any], grain: int = 16) -> Glance | None:
    """All that a launch may depend on, and the pointers; None where `view` has to look.

    Calls of one key differ in their pointers alone, which are alike modulo `grain` bytes. It
    costs a fraction of a microsecond an argument and serves tensors of torch, and numbers.
    """
    key: list[object] = []
    pointers: list[int] = []
    try:
        for value in arguments:
            if value.__class__ in _NUMBERS:
                key += (value.__class__, repr(value))  # -0.0 equals 0.0
                continue
            pointer = value.data_ptr()
            pointers.append(pointer)
            key += (value.shape, value.stride(), value.dtype, value.device, pointer % grain)
    except (AttributeError, TypeError):  # another library's tensors
        return None
    return tuple(key), pointers


_NUMBERS = frozenset((int, float, bool))


def view(value: object, name: str = "argument") -> TensorView:
    """The memory of a tensor. CallError where `value` is none, DTypeError for its element type."""
    if isinstance(value, np.ndarray):
        return _numpy_view(value, name)  # pyright: ignore[reportUnknownArgumentType]
    if hasattr(value, "data_ptr") and hasattr(value, "stride"):
        return _torch_view(value, name)
    if hasattr(value, "__cuda_array_interface__"):
        return _cuda_view(value, name)
    if hasattr(value, "__dlpack__"):
        return _dlpack_view(value, name)
    raise CallError(
        f"{name} is a {type(value).__name__}, not a tensor",
        expected="a NumPy array, a torch tensor, or an object with DLPack",
        mend="convert it, for example with numpy.asarray",
    )


def _numpy_view(array: NDArray[Any], name: str) -> TensorView:
    strides = _element_strides(array.strides, array.itemsize, name)
    dtype = named_dtype(array.dtype.name, name)
    return TensorView(
        array.ctypes.data, array.shape, strides, dtype, CPU, array, array.flags.writeable
    )


def _torch_view(tensor: Any, name: str) -> TensorView:
    place = tensor.device
    return TensorView(
        tensor.data_ptr(),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        _torch_dtype(tensor.dtype) or named_dtype(str(tensor.dtype), name),
        CPU if place.type == "cpu" else Device(place.type, place.index or 0),
        tensor,
    )


@cache
def _torch_dtype(dtype: object) -> DType | None:
    return DTYPE_NAMES.get(str(dtype).removeprefix("torch."))


def _cuda_view(value: Any, name: str) -> TensorView:
    facts: dict[str, Any] = value.__cuda_array_interface__
    kind = np.dtype(facts["typestr"])
    shape = tuple(facts["shape"])
    steps = facts.get("strides")
    strides = (
        dense_strides(shape) if steps is None else _element_strides(steps, kind.itemsize, name)
    )
    pointer, read_only = facts["data"]
    device = Device("cuda", int(getattr(getattr(value, "device", None), "id", 0)))
    dtype = named_dtype(kind.name, name)
    return TensorView(int(pointer), shape, strides, dtype, device, value, not read_only)


def _dlpack_view(value: Any, name: str) -> TensorView:
    from tilewright.runtime.dlpack import read_dlpack

    tensor = read_dlpack(value)
    if tensor.device_kind not in ("cpu", "cuda", "hip"):
        raise CallError(
            f"{name} is on a device that DLPack numbers {tensor.device_kind}",
            expected="a tensor on the CPU, a CUDA or a ROCm device",
        )
    return TensorView(
        tensor.pointer,
        tensor.shape,
        dense_strides(tensor.shape) if tensor.strides is None else tensor.strides,
        named_dtype(tensor.dtype, name),
        CPU if tensor.device_kind == "cpu" else Device(tensor.device_kind, tensor.device_index),
        tensor.owner,
    )


def named_dtype(spelling: str, name: str) -> DType:
    """The element type that other libraries call `spelling`; DTypeError where there is none."""
    dtype = DTYPE_NAMES.get(spelling)
    if dtype is None:
        raise DTypeError(
            f"{name} has element type {spelling}",
            expected=f"one of {', '.join(DTYPE_NAMES)}",
            mend="convert the tensor before the call",
        )
    return dtype


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides, in elements, of a row-major tensor."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _element_strides(steps: Sequence[int], size: int, name: str) -> tuple[int, ...]:
    if any(step % size for step in steps):
        raise CallError(
            f"{name} has strides of {tuple(steps)} bytes, which are not multiples of {size}",
            expected="strides that are whole elements",
            mend="make a contiguous copy",
        )
    return tuple(step // size for step in steps)
