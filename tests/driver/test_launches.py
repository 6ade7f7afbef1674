"""Launches on a device that is made up: what a call looks at, what it starts, what it refuses."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import finalize

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.diagnostics import CallError
from tilewright.driver import call as call_module
from tilewright.driver import fused_run, grouped, launch, loaded
from tilewright.runtime import launch as runtime_launch
from tilewright.runtime.arguments import glance
from tilewright.runtime.cuda_driver import Module
from tilewright.runtime.tensor_maps import MapEncoder

M, N = tw.sym.M, tw.sym.N
STREAM = 77


@dataclass(frozen=True)
class Device:
    type: str = "cuda"
    index: int = 0


@dataclass(frozen=True)
class Tensor:
    """As much of a torch tensor as a call looks at; there is no memory behind it."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()
    dtype: str = "torch.float32"
    device: Device = Device()

    def data_ptr(self) -> int:
        return self.address

    def stride(self) -> tuple[int, ...]:
        return self.strides or (*np.cumprod(self.shape[:0:-1])[::-1].tolist(), 1)


@dataclass
class Recorder:
    """The launches, as blocks, stream and the first parameters; and what was looked at."""

    started: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)
    looks: list[str] = field(default_factory=list)
    modules: int = 0
    count: int = 2

    def context(self, place: int) -> int:
        ctypes.c_void_p.from_address(place).value = 7
        return 0

    def launch(self, configuration: int, function: int, parameters: int, extra: None) -> int:
        blocks = ctypes.c_uint.from_address(configuration).value
        stream = ctypes.c_void_p.from_address(configuration + 32).value or 0
        addresses = (ctypes.c_void_p * self.count).from_address(parameters)
        values = tuple(ctypes.c_uint64.from_address(a).value for a in addresses if a)
        self.started.append((blocks, stream, values))
        return 0


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found = Recorder()

    def load(*_: object) -> Module:
        found.modules += 1
        return Module(None, 5, 7)

    real = call_module.view

    def view(value: Any, name: str) -> Any:
        found.looks.append(name)
        return real(value, name)

    monkeypatch.setattr(runtime_launch, "launch_calls", lambda: found)
    monkeypatch.setattr(launch, "device_target", lambda d: None if d.kind == "cpu" else "sm_90a")
    monkeypatch.setattr("tilewright.driver.fusion.device_target", lambda _: "sm_90a")
    monkeypatch.setattr(loaded, "load", load)
    for place in (launch, fused_run):
        monkeypatch.setattr(place, "stream_reader", lambda: lambda _: STREAM)
    monkeypatch.setattr(launch, "current_stream", lambda _: STREAM)
    monkeypatch.setattr(call_module, "view", view)
    return found


def scaled() -> tw.TileKernel:
    @tw.kernel([tw.WorkgroupConstraint(M, 16, 0)])
    def scaled(
        x: tw.Memory[M, N, tw.GLOBAL, tw.f32],
        y: tw.Memory[M, N, tw.GLOBAL, tw.f32],
        factor: tw.f32,
    ):
        tw.write(tw.read(x) * factor, y)

    return scaled


X, Y = Tensor(1 << 20, (64, 32)), Tensor(1 << 21, (64, 32))


def test_a_call_like_an_earlier_one_looks_once(device: Recorder) -> None:
    kernel = scaled()
    kernel(X, Y, 2.0)
    assert device.looks == ["x", "y"]
    moved = Tensor(3 << 20, (64, 32))
    kernel(X, Y, 2.0)
    kernel(X, moved, 2.0)
    assert device.looks == ["x", "y"]
    assert device.modules == 1
    assert device.started == [
        (4, STREAM, (X.address, Y.address)),
        (4, STREAM, (X.address, Y.address)),
        (4, STREAM, (X.address, moved.address)),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        (Tensor(1 << 20, (32, 64)), Tensor(1 << 21, (32, 64)), 2.0),
        (Tensor(1 << 20, (64, 32), (64, 1)), Y, 2.0),
        (Tensor((1 << 20) + 4, (64, 32)), Y, 2.0),
        (X, Y, -2.0),
        (X, Y, 2),
    ],
    ids=["shape", "strides", "alignment", "number", "kind of number"],
)
def test_another_kind_of_call_is_looked_at(device: Recorder, arguments: Any) -> None:
    kernel = scaled()
    kernel(X, Y, 2.0)
    kernel(*arguments)
    assert device.looks == ["x", "y"] * 2
    assert len(device.started) == 2


def test_zeros_of_two_signs_are_two_numbers(device: Recorder) -> None:
    device.count = 3
    kernel = scaled()
    for number in (0.0, -0.0, 0.0):
        kernel(X, Y, number)
    bits = [values[2] & 0xFFFFFFFF for _, _, values in device.started]
    assert bits == [0, 1 << 31, 0]


