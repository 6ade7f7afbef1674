"""From source text to machine code: NVRTC for CUDA, clang and lld for HIP."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tilewright.base.diagnostics import ToolchainError
from tilewright.runtime.cache import DiskCache, cache_key
from tilewright.target.model import Target

if TYPE_CHECKING:
    from subprocess import CompletedProcess

INSTALL_CUDA = "pip install 'tilewright[cuda]'"


class Toolchain(Protocol):
    """A compiler. `identity` names all that changes its output but the source."""

    @property
    def extension(self) -> str:
        """The suffix of source files."""
        ...

    def identity(self, target: Target) -> str:
        """Version and flags. ToolchainError where the compiler is missing."""
        ...

    def build(self, source: str, target: Target) -> bytes:
        """Machine code. ToolchainError with the compiler's log where it fails."""
        ...


def compile_source(
    source: str, target: Target, *, cache: DiskCache | None = None, name: str = "kernel"
) -> bytes:
    """Machine code of `source` for `target`: a cubin or a code object; from `cache` where given.

    With TILEWRIGHT_DUMP set, the source is also written to that folder, named after `name`.
    ToolchainError where the compiler is missing or fails.
    """
    toolchain = toolchain_for(target)
    _dump(f"{name}.{toolchain.extension}", source)
    if cache is None:
        return toolchain.build(source, target)
    key = cache_key(target.name, toolchain.identity(target), source)
    return cache.get_or_build(key, lambda: toolchain.build(source, target))


def toolchain_for(target: Target) -> Toolchain:
    """The compiler for what the target's printer prints."""
    match target.printer:
        case "cuda":
            return Nvrtc()
        case "hip":
            return Clang()
        case _:
            raise ToolchainError(
                f"no compiler serves the printer {target.printer!r} of {target.name}",
                expected="cuda or hip",
            )


def _dump(name: str, text: str) -> None:
    folder = os.environ.get("TILEWRIGHT_DUMP")
    if folder:
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _failure(tool: str, target: Target, log: str) -> ToolchainError:
    lines = [line for line in log.strip().splitlines() if line.strip()]
    shown = lines[:20]
    if len(lines) > len(shown):
        shown.append(f"({len(lines) - len(shown)} more lines)")
    return ToolchainError(
        f"{tool} could not compile the kernel for {target.name}",
        mend="set TILEWRIGHT_DUMP to a folder to see the source; this is a fault of tilewright",
        notes=tuple(shown),
    )


# ---------------------------------------------------------------- NVRTC


@dataclass(frozen=True, slots=True)
class Resources:
    """Registers, and bytes of local memory, of one thread. Spilled bytes cost time."""

    registers: int
    stack: int
    spilled: int


