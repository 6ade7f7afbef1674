"""CUDA C++ with inline PTX, self-contained: NVRTC compiles it with no header."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.base.dtypes import DType
from tilewright.codegen.access import AccessPrinter
from tilewright.codegen.c_like import print_kernel
from tilewright.codegen.cuda_async import print_async, warpgroup_function
from tilewright.codegen.cuda_async_prelude import ASYNC_PRELUDE
from tilewright.codegen.cuda_prelude import DTYPES, PRELUDE
from tilewright.codegen.dialect import STORED, Copy, call, plain_copy, stored_type
from tilewright.codegen.prelude import FUNCTION, function
from tilewright.kernel.async_ops import AsyncStatement, SetRegisters
from tilewright.kernel.ops import Kernel, walk
from tilewright.kernel.scopes import is_warpgroup_wide
from tilewright.poly.layout import Place
from tilewright.target.model import MatrixLoad, MmaAtom, Scope, Target


def print_cuda(kernel: Kernel, target: Target, room: int = 0) -> str:
    """`kernel` as a CUDA C++ translation unit; the launch is described by `print_kernel`."""
    return print_kernel(kernel, target, _Cuda(), room)


_WHOLE_WARP = "0xffffffffu"


@dataclass(frozen=True, slots=True)
class _Cuda:
    @property
    def prelude(self) -> Mapping[str, str]:
        return {**PRELUDE, **ASYNC_PRELUDE}

    @property
    def dtypes(self) -> frozenset[str]:
        return DTYPES

    @property
    def counters(self) -> Mapping[str, str]:
        return {"block": "blockIdx.x", "thread": "threadIdx.x"}

    def warp(self, quotient: str, kernel: Kernel, /) -> str:
        if not any(is_warpgroup_wide(s) for s in walk(kernel.body)):
            return quotient
        # The matrix unit takes uniform registers. What depends on the warp is computed in them
        # where ptxas sees that all lanes agree: half of the instructions of a main loop. The mask
        # says how large the number is, which the shuffle hides; lists of products spill without.
        most = (1 << (kernel.warps - 1).bit_length()) - 1
        return f"__shfl_sync({_WHOLE_WARP}, {quotient}, 0) & {most}"

    @property
    def vectors(self) -> Mapping[int, str]:
        return {1: "char", 2: "short", 4: "int", 8: "int2", 16: "int4"}

    def lacks(self, _operation: str, _dtype: DType, /) -> bool:
        return False

    def opening(self) -> list[str]:
        return []

    def signature(self, name: str, kernel: Kernel) -> str:
        cluster = kernel.cluster
        ranks = f" __cluster_dims__({cluster}, 1, 1)" if cluster > 1 else ""
        # `setmaxnreg` takes effect only in a kernel that states its blocks per multiprocessor.
        roles = any(isinstance(s, SetRegisters) for s in walk(kernel.body))
        bounds = f"{kernel.threads}, 1" if roles else f"{kernel.threads}"
        return f'extern "C" __global__ void __launch_bounds__({bounds}){ranks} {name}'

    def asynchronous(self, statement: AsyncStatement, access: AccessPrinter, /) -> list[str]:
        return print_async(statement, access)

    def map_parameter(self, name: str, /) -> str:
        return f"const __grid_constant__ tw_tensor_map {name}"

    def table_parameter(self, kind: str, name: str, /) -> str:
        return f"const __grid_constant__ {kind} {name}"

    def shared(self, _size: int, /) -> str:
        return "extern __shared__ __align__(1024) unsigned char tw_shared[];"

    def barrier(self) -> str:
        return "__syncthreads();"

    def async_copy(self, copy: Copy, /) -> list[str]:
        if copy.bytes < 4:
            return plain_copy(copy, self.vectors[copy.bytes])
        name = f"tw_copy_async_{copy.bytes}"
        if copy.guard:
            return call(f"{name}_if", copy.guard, copy.dst, copy.src)
        return call(name, copy.dst, copy.src)

    def async_commit(self) -> list[str]:
        return ['asm volatile("cp.async.commit_group;" ::: "memory");']

    def async_wait(self, pending: int, /) -> list[str]:
        return [f'asm volatile("cp.async.wait_group {pending};" ::: "memory");']

    def lane_xor(self, value: str, dtype: DType, mask: int, /) -> str:
        return _shuffle("__shfl_xor_sync", value, dtype, str(mask))

    def lane_read(self, value: str, dtype: DType, lane: str, /) -> str:
        return _shuffle("__shfl_sync", value, dtype, lane)

    def mma_declaration(self, atom: MmaAtom) -> tuple[str, str]:
        if atom.scope is Scope.WARPGROUP:
            return warpgroup_function(atom)
        d = _operand("d", atom.d_dtype, atom.d.count(Place.REGISTER))
        a = _operand("a", atom.a_dtype, atom.a.count(Place.REGISTER))
        b = _operand("b", atom.b_dtype, atom.b.count(Place.REGISTER))
        numbers = iter(f"%{i}" for i in range(len(d.words) + len(a.words) + len(b.words)))
        lists = ["{" + ", ".join(next(numbers) for _ in o.words) + "}" for o in (d, a, b)]
        name = "tw_" + re.sub(r"\W", "_", atom.name)
        outputs = ", ".join(f'"+{d.constraint}"({w})' for w in d.words)
        inputs = ", ".join(f'"{o.constraint}"({w})' for o in (a, b) for w in o.words)
        parameters = ", ".join(
            f"{const}{stored_type(o.dtype)}* {o.name}"
            for const, o in (("", d), ("const ", a), ("const ", b))
        )
        return name, "\n".join(
            (
                f"{FUNCTION} void {name}({parameters}) {{",
                f'  asm("{atom.emit} {lists[0]}, {lists[1]}, {lists[2]}, {lists[0]};"',
                f"      : {outputs}",
                f"      : {inputs});",
                "}",
            )
        )

    def matrix_store_declaration(self, store: MatrixLoad) -> tuple[str, str]:
        name = "tw_matrix_store_" + re.sub(r"\W", "_", store.name)
        return name, ASYNC_PRELUDE[name]

    def matrix_load_declaration(self, load: MatrixLoad) -> tuple[str, str]:
        count = load.tiles
        parameters = ", ".join(f"unsigned& r{i}" for i in range(count))
        results = ", ".join(f"%{i}" for i in range(count))
        outputs = ", ".join(f'"=r"(r{i})' for i in range(count))
        return function(
            "tw_matrix_load_" + re.sub(r"\W", "_", load.name),
            "void",
            f"{parameters}, const void* row",
            f'asm volatile("{load.emit} {{{results}}}, [%{count}];"\n'
            f'             : {outputs} : "r"(tw_shared_address(row)) : "memory");',
        )


@dataclass(frozen=True, slots=True)
class _Operand:
    """An operand of an instruction: the C texts of its machine words and their constraint."""

    name: str
    dtype: DType
    words: tuple[str, ...]
    constraint: str


def _operand(name: str, dtype: DType, elements: int) -> _Operand:
    """Elements of 32 or 64 bits are words of their own; narrower ones are packed by four bytes.

    A float operand that is not an accumulator (tf32) is passed as its bits.
    """
    constraint = {"f64": "d", "f32": "f", "i64": "l"}.get(dtype.name, "r")
    if dtype.name == "f32" and name != "d":
        words = (f"((const unsigned*){name})[{i}]" for i in range(elements))
        return _Operand(name, dtype, tuple(words), "r")
    if dtype.bits >= 32:
        return _Operand(name, dtype, tuple(f"{name}[{i}]" for i in range(elements)), constraint)
    pointer = f"((unsigned*){name})" if name == "d" else f"((const unsigned*){name})"
    count = elements * dtype.bits // 32
    return _Operand(name, dtype, tuple(f"{pointer}[{i}]" for i in range(count)), constraint)


def _shuffle(name: str, value: str, dtype: DType, lane: str) -> str:
    """Types without a shuffle of their own travel as an int."""
    if dtype.bits >= 32:
        return f"{name}({_WHOLE_WARP}, {value}, {lane})"
    kind = STORED.get(dtype.name, stored_type(dtype))
    return f"({kind}){name}({_WHOLE_WARP}, (int){value}, {lane})"
