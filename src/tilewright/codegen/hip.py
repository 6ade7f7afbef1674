"""HIP for AMD's matrix cores: C++ on compiler builtins, no HIP header, no device library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.base.diagnostics import UnsupportedError
from tilewright.base.dtypes import DType
from tilewright.codegen.access import AccessPrinter
from tilewright.codegen.c_like import print_kernel
from tilewright.codegen.dialect import Copy, plain_copy, stored_type
from tilewright.codegen.hip_prelude import MISSING_F64, PRELUDE
from tilewright.codegen.prelude import FUNCTION
from tilewright.kernel.async_ops import AsyncStatement
from tilewright.kernel.ops import Kernel
from tilewright.poly.layout import Place
from tilewright.target.model import MatrixLoad, MmaAtom, Scope, Target


def print_hip(kernel: Kernel, target: Target, room: int = 0) -> str:
    """`kernel` as a HIP translation unit; the launch is described by `print_kernel`."""
    return print_kernel(kernel, target, _Hip(_dtypes(target)), room)


_ATTRIBUTES = (
    "#define __global__ __attribute__((global))",
    "#define __device__ __attribute__((device))",
    "#define __shared__ __attribute__((shared))",
    "#define __forceinline__ inline __attribute__((always_inline))",
)


def _dtypes(target: Target) -> frozenset[str]:
    """The target's element types: its matrix instructions tell which 8-bit floats it has."""
    suffix = "fnuz" if any(a.a_dtype.name.endswith("fnuz") for a in target.mma_atoms) else ""
    wide = ("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "bool")
    return frozenset((*wide, f"f8e4m3{suffix}", f"f8e5m2{suffix}"))


def _missing(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"the HIP back end has no {what}",
        expected="a kernel lowered for a target that has none of them",
    )


@dataclass(frozen=True, slots=True)
class _Hip:
    dtypes: frozenset[str]

    @property
    def prelude(self) -> Mapping[str, str]:
        return PRELUDE

    @property
    def counters(self) -> Mapping[str, str]:
        return {
            "block": "__builtin_amdgcn_workgroup_id_x()",
            "thread": "__builtin_amdgcn_workitem_id_x()",
        }

    def warp(self, quotient: str, _kernel: Kernel, /) -> str:
        return quotient

    @property
    def vectors(self) -> Mapping[int, str]:
        return {1: "char", 2: "short", 4: "int", 8: "tw_int2", 16: "tw_int4"}

    def lacks(self, operation: str, dtype: DType, /) -> bool:
        return dtype.name == "f64" and operation in MISSING_F64

    def opening(self) -> list[str]:
        return list(_ATTRIBUTES)

    def signature(self, name: str, kernel: Kernel) -> str:
        threads = kernel.threads
        size = f"__attribute__((amdgpu_flat_work_group_size({threads}, {threads})))"
        return f'extern "C" __global__ {size} void {name}'

    def asynchronous(self, statement: AsyncStatement, _access: AccessPrinter, /) -> list[str]:
        raise _missing(type(statement).__name__)

    def map_parameter(self, name: str, /) -> str:
        raise _missing(f"tensor map {name}")

    def table_parameter(self, kind: str, name: str, /) -> str:
        return f"const {kind} {name}"

    def matrix_store_declaration(self, store: MatrixLoad) -> tuple[str, str]:
        raise _missing(f"matrix store {store.name}")

    def shared(self, size: int, /) -> str:
        return f"__shared__ __attribute__((aligned(128))) unsigned char tw_shared[{size}];"

    def barrier(self) -> str:
        return "tw_barrier();"

    def async_copy(self, copy: Copy, /) -> list[str]:
        """Through registers: a load and a store, complete at once for the thread."""
        return plain_copy(copy, self.vectors[copy.bytes])

    def async_commit(self) -> list[str]:
        return []

    def async_wait(self, _pending: int, /) -> list[str]:
        return []

    def lane_xor(self, value: str, _dtype: DType, mask: int, /) -> str:
        return f"tw_lane_xor({value}, {mask})"

    def lane_read(self, value: str, _dtype: DType, lane: str, /) -> str:
        return f"tw_lane_read({value}, {lane})"

    def mma_declaration(self, atom: MmaAtom) -> tuple[str, str]:
        if atom.scope is not Scope.WARP:
            raise UnsupportedError(
                f"the HIP back end prints no {atom.scope.value} atoms, and {atom.name} is one",
                expected="an atom that one warp executes",
                mend="choose a warp atom",
            )
        name = "tw_" + re.sub(r"\W", "_", atom.name)
        operands = (
            ("D", atom.d_dtype, atom.d.count(Place.REGISTER)),
            ("A", atom.a_dtype, atom.a.count(Place.REGISTER)),
            ("B", atom.b_dtype, atom.b.count(Place.REGISTER)),
        )
        d, a, b = (stored_type(dtype) for _, dtype, _ in operands)
        return name, "\n".join(
            (
                f"{FUNCTION} void {name}({d}* d, const {a}* a, const {b}* b) {{",
                *(f"  typedef {_machine_type(*operand)};" for operand in operands),
                f"  *(D*)d = {atom.emit}(*(const A*)a, *(const B*)b, *(D*)d, 0, 0, 0);",
                "}",
            )
        )

    def matrix_load_declaration(self, load: MatrixLoad) -> tuple[str, str]:
        raise UnsupportedError(
            f"the HIP back end has no matrix load {load.name}",
            expected="plain loads",
            mend="leave `matrix` out",
        )


def _machine_type(alias: str, dtype: DType, elements: int) -> str:
    """The compiler's type of an operand, as a typedef's declaration of `alias`.

    Fragments are aligned as their rows are, which may be less than a long vector's.
    """
    if dtype.bits == 8:
        return f"{'long' if elements == 8 else 'int'} {alias}"
    kind = {"f16": "_Float16", "bf16": "short"}.get(dtype.name, stored_type(dtype))
    if elements == 1:
        return f"{kind} {alias}"
    return f"{kind} {alias} __attribute__((ext_vector_type({elements}), aligned(4)))"
