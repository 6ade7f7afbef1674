"""Device functions of the CUDA back end for asynchronous statements: PTX, one function each."""

from __future__ import annotations

from tilewright.codegen.prelude import function

_MAX_RANK = 5  # of a tensor map


def _asm(text: str, operands: str) -> str:
    return f'asm volatile("{text}"\n             :: {operands} : "memory");'


_PHASE = "unsigned long long* phase"
_AT = '"r"(tw_shared_address(phase))'

_WAIT = """
asm volatile("{\\n.reg .pred done;\\nagain:\\n"
             "mbarrier.try_wait.parity{order}.shared::cta.b64 done, [%0], %1;\\n"
             "@!done bra again;\\n}"
             :: "r"(tw_shared_address(phase)), "r"(parity) : "memory");
"""

_REMOTE = """
asm volatile("{\\n.reg .b32 there;\\nmapa.shared::cluster.u32 there, %0, %1;\\n"
             "mbarrier.arrive.shared::cluster.b64 _, [there];\\n}"
             :: "r"(tw_shared_address(phase)), "r"(block) : "memory");
"""


def _coordinates(rank: int) -> tuple[str, str]:
    """Parameters and operands of a box's coordinates; the copy engine wants the last axis first."""
    names = [f"c{i}" for i in range(rank)]
    return "".join(f", int {n}" for n in names), "".join(f', "r"({n})' for n in reversed(names))


def _numbers(first: int, rank: int) -> str:
    return "{" + ", ".join(f"%{first + i}" for i in range(rank)) + "}"


def _bulk_load(rank: int, *, multicast: bool) -> tuple[str, str]:
    parameters, operands = _coordinates(rank)
    kind = ".multicast::cluster" if multicast else ""
    last = f", %{3 + rank}" if multicast else ""
    return function(
        f"tw_bulk_load_{rank}d{'_multicast' if multicast else ''}",
        "void",
        f"void* dst, const tw_tensor_map& map, {_PHASE}{parameters}"
        + (", int blocks" if multicast else ""),
        _asm(
            f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
            f"{kind} [%0], [%1, {_numbers(3, rank)}], [%2]{last};",
            f'"r"(tw_shared_address(dst)), "l"(&map), {_AT}{operands}'
            + (', "h"((unsigned short)blocks)' if multicast else ""),
        ),
    )


def _bulk_store(rank: int) -> tuple[str, str]:
    parameters, operands = _coordinates(rank)
    return function(
        f"tw_bulk_store_{rank}d",
        "void",
        f"const tw_tensor_map& map, const void* src{parameters}",
        _asm(
            f"cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group"
            f" [%0, {_numbers(2, rank)}], [%1];",
            f'"l"(&map), "r"(tw_shared_address(src)){operands}',
        ),
    )


def _remote_store(words: int) -> tuple[str, str]:
    vector = "" if words == 1 else f".v{words}"
    value = "%3" if words == 1 else _numbers(3, words)
    names = [f"r{i}" for i in range(words)]
    operands = "".join(f', "r"({n})' for n in names)
    return function(
        f"tw_remote_store_{4 * words}",
        "void",
        f"void* dst, int block, {_PHASE}, " + ", ".join(f"unsigned {n}" for n in names),
        _asm(
            "{\\n.reg .b32 there, then;\\nmapa.shared::cluster.u32 there, %0, %1;\\n"
            "mapa.shared::cluster.u32 then, %2, %1;\\n"
            f"st.async.shared::cluster.mbarrier::complete_tx::bytes{vector}.b32 [there], {value}, "
            "[then];\\n}",
            f'"r"(tw_shared_address(dst)), "r"(block), {_AT}{operands}',
        ),
    )


# The branch is never taken, which ptxas cannot know. Without it, ptxas 13 reads the last two
# accumulators before the wait, for n = 72, 104, 184, 224 and many others: to ptxas the registers
# that are held are free to move within straight code.
_WAIT_PRODUCTS = """
asm volatile("{\\n.reg .pred again;\\n.reg .b32 warps;\\nmov.u32 warps, %nwarpid;\\n"
             "setp.eq.u32 again, warps, 0;\\nwaiting:\\n"
             "wgmma.wait_group.sync.aligned 0;\\n@again bra waiting;\\n}" ::: "memory");
"""

# What the lanes have stored before comes before the flag, for who sees the flag.
_ANNOUNCE = """
__syncwarp();
if (lane == 0) asm volatile("st.release.gpu.global.u32 [%0], 1;" :: "l"(flag) : "memory");
"""