def test_a_known_call_still_refuses_tensors_that_share_memory(device: Recorder) -> None:
    kernel = scaled()
    kernel(X, Y, 2.0)
    with pytest.raises(CallError, match="y and x share memory, and y is written"):
        kernel(X, Tensor(X.address + 16, (64, 32)), 2.0)
    after = Tensor(X.address + 64 * 32 * 4, (64, 32))
    kernel(X, after, 2.0)
    assert device.looks == ["x", "y"] * 2
    assert len(device.started) == 2


def test_other_types_and_devices_are_refused_as_ever(device: Recorder) -> None:
    kernel = scaled()
    kernel(X, Y, 2.0)
    with pytest.raises(tw.TilewrightError, match="x holds f16"):
        kernel(Tensor(1 << 20, (64, 32), dtype="torch.float16"), Y, 2.0)
    with pytest.raises(CallError, match="y is on cuda:1, x on cuda:0"):
        kernel(X, Tensor(1 << 21, (64, 32), device=Device(index=1)), 2.0)
    with pytest.raises(CallError, match="is called with 1 argument"):
        kernel(X)
    assert len(device.started) == 1


def test_a_promise_of_alignment_is_checked_at_each_address(device: Recorder) -> None:
    compiled = scaled().compile("sm_90a", {"M": 64, "N": 32}, alignments={"x": 256})
    compiled(X, Y, 2.0)
    compiled(Tensor(5 << 20, (64, 32)), Y, 2.0)
    with pytest.raises(CallError, match="x is aligned to 32 bytes"):
        compiled(Tensor((5 << 20) + 32, (64, 32)), Y, 2.0)
    assert len(device.started) == 2


def test_a_bound_call_looks_at_nothing(device: Recorder) -> None:
    bound: Callable[..., Any] = scaled().bind(X, Y, factor=2.0)
    device.looks.clear()
    bound()
    bound(5)
    bound(stream=6)
    assert device.looks == []
    assert [stream for _, stream, _ in device.started] == [STREAM, 5, 6]
    assert {values for _, _, values in device.started} == {(X.address, Y.address)}


def test_binding_checks_its_arguments(device: Recorder) -> None:
    with pytest.raises(CallError, match="y and x share memory"):
        scaled().bind(X, X, 2.0)
    with pytest.raises(CallError, match="factor is a str, not a number"):
        scaled().bind(X, Y, "2")


