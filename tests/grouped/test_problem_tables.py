"""The table of a list's launch: what it holds, how blocks find their row, what is refused."""

from __future__ import annotations

import ctypes
import re
import struct

import numpy as np
import pytest
from list_programs import UNEVEN, problem, products, wanted

from tilewright.base.diagnostics import CallError, CoverageError
from tilewright.codegen.problem_table import find_row
from tilewright.driver.overlaps import refuse_shared
from tilewright.kernel import problems as problems_module
from tilewright.kernel.problems import PARAMETER_BYTES, Row, checked_starts, joining, starts
from tilewright.poly.concatenation import located, starts_of
from tilewright.poly.results import Assumed, Proved, Refuted
from tilewright.runtime.cuda_driver import Module
from tilewright.runtime.launch import HEAD
from tilewright.runtime.tensor_maps import MapEncoder

# ---------------------------------------------------------------- the table


def test_the_table_that_a_launch_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pointers, maps, sizes and scalars of each problem in its row; where its blocks start."""
    from tilewright.runtime import launch as runtime_launch
    from tilewright.runtime import launch_problems

    given = [problem(s, i) for i, s in enumerate(UNEVEN[:3])]
    compiled = products(epilogue=True).compile_grouped(given)
    kernel = compiled.kernel
    row, room = Row.of(kernel), 4
    seen: list[bytes] = []

    class Driver:
        def context(self, place: int) -> int:
            ctypes.c_void_p.from_address(place).value = 7
            return 0

        def launch(self, configuration: int, _f: int, parameters: int, _e: None) -> int:
            address = ctypes.c_void_p.from_address(parameters).value or 0
            assert address == configuration + HEAD
            seen.append(ctypes.string_at(configuration, HEAD + row.bytes_for(room)))
            return 0

    monkeypatch.setattr(runtime_launch, "launch_calls", Driver)
    monkeypatch.setattr(MapEncoder, "encode", lambda _, p: struct.pack("Q", p) + bytes(120))
    symbols = [dict(zip("MNK", s, strict=True)) for s in UNEVEN[:3]]
    bound = [
        runtime_launch.bound_arguments(kernel, s, {"scale": one[4]})
        for s, one in zip(symbols, given, strict=True)
    ]
    launch = launch_problems.ProblemsLaunch(Module(None, 5, 7), kernel, room, bound)
    pointers = [[(4 * i + j + 1) << 12 for j in range(4)] for i in range(3)]
    flat = [p for own in pointers for p in own]
    launch(99, *flat)
    launch.fixed(runtime_launch.Caller(int), *flat)(99)
    assert seen[0] == seen[1]
    (data, _) = seen
    blocks = [b.blocks for b in bound]
    assert struct.unpack_from("I", data)[0] == sum(blocks)
    table = data[HEAD:]
    begins = struct.unpack_from("4i", table, row.starts_at(room))
    assert begins == (0, blocks[0], sum(blocks[:2]), 2**31 - 1)
    names = [*(t.name for t in kernel.tensors), *(m.name for m in kernel.maps),
             *(s.name for s in kernel.symbols), *(s.name for s in kernel.scalars)]  # fmt: skip
    for i, own in enumerate(pointers):
        where = dict(zip(names, (i * row.stride + o for o in row.offsets), strict=True))
        for tensor, pointer in zip(kernel.tensors, own, strict=True):
            assert struct.unpack_from("Q", table, where[tensor.name]) == (pointer,)
        for box in kernel.maps:
            assert where[box.name] % 64 == 0
            assert table[where[box.name] :][:8] == table[where[box.tensor] :][:8]
        for symbol in kernel.symbols:
            assert struct.unpack_from("i", table, where[symbol.name]) == (symbols[i][symbol.name],)
        assert struct.unpack_from("f", table, where["scale"]) == (given[i][4],)


@pytest.mark.parametrize("room", [1, 2, 5, 16, 63])
def test_a_block_finds_its_row(room: int) -> None:
    """The printed search, run in Python, against the lemma's."""
    text = "\n".join(find_row([], room, "blockIdx.x"))
    steps = re.findall(
        r"if \(tw_table\.starts\[tw_number \+ (\d+)\] <= \(int\)blockIdx\.x\) tw_number \+= (\d+);",
        text,
    )
    assert text.count("if (") == len(steps)
    random = np.random.default_rng(room)
    for count in {1, (room + 1) // 2, room}:
        blocks = random.integers(1, 7, count).tolist()
        table = starts(blocks, room)
        for block in range(sum(blocks)):
            number = 0
            for ahead, step in steps:
                if table[number + int(ahead)] <= block:
                    number += int(step)
            assert (number, block - table[number]) == located(starts_of(blocks), block)


def test_a_table_fits_the_parameters_of_a_kernel() -> None:
    row = Row.of(products().compile_grouped([problem(UNEVEN[0], 0)]).kernel)
    assert row.bytes_for(row.most) <= PARAMETER_BYTES < row.bytes_for(row.most + 1)
    assert [row.room(n, "gemm") for n in (1, 2, 3, 16, 17, 33, 63)] == [1, 2, 4, 16, 32, 63, 63]


# ---------------------------------------------------------------- faults


def test_starts_that_are_off_by_one_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [problem(s, i) for i, s in enumerate(UNEVEN[:2])]
    kernel = products().compile_grouped(given).kernel
    blocks = [16, 24]
    right = starts(blocks, 2)
    (decode, apart) = joining(kernel, right, blocks, 40)
    assert isinstance(decode.result, Proved)
    assert decode.result.note == "40 blocks are those of 2 problems, each once"
    assert isinstance(apart.result, Assumed)
    for wrong, message in (
        ((0, 15), "block 15 of problem 0 is run by nobody"),
        ((0, 17), "block 16 is block 16 of problem 0, which has 16"),
    ):
        (decode, _) = joining(kernel, wrong, blocks, 40)
        assert isinstance(decode.result, Refuted)
        assert decode.result.message.startswith(message)
        monkeypatch.setattr(problems_module, "starts", lambda *_, wrong=wrong: wrong)
        with pytest.raises(CoverageError, match=message):
            checked_starts(kernel, blocks, 2)


def test_problems_that_write_one_tensor_are_refused() -> None:
    first, second = problem(UNEVEN[0], 0), problem(UNEVEN[0], 1)
    twice = (*second[:3], first[3], second[4])
    kernel = products()
    with pytest.raises(CallError, match=r"c of problem . and c of problem . share memory, and c"):
        kernel.grouped([first, twice])
    with pytest.raises(CallError, match="share memory"):
        kernel.bind_grouped([first, twice])()


def test_a_problem_that_needs_anothers_result_is_refused() -> None:
    first, second = problem((64, 64, 64), 0), problem((64, 64, 64), 1)
    with pytest.raises(CallError, match="c of problem 0 and a of problem 1 share memory"):
        products().grouped([first, (first[3], *second[1:])])


def test_operands_may_be_shared() -> None:
    first, second = problem((64, 64, 64), 0), problem((72, 64, 64), 1)
    shared = (second[0], first[1], *second[2:])
    products().grouped([first, shared])
    for one in (first, shared):
        assert np.array_equal(one[3].astype(np.float64), wanted(one))


def test_overlaps_are_found_among_many() -> None:
    """Against each pair compared with each other."""
    from tilewright.runtime.arguments import view

    random = np.random.default_rng(5)
    tensors = products().compile_grouped([problem(UNEVEN[0], 0)]).kernel.tensors
    written = [t.name == "c" for t in tensors]
    memory = np.zeros(4000, np.int8)
    seen = {True: 0, False: 0}
    for _ in range(300):
        spans = [
            [(int(s), int(s) + 1 + int(random.integers(60))) for s in random.integers(0, 3900, 4)]
            for _ in range(3)
        ]
        flat = [(span, w) for row in spans for span, w in zip(row, written, strict=True)]
        meets = any(
            (v or w) and a[0] < b[1] and b[0] < a[1]
            for i, (a, v) in enumerate(flat) for b, w in flat[:i]
        )  # fmt: skip
        try:
            refuse_shared(tensors, [[view(memory[a:b]) for a, b in row] for row in spans])
            found = False
        except CallError:
            found = True
        assert found == meets
        seen[found] += 1
    assert min(seen.values()) > 10