_AWAIT = """
if (lane == 0) {
  unsigned there;
  do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(flag) : "memory");
  while (!there);
  asm volatile("st.relaxed.gpu.global.u32 [%0], 0;" :: "l"(flag) : "memory");
}
__syncwarp();
"""

_COLLECT = """
int4 r;
asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
             : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p) : "memory");
return r;
"""

_HOLD = """
#pragma unroll
for (int i = 0; i < n; ++i) asm volatile("" : "+{constraint}"(fragment[i]) :: "memory");
"""

_HOLD_ROWS = """
#pragma unroll
for (int i = 0; i < n; ++i) tw_hold(fragment[i]);
"""

# The start address in units of 16 bytes, then the two strides alike, then the swizzle mode.
# In a cluster the upper bits of a shared address name the block; the descriptor takes none.
# A tile's place is added in the descriptor's own units: the base is computed once, not each time.
_DESCRIPTOR = """
const unsigned low = ((tw_shared_address(p) & 0x3ffff) >> 4 | leading / 16 << 16) + units;
const unsigned high = stride / 16 | mode << 30;
return (unsigned long long)high << 32 | low;
"""

_MATRIX_STORES = tuple(
    function(
        f"tw_matrix_store_x{count}{trans.replace('.', '_')}",
        "void",
        ", ".join(["void* row", *(f"unsigned r{i}" for i in range(count))]),
        _asm(
            f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%0], {_numbers(1, count)};",
            ", ".join(['"r"(tw_shared_address(row))', *(f'"r"(r{i})' for i in range(count))]),
        ),
    )
    for count in (1, 2, 4)
    for trans in ("", ".trans")
)

ASYNC_PRELUDE: dict[str, str] = dict(
    (
        (
            "tw_tensor_map",
            "struct alignas(64) tw_tensor_map { unsigned long long words[16]; };",
        ),
        function(
            "tw_prefetch_map",
            "void",
            "const tw_tensor_map& map",
            _asm("prefetch.tensormap [%0];", '"l"(&map)'),
        ),
        function(
            "tw_phase_init",
            "void",
            f"{_PHASE}, int arrivals",
            _asm("mbarrier.init.shared::cta.b64 [%0], %1;", f'{_AT}, "r"(arrivals)'),
        ),
        function(
            "tw_arrive",
            "void",
            _PHASE,
            _asm("mbarrier.arrive.shared::cta.b64 _, [%0];", _AT),
        ),
        function("tw_arrive_in_block", "void", f"{_PHASE}, int block", _REMOTE),
        function(
            "tw_arrive_expect",
            "void",
            f"{_PHASE}, int size",
            _asm("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;", f'{_AT}, "r"(size)'),
        ),
        *(
            function(name, "void", f"{_PHASE}, int parity", _WAIT.replace("{order}", order))
            for name, order in (
                ("tw_phase_wait", ""),
                ("tw_phase_wait_cluster", ".acquire.cluster"),
            )
        ),
        function("tw_wait_products", "void", "", _WAIT_PRODUCTS),
        function(
            "tw_deposit",
            "void",
            "int4* p, int4 r",
            _asm(
                "st.global.v4.b32 [%0], {%1, %2, %3, %4};",
                '"l"(p), "r"(r.x), "r"(r.y), "r"(r.z), "r"(r.w)',
            ),
        ),
        function("tw_collect", "int4", "const int4* p", _COLLECT),
        function("tw_announce", "void", "unsigned* flag, int lane", _ANNOUNCE),
        function("tw_await", "void", "unsigned* flag, int lane", _AWAIT),
        *(_remote_store(words) for words in (1, 2, 4)),
        *(
            _bulk_load(rank, multicast=multicast)
            for rank in range(1, _MAX_RANK + 1)
            for multicast in (False, True)
        ),
        *(_bulk_store(rank) for rank in range(1, _MAX_RANK + 1)),
        (
            "tw_hold",
            "\n".join(
                (
                    *(
                        "template <int n>\n"
                        + function(
                            "tw_hold",
                            "void",
                            f"{kind} (&fragment)[n]",
                            _HOLD.replace("{constraint}", constraint),
                        )[1]
                        for kind, constraint in (("float", "f"), ("int", "r"))
                    ),
                    "template <int n, class T>",
                    function("tw_hold", "void", "T (&fragment)[n]", _HOLD_ROWS)[1],
                )
            ),
        ),
        (
            "tw_matrix_descriptor",
            "template <unsigned leading, unsigned stride, unsigned mode>\n"
            + function(
                "tw_matrix_descriptor",
                "unsigned long long",
                "const void* p, int units",
                _DESCRIPTOR,
            )[1],
        ),
        *_MATRIX_STORES,
    )
)