class Nvrtc:
    """NVIDIA's run-time compiler; it needs no GPU and no toolkit."""

    extension = "cu"

    def identity(self, target: Target) -> str:
        return f"nvrtc {_nvrtc_release()} {' '.join(self._flags(target))}"

    def build(self, source: str, target: Target) -> bytes:
        return self._compile(source, target, self._flags(target))[0]

    def resources(self, source: str, target: Target) -> Resources:
        """What one thread of the source's kernel takes."""
        _, log = self._compile(source, target, [*self._flags(target), "--ptxas-options=-v"])
        numbers = (r"Used (\d+) registers", r"(\d+) bytes stack", r"(\d+) bytes spill stores")
        found = [re.search(pattern, log) for pattern in numbers]
        return Resources(*(int(match.group(1)) if match else 0 for match in found))

    def _compile(self, source: str, target: Target, flags: list[str]) -> tuple[bytes, str]:
        """The cubin and the compiler's log."""
        nvrtc = load_bindings("nvrtc")
        created = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
        program = _checked(nvrtc, created)
        try:
            encoded = [flag.encode() for flag in flags]
            (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
            log = bytearray(_checked(nvrtc, nvrtc.nvrtcGetProgramLogSize(program)))
            _checked(nvrtc, nvrtc.nvrtcGetProgramLog(program, log))
            text = log.decode(errors="replace").rstrip("\0")
            if int(status) != 0:
                raise _failure("NVRTC", target, text)
            cubin = bytearray(_checked(nvrtc, nvrtc.nvrtcGetCUBINSize(program)))
            _checked(nvrtc, nvrtc.nvrtcGetCUBIN(program, cubin))
        finally:
            nvrtc.nvrtcDestroyProgram(program)
        return bytes(cubin), text

    def _flags(self, target: Target) -> list[str]:
        return [
            f"--gpu-architecture={target.name}",
            "--std=c++17",
            "--prec-div=false",  # within 2 units in the last place; exact division branches
            "-diag-suppress=177",  # an overload that one kernel does not use
        ]


def load_bindings(module: str) -> Any:
    """A module of cuda-bindings; ToolchainError, with how to install it, where it is missing."""
    try:
        return import_module(f"cuda.bindings.{module}")
    except ImportError as cause:
        raise ToolchainError(
            f"cuda.bindings.{module} cannot be imported: {cause}",
            expected="the package cuda-bindings",
            mend=INSTALL_CUDA,
        ) from cause


@cache
def _nvrtc_release() -> str:
    """Which NVRTC there is. That of the package is seen without loading it, which takes long."""
    for folder in sys.path:
        for found in Path(folder or ".").glob("nvidia_cuda_nvrtc-*.dist-info"):
            return found.stem
    major, minor = _nvrtc_version()
    return f"{major}.{minor}"


def _nvrtc_version() -> tuple[int, int]:
    nvrtc = load_bindings("nvrtc")
    try:
        major, minor = _checked(nvrtc, nvrtc.nvrtcVersion())
    except RuntimeError as cause:  # the bindings look for the library at the first call
        raise ToolchainError(
            f"the NVRTC library cannot be loaded: {cause}",
            expected="the package nvidia-cuda-nvrtc, or a CUDA toolkit",
            mend=INSTALL_CUDA,
        ) from cause
    return int(major), int(minor)


def _checked(nvrtc: Any, result: tuple[Any, ...]) -> Any:
    """The values of a call; ToolchainError where its status is not success."""
    status, *values = result
    if int(status) != 0:
        _, text = nvrtc.nvrtcGetErrorString(status)
        raise ToolchainError(f"NVRTC reports {text.decode() if isinstance(text, bytes) else text}")
    return values[0] if len(values) == 1 else tuple(values)


# ---------------------------------------------------------------- clang


class Clang:
    """clang with its AMDGPU back end and lld; no ROCm is needed."""

    extension = "hip"

    def identity(self, target: Target) -> str:
        return f"{_clang_version(find_clang())} {' '.join(self._flags(target))}"

    def build(self, source: str, target: Target) -> bytes:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
            text, binary = Path(folder) / "kernel.hip", Path(folder) / "kernel.co"
            text.write_text(source, encoding="utf-8")
            command = [find_clang(), *self._flags(target), "-o", str(binary), str(text)]
            done = _run(command)
            if done.returncode != 0:
                raise _failure("clang", target, done.stderr.replace(str(text), text.name))
            return binary.read_bytes()

    def _flags(self, target: Target) -> list[str]:
        return [
            "-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output",
            f"--offload-arch={target.name}", "-nogpulib", "-nogpuinc", "-std=c++17", "-O3",
            "-ffp-contract=fast", "-fno-strict-aliasing", "-ffreestanding", "-fno-builtin",
        ]  # fmt: skip


@cache
def find_clang() -> str:
    """The path of a clang++ that may serve; ToolchainError where there is none."""
    import shutil

    names = ("clang++", "amdclang++", *(f"clang++-{number}" for number in range(24, 16, -1)))
    for name in names:
        path = shutil.which(name)
        if path is not None and "amdgcn" in _targets(path):
            return path
    raise ToolchainError(
        "no clang++ with an AMDGPU back end is on the path",
        expected="clang 17 or newer, with lld",
        mend="install clang and lld, for example `apt install clang-19 lld-19`",
    )


def _targets(clang: str) -> str:
    return _run([clang, "--print-targets"]).stdout


@cache
def _clang_version(clang: str) -> str:
    return _run([clang, "--version"]).stdout.partition("\n")[0]


def _run(command: Sequence[str]) -> CompletedProcess[str]:
    import subprocess  # here, as the tools of NVRTC need none of it: a launch starts quicker

    return subprocess.run(command, capture_output=True, text=True, check=False)
