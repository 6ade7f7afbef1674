"""Loading cubins and launching them through the CUDA driver, by cuda-bindings."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NewType, Self
from weakref import finalize

from tilewright.base.diagnostics import ToolchainError
from tilewright.runtime.toolchain import load_bindings


@cache
def load_driver() -> Any:
    """The driver bindings, initialised. ToolchainError where there is no driver or no device."""
    driver = load_bindings("driver")
    try:
        result = driver.cuInit(0)
    except RuntimeError as cause:  # the bindings look for the library at the first call
        raise ToolchainError(
            f"the CUDA driver cannot be loaded: {cause}",
            expected="a machine with an NVIDIA GPU and its driver",
            mend="run the kernel in the simulator, which needs no GPU",
        ) from cause
    checked(driver, result)
    return driver


def checked(driver: Any, result: tuple[Any, ...]) -> Any:
    """The values of a driver call; ToolchainError, with the driver's words, where it failed."""
    status = result[0]
    if int(status) != 0:
        _, name = driver.cuGetErrorName(status)
        _, text = driver.cuGetErrorString(status)
        words = " ".join(t.decode() for t in (name, text) if isinstance(t, bytes))
        raise ToolchainError(f"the CUDA driver reports {words or status}")
    return result[1] if len(result) == 2 else result[1:]


def device_count() -> int:
    driver = load_driver()
    return int(checked(driver, driver.cuDeviceGetCount()))


