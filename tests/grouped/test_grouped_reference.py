"""What grouped products mean on whole arrays, without tiles or a plan."""

from __future__ import annotations

import numpy as np
from grouped_programs import Case, Form, grouped, of_terms, terms_case

from tilewright.driver.reference import evaluate
from tilewright.lang.program import trace_program


def test_rows() -> None:
    form, counts = Form("KN", bias=True, scale=True), (20, 0, 13, 7)
    case = Case.of(form, counts, 24, 16, rest=5)
    sizes = {"T": 45, "E": 4, "N": 24, "K": 16}
    graph = trace_program(grouped(form).program, sizes, {})
    names = ("x", "w", "ends", "bias", "scale", "y")
    found = evaluate(graph, dict(zip(names, case.arrays, strict=True)), {}, sizes, {"K": 8})
    assert np.array_equal(found["y"].astype(np.float32), case.wanted.astype(np.float32))


def test_own_terms() -> None:
    counts = (20, 0, 13, 7)
    case = terms_case(counts, 24, 16)
    sizes = {"T": 40, "E": 4, "G": 4, "M": 24, "N": 16}
    graph = trace_program(of_terms().program, sizes, {})
    arguments = dict(zip(("x", "y", "ends", "out"), case.arrays, strict=True))
    found = evaluate(graph, arguments, {}, sizes, {"T": 8})
    assert np.array_equal(found["out"].astype(np.float32), case.wanted.astype(np.float32))