@pytest.fixture
def lists(device: Recorder, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """The made-up device, for launches of lists: one parameter, which begins with a pointer."""
    device.count = 1
    monkeypatch.setattr(grouped, "device_target", launch.device_target)
    monkeypatch.setattr(grouped, "current_stream", lambda _: STREAM)
    return device


def test_a_list_of_problems_is_one_launch(lists: Recorder) -> None:
    kernel = scaled()
    long = Tensor(3 << 20, (256, 32)), Tensor(4 << 20, (256, 32)), 3.0
    kernel.grouped([(X, Y, 2.0), long])
    assert lists.started == [(4 + 16, STREAM, (X.address,))]
    moved = Tensor(5 << 20, (64, 32))
    kernel.grouped([(moved, Y, 2.0), long])
    kernel.grouped([(X, Y, -2.0), long])
    assert lists.modules == 1
    assert [values for _, _, values in lists.started[1:]] == [(moved.address,), (X.address,)]
    kernel.grouped([long] + [(X, Tensor((6 + i) << 20, (64, 32)), 1.0) for i in range(2)])
    assert lists.modules == 2  # with room for four
    assert lists.started[-1][0] == 16 + 2 * 4


def test_a_bound_list_looks_at_nothing(lists: Recorder) -> None:
    bound: Callable[..., Any] = scaled().bind_grouped([(X, Y, 2.0)])
    lists.looks.clear()
    bound()
    bound(stream=6)
    assert lists.looks == []
    assert lists.started == [(4, STREAM, (X.address,)), (4, 6, (X.address,))]


def test_a_bound_call_keeps_its_tensors_alive(lists: Recorder) -> None:
    x, y = (Tensor(t.address, t.shape) for t in (X, Y))
    seen = [finalize(t, lambda: None) for t in (x, y)]
    bound: Callable[..., Any] = scaled().bind(x, y, 2.0)
    many: Callable[..., Any] = scaled().bind_grouped([(x, y, 2.0)])
    del x, y
    gc.collect()
    assert all(s.alive for s in seen)
    del bound, many
    gc.collect()
    assert not any(s.alive for s in seen)


def test_a_list_refuses_tensors_that_share_memory_each_time(lists: Recorder) -> None:
    kernel = scaled()
    long = Tensor(3 << 20, (256, 32)), Tensor(4 << 20, (256, 32)), 3.0
    kernel.grouped([(X, Y, 2.0), long])
    inside = Tensor(long[1].address + 64, (64, 32))
    with pytest.raises(CallError, match="y of problem 1 and x of problem 0 share memory"):
        kernel.grouped([(inside, Y, 2.0), long])
    there = (Tensor(t.address, (64, 32), device=Device(index=1)) for t in (X, Y))
    apart = [long, (*there, 1.0)]
    with pytest.raises(CallError, match="problem 1 is on cuda:1, problem 0 on cuda:0"):
        kernel.grouped(apart)
    assert len(lists.started) == 1


def test_a_fusion_launches_a_list_of_products(
    lists: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tw.FusionDefinition() as fd:
        a, b, c = (fd.define_tensor([-1, -1], dtype=tw.f32) for _ in range(3))
        for product in fd.ops.grouped_mm([a, b], [c, c]):
            fd.add_output(product)
    addresses = iter(range(9, 99))
    monkeypatch.setattr(
        fused_run, "_maker", lambda _: lambda _: lambda: Tensor(next(addresses) << 20, (64, 32))
    )
    inputs = [Tensor((1 + i) << 20, s) for i, s in enumerate(((64, 24), (128, 24), (24, 40)))]
    for _ in range(2):
        assert len(fd.execute(inputs)) == 2
    (kernel,) = fd.compile(inputs).kernels
    assert [len(problem.bindings) for problem in kernel.problems] == [3, 3]
    blocks = [
        np.prod([e.evaluate(problem.symbols) for e in kernel.interface.grid])
        for problem in kernel.problems
    ]
    assert lists.started == [(sum(blocks), STREAM, (inputs[0].address,))] * 2


def test_a_bound_call_on_arrays_is_simulated() -> None:
    x = np.arange(512, dtype=np.float32).reshape(16, 32)
    y = np.zeros_like(x)
    bound = scaled().bind(x, y, 3.0)
    bound()
    np.testing.assert_array_equal(y, x * 3)
    x += 1
    bound()
    np.testing.assert_array_equal(y, x * 3)


def test_maps_are_encoded_once_for_each_address(
    device: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.hopper_gemm import Plan, gemm

    from tilewright.runtime.launch import bind_launch

    encoded: list[int] = []

    def encode(self: MapEncoder, pointer: int) -> bytes:
        encoded.append(pointer)
        return bytes(128)

    monkeypatch.setattr(MapEncoder, "encode", encode)
    kernel = gemm(Plan(512, 512, 512))
    bound = bind_launch(Module(None, 5, 7), kernel, {}, {})
    each = [kernel.tensors.index(next(t for t in kernel.tensors if t.name == m.tensor))
            for m in kernel.maps]  # fmt: skip
    first, second = (1 << 20, 2 << 20, 3 << 20), (1 << 20, 2 << 20, 4 << 20)
    for pointers in (first, second, first, second, first):
        bound(0, *pointers)
    assert encoded == [p[i] for p in (first, second) for i in each]
    fixed = bound.fixed(runtime_launch.Caller(int), *first)
    fixed(0)
    fixed(0)
    assert len(encoded) == 2 * len(each)
    assert len(device.started) == 7


def test_a_fusion_is_looked_at_once(device: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.driver import fusion

    with tw.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], dtype=tw.f32)
        fd.add_output(fd.ops.relu(x))
    made: list[Tensor] = []

    def make() -> Tensor:
        made.append(Tensor((9 + len(made)) << 20, (64, 32)))
        return made[-1]

    monkeypatch.setattr(fused_run, "_maker", lambda _: lambda _: make)
    looks: list[str] = []
    real = fusion.view
    monkeypatch.setattr(fusion, "view", lambda v, name: looks.append(name) or real(v, name))
    results = [fd.execute([X]) for _ in range(3)]
    assert looks == ["input 0"]
    assert results == [[tensor] for tensor in made]
    assert [sorted(v) for _, _, v in device.started] == [[X.address, t.address] for t in made]


def test_a_glance_leaves_other_libraries_alone() -> None:
    assert glance([np.zeros(3, np.float32)]) is None
    assert glance([object()]) is None
    key, pointers = glance([X, 1.5, True]) or ((), [])
    assert pointers == [X.address]
    assert (bool, "True") == key[-2:]
    assert glance([Tensor(X.address + 4, X.shape)]) != glance([X])
    assert (glance([Tensor(X.address + 4, X.shape)], 4) or ((), []))[0] == (glance([X], 4) or ())[0]