def architecture(device: int = 0) -> str:
    """The device's compute capability as `sm_90`."""
    driver = load_driver()
    names = driver.CUdevice_attribute
    major = attribute(names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
    minor = attribute(names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)
    return f"sm_{major}{minor}"


def attribute(which: Any, device: int = 0) -> int:
    """One of the driver's device attributes."""
    driver = load_driver()
    return int(checked(driver, driver.cuDeviceGetAttribute(which, device)))


@cache
def device_name(device: int = 0) -> str:
    """What the driver calls the device, for example `NVIDIA H200`."""
    driver = load_driver()
    handle = checked(driver, driver.cuDeviceGet(device))
    name = checked(driver, driver.cuDeviceGetName(128, handle))
    return bytes(name).partition(b"\0")[0].decode()


@cache
def primary_context(device: int) -> Any:
    """The device's primary context, which torch and the CUDA runtime share. Never released."""
    driver = load_driver()
    handle = checked(driver, driver.cuDeviceGet(device))
    return checked(driver, driver.cuDevicePrimaryCtxRetain(handle))


def use_device(device: int) -> None:
    """Make the device's primary context current for this thread, where it is not yet."""
    driver = load_driver()
    context = primary_context(device)
    if int(checked(driver, driver.cuCtxGetCurrent())) != int(context):
        checked(driver, driver.cuCtxSetCurrent(context))


def current_stream(device: int = 0) -> int:
    """The stream that work of this thread goes to: torch's current one where torch is loaded."""
    return stream_reader()(device)


def stream_reader() -> Callable[[int], int]:
    """How to read `current_stream` of a device, once it is known whether torch is loaded."""
    torch = sys.modules.get("torch")
    if torch is None:
        return lambda _: 0
    read = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
    if read is not None:  # a tenth of the cost of the public way, which builds an object
        return read
    if not torch.cuda.is_available():
        return lambda _: 0
    return lambda device: int(torch.cuda.current_stream(device).cuda_stream)


# ---------------------------------------------------------------- launches


# What calls take that convert nothing. They would cut a plain int to 32 bits.
Argument = NewType("Argument", object)


def address(value: int) -> Argument:
    """A handle or an address as an argument. Made once, it saves a third of a call."""
    return Argument(ctypes.c_void_p.from_param(value))


def place_of(variable: ctypes.c_int | ctypes.c_void_p) -> Argument:
    """Where a variable lies, as an argument that keeps it alive."""
    return Argument(ctypes.byref(variable))


@dataclass(frozen=True, slots=True)
class LaunchCalls:
    """The driver calls of each launch, by `ctypes`: a quarter of what the bindings take.

    `launch` takes the addresses of a configuration and of the parameters' addresses, with the
    kernel between them; `context` writes the current context to an address; `graph` takes an
    executable graph and a stream, `capturing` a stream and where its state goes, 32 bits.
    """

    launch: Callable[[int, int, int, None], int]
    context: Callable[[Any], int]
    graph: Callable[[Argument, Argument], int]
    capturing: Callable[[Argument, Argument], int]


@cache
def launch_calls() -> LaunchCalls:
    load_driver()
    library = ctypes.CDLL("libcuda.so.1")
    launch, context = library.cuLaunchKernelEx, library.cuCtxGetCurrent
    launch.argtypes = (ctypes.c_void_p,) * 4
    context.argtypes = (ctypes.c_void_p,)
    # A launch may wait for the device, and lets other threads run meanwhile. The question does
    # not wait: it keeps the interpreter's lock, which takes longer to hand over and get back.
    capturing = ctypes.PyDLL("libcuda.so.1").cuStreamIsCapturing
    return LaunchCalls(launch, context, library.cuGraphLaunch, capturing)


# ---------------------------------------------------------------- modules


@dataclass(frozen=True, slots=True)
class Module:
    """A loaded cubin with one kernel, and the context of its device."""

    library: Any
    function: Any
    context: Any


def load_module(cubin: bytes, dynamic_shared_bytes: int, device: int = 0) -> Module:
    """Load a cubin for `device`, and allow its kernel so much dynamic shared memory there.

    ToolchainError where the driver refuses: a cubin for another architecture, or too much
    shared memory.
    """
    driver = load_driver()
    use_device(device)
    library = checked(driver, driver.cuLibraryLoadData(cubin, [], [], 0, [], [], 0))
    kernel = checked(driver, driver.cuLibraryEnumerateKernels(1, library))[0]
    if dynamic_shared_bytes > 48 * 1024:
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        handle = checked(driver, driver.cuDeviceGet(device))
        raised = driver.cuKernelSetAttribute(limit, dynamic_shared_bytes, kernel, handle)
        checked(driver, raised)
    return Module(library, kernel, primary_context(device))


@contextmanager
def beside_captures(context: Any) -> Generator[Any]:
    """A stream of its own in a context, and leave for calls that captures of others forbid."""
    driver = load_driver()
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    checked(driver, driver.cuCtxPushCurrent(context))
    try:
        before = checked(driver, driver.cuThreadExchangeStreamCaptureMode(relaxed))
        try:
            own = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
            stream = checked(driver, driver.cuStreamCreate(own))
            try:
                yield stream
            finally:
                driver.cuStreamDestroy(stream)
        finally:
            driver.cuThreadExchangeStreamCaptureMode(before)
    finally:
        driver.cuCtxPopCurrent()


# ---------------------------------------------------------------- memory


class DeviceMemory:
    """Bytes of device memory, freed with the object."""

    def __init__(self, size: int, device: int = 0) -> None:
        driver = load_driver()
        use_device(device)
        self.size = size
        self.device = device
        self._pointer = checked(driver, driver.cuMemAlloc(max(size, 1)))
        self.pointer = int(self._pointer)
        self._release = finalize(self, driver.cuMemFree, self._pointer)
        self._release.atexit = False  # the driver may be gone by then, and the memory with it

    def write(self, pointer: int, stream: int = 0) -> None:
        """Fill it from host memory at `pointer`; the host memory may be reused on return."""
        driver = load_driver()
        use_device(self.device)
        checked(driver, driver.cuMemcpyHtoDAsync(self._pointer, pointer, self.size, stream))
        checked(driver, driver.cuStreamSynchronize(stream))

    def read(self, pointer: int, stream: int = 0) -> None:
        """Copy it to host memory at `pointer`, after the work of the stream."""
        driver = load_driver()
        use_device(self.device)
        checked(driver, driver.cuMemcpyDtoHAsync(pointer, self._pointer, self.size, stream))
        checked(driver, driver.cuStreamSynchronize(stream))

    def fill(self, byte: int, stream: Any = 0, count: int | None = None) -> None:
        """Set all bytes, or the first `count`, in turn with the work of the stream."""
        driver = load_driver()
        size = self.size if count is None else count
        checked(driver, driver.cuMemsetD8Async(self._pointer, byte, size, stream))

    def free(self) -> None:
        self.pointer = 0
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()


def synchronize(device: int = 0) -> None:
    """Wait for all work of the device; ToolchainError where a kernel failed."""
    driver = load_driver()
    use_device(device)
    checked(driver, driver.cuCtxSynchronize())
