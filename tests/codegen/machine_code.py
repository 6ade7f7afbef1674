"""The instructions that ptxas makes of a source, without a GPU."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

from tilewright.runtime.toolchain import compile_source
from tilewright.target.nvidia import SM_90A


def instructions(source: str, folder: Path) -> list[str]:
    """The lines of machine code of a CUDA source for Hopper, without their addresses."""
    binary = folder / "kernel.cubin"
    binary.write_bytes(compile_source(source, SM_90A))
    shown = subprocess.run([_nvdisasm(), "-c", binary], capture_output=True, text=True, check=True)
    return [line.partition("*/")[2] for line in shown.stdout.splitlines()]


def _nvdisasm() -> str:
    """On the path, or in the package `nvidia-cuda-nvdisasm` of the environment."""
    packages = Path(sysconfig.get_path("platlib")) / "nvidia"
    found = shutil.which("nvdisasm") or next(map(str, packages.glob("*/bin/nvdisasm")), None)
    if found is None:
        raise FileNotFoundError("the tests need nvdisasm: pip install nvidia-cuda-nvdisasm")
    return found
