"""Tensors of every origin look alike; what cannot be a tensor is named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.base.diagnostics import CallError, DTypeError
from tilewright.base.dtypes import ALL_DTYPES, bf16, f16, f32, i32
from tilewright.runtime.arguments import CPU, Device, is_tensor, numpy_dtype, view


class Torchlike:
    """What `view` uses of a torch tensor, over a NumPy array."""

    def __init__(self, array: np.ndarray[Any, Any], name: str, device: str = "cpu") -> None:
        self._array = array
        self.shape = array.shape
        self.dtype = f"torch.{name}"
        self.device = SimpleNamespace(type=device, index=3 if device == "cuda" else None)

    def data_ptr(self) -> int:
        return self._array.ctypes.data

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self._array.itemsize for s in self._array.strides)


class Dlpack:
    """An object with nothing but DLPack."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def __dlpack__(self) -> object:
        return self._array.__dlpack__()


def test_numpy_strides_count_elements() -> None:
    array = np.zeros((4, 6, 8), np.float16)[::2, ::-1, 1:5]
    seen = view(array)
    assert seen.pointer == array.ctypes.data
    assert (seen.shape, seen.strides) == ((2, 6, 4), (96, -8, 1))
    assert (seen.dtype, seen.device) == (f16, CPU)
    assert view(np.broadcast_to(np.float32(1), (3, 4))).strides == (0, 0)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_every_element_type_goes_both_ways(dtype: Any) -> None:
    assert view(np.zeros(3, numpy_dtype(dtype))).dtype is dtype


def test_torch_tensors() -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4).T
    seen = view(Torchlike(array, "int32"))
    assert (seen.shape, seen.strides, seen.dtype) == ((4, 3), (1, 4), i32)
    assert seen.device == CPU
    on_device = view(Torchlike(array, "bfloat16", "cuda"))
    assert (on_device.dtype, on_device.device) == (bf16, Device("cuda", 3))


@pytest.mark.parametrize("cut", [np.s_[:], np.s_[::2, ::-1], np.s_[1:, 2:3]])
def test_host_memory_of_others_becomes_an_array(cut: Any) -> None:
    array = np.arange(24).reshape(4, 6).astype(ml_dtypes.bfloat16)[cut]
    seen = view(Torchlike(array, "bfloat16")).array()
    np.testing.assert_array_equal(seen, array)
    seen[0, 0] = 77
    assert array[0, 0] == 77


def test_dlpack() -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)[1:, ::2]
    seen = view(Dlpack(array))
    assert (seen.pointer, seen.dtype) == (array.ctypes.data, f32)
    assert (seen.shape, seen.strides, seen.device) == (array.shape, (6, 2), CPU)
    np.testing.assert_array_equal(seen.array(), array)


def test_cuda_array_interface() -> None:
    facts = {"typestr": "<f4", "shape": (5, 2), "strides": None, "data": (4096, True)}
    seen = view(SimpleNamespace(__cuda_array_interface__=facts))
    assert (seen.pointer, seen.strides, seen.dtype) == (4096, (2, 1), f32)
    assert (seen.device, seen.writable, seen.alignment) == (Device("cuda"), False, 4096)
    facts |= {"strides": (40, 8)}
    assert view(SimpleNamespace(__cuda_array_interface__=facts)).strides == (10, 2)


def test_a_device_tensor_has_no_array() -> None:
    seen = view(Torchlike(np.zeros(2, np.float32), "float32", "cuda"))
    with pytest.raises(CallError, match="a tensor on cuda:3 has no NumPy view"):
        seen.array()


def test_read_only_arrays_are_marked() -> None:
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    assert not view(array).writable
    assert not view(array).array().flags.writeable


def test_what_is_no_tensor_is_named() -> None:
    assert not is_tensor(3.0)
    assert is_tensor(np.zeros(1))
    with pytest.raises(CallError, match="x is a list, not a tensor"):
        view([1, 2, 3], "x")


def test_unknown_element_types_are_named() -> None:
    with pytest.raises(DTypeError, match="x has element type complex64") as caught:
        view(np.zeros(1, np.complex64), "x")
    assert "bfloat16" in caught.value.diagnostic.expected


def test_strides_of_part_elements_are_refused() -> None:
    packed = np.zeros(4, np.dtype([("a", "i1"), ("b", "<f4")]))["b"]
    with pytest.raises(CallError, match="strides of \\(5,\\) bytes"):
        view(packed)
