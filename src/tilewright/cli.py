"""The command line: ``tilewright run|explain|check|source FILE[:KERNEL]``."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from tilewright.base.diagnostics import CallError, TilewrightError
from tilewright.driver.compiled import CompiledKernel
from tilewright.driver.kernel import TileKernel
from tilewright.driver.trial import Trial, run_trial
from tilewright.lang.program import named_sizes
from tilewright.target import ALL_TARGETS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status: 1 where a check or a proof fails."""
    options = _parser().parse_args(arguments)
    try:
        kernels = _kernels(options.kernel)
        sizes = _sizes(options.size, kernels)
        return max(_command(options, kernel, sizes) for kernel in kernels)
    except TilewrightError as error:
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, `head` for example, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tilewright", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("run", "run on random inputs and compare with what the program means"),
        ("explain", "print digits, places, layouts, inserted moves and barriers, and proofs"),
        ("check", "prove the kernel and print the report"),
        ("source", "print the generated source"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("kernel", help="FILE or FILE:KERNEL")
        command.add_argument("--target", help=", ".join(t.name for t in ALL_TARGETS) + " or sim")
        command.add_argument(
            "--size", action="append", default=[], metavar="AXIS=N",
            help="the size of an axis that the kernel leaves open",
        )  # fmt: skip
        if name == "source":
            form = command.add_mutually_exclusive_group()
            form.add_argument("--ir", action="store_true", help="print the kernel IR instead")
            form.add_argument("--graph", action="store_true", help="print the tile graph instead")
        if name == "run":
            command.add_argument("--seed", type=int, default=0, help="of the random inputs")
    return parser


def _kernels(place: str) -> list[TileKernel]:
    """The kernels that FILE[:KERNEL] names: that one, or all of the file."""
    file, _, name = place.rpartition(":")
    if not file or Path(place).is_file():
        file, name = place, ""
    path = Path(file)
    if not path.is_file():
        raise CallError(
            f"{file} is not a file",
            expected="a Python file with a tile kernel",
            mend="check the path; the form is FILE or FILE:KERNEL",
        )
    found = {n: v for n, v in vars(_load(path)).items() if isinstance(v, TileKernel)}
    if not found or (name and name not in found):
        raise CallError(
            f"{file} has no kernel {name}" if name else f"{file} has no kernel",
            expected=", ".join(found) or "a function marked @tw.kernel",
            mend="name one of the file's kernels, or mark one",
        )
    return [found[name]] if name else list(found.values())


def _load(path: Path) -> ModuleType:
    """Run a file as a module, with its folder on the path as ``python FILE`` has it."""
    spec = importlib.util.spec_from_file_location(f"program_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise CallError(
            f"{path} is not a Python file", expected="a name that ends in .py", mend="rename it"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except TilewrightError:
        raise
    except Exception as cause:
        raise CallError(
            f"{path} cannot be loaded: {type(cause).__name__}: {cause}",
            expected="a file that Python imports",
            mend=f"try `python {path}`",
        ) from cause
    finally:
        sys.path.pop(0)
    return module


def _sizes(given: Sequence[str], kernels: Sequence[TileKernel]) -> dict[str, int]:
    """The sizes by name. CallError for one that is no number or that no kernel names."""
    known = {
        name for kernel in kernels for name in (*named_sizes(kernel.program), *kernel.bindings)
    }
    sizes: dict[str, int] = {}
    for item in given:
        axis, _, number = item.partition("=")
        if not axis or not number.isdecimal():
            raise CallError(
                f"--size {item}", expected="AXIS=N, for example M=128", mend="give a number"
            )
        if axis not in known:
            raise CallError(
                f"--size {item}: there is no {axis}",
                expected=f"one of {', '.join(sorted(known))}",
                mend="name an axis of a tensor, or a symbol of a tile size",
            )
        sizes[axis] = int(number)
    return sizes


def _command(options: argparse.Namespace, kernel: TileKernel, sizes: Mapping[str, int]) -> int:
    target = None if options.target == "sim" else options.target
    if options.command == "run":
        return _run(kernel, target, sizes, options)
    started = time.perf_counter()
    compiled = kernel.compile(target, sizes)
    elapsed = time.perf_counter() - started
    match options.command:
        case "explain":
            print(compiled.explain())
        case "source":
            text = (
                compiled.ir if options.ir else compiled.graph if options.graph else compiled.source
            )
            print(text.removesuffix("\n"))
        case _:
            print(compiled.proof_report())
            print(f"proved{_when(compiled)} in {elapsed:.2f} s")
    return 0


def _when(compiled: CompiledKernel) -> str:
    return " earlier, read from the cache" if compiled.compilation.is_kept else ""


def _run(
    kernel: TileKernel, target: str | None, sizes: Mapping[str, int], options: argparse.Namespace
) -> int:
    started = time.perf_counter()
    compiled: CompiledKernel = kernel.compile(target, sizes)
    compiling = time.perf_counter() - started
    trial: Trial = run_trial(compiled, sizes, options.seed, simulate=options.target == "sim")
    print(f"{kernel.program.name} on {trial.where}, sizes {trial.sizes_text}")
    for output in trial.outputs:
        verdict = "right" if output.right else "WRONG"
        print(
            f"  {output.name}: {verdict}: the largest error is {output.error:.2e} of the largest "
            f"magnitude, {output.allowed:.2e} allowed"
        )
    print("proofs")
    for line in compiled.proof_report().splitlines():
        print(f"  {line}")
    how = f"compiled and proved{_when(compiled)}"
    print(f"{how} in {compiling:.3f} s, ran in {trial.seconds:.3f} s")
    return 0 if all(output.right for output in trial.outputs) else 1


if __name__ == "__main__":
    sys.exit(main())
