"""docs/errors.md lists every error, and its examples fail as it says."""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import tilewright
from tilewright.base.diagnostics import TilewrightError
from tilewright.codegen.sim.simulate import simulate
from tilewright.kernel.text import parse_kernel, print_kernel
from tilewright.kernel.verify import check
from tilewright.lower.obligations import raise_first_refuted, verify
from tilewright.target import target_named

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"


@dataclass(frozen=True)
class Section:
    """One error of the page: its heading, and its fenced blocks by language."""

    code: str
    name: str
    text: str

    def block(self, language: str) -> str | None:
        found = re.search(rf"^```{language}\n(.*?)^```$", self.text, re.DOTALL | re.MULTILINE)
        return found[1] if found else None


def sections() -> list[Section]:
    parts = re.split(r"^#{2,3} ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    headings = (re.match(r"(TW\d{3}) (\w+)\n", part) for part in parts)
    return [Section(h[1], h[2], h.string[h.end() :]) for h in headings if h]


def errors() -> dict[str, str]:
    """The name of every error class of the package, by its code."""
    for module in pkgutil.walk_packages(tilewright.__path__, "tilewright."):
        if not module.name.startswith("tilewright.torch"):  # needs an extra
            importlib.import_module(module.name)
    found: dict[str, str] = {}
    todo = TilewrightError.__subclasses__()
    while todo:
        kind = todo.pop()
        todo += kind.__subclasses__()
        if kind.__module__.partition(".")[0] == "tilewright":
            assert kind.code not in found, f"{kind.__name__} and {found[kind.code]} share a code"
            found[kind.code] = kind.__name__
    return found


def test_the_page_lists_every_error_once_in_order() -> None:
    known = errors()
    listed = [(s.code, s.name) for s in sections()]
    assert listed == sorted(known.items())


@pytest.mark.parametrize("section", sections(), ids=lambda s: s.code)
def test_a_section_has_an_example_and_a_mend(section: Section) -> None:
    shown = section.block("text")
    assert shown is not None
    assert shown.startswith(f"error[{section.code}]")
    assert "**Mend.** " in section.text


KERNELS = [s for s in sections() if s.block("kernel")]
SIZES = {"M": 40, "N": 70, "K": 7}


def prove_example(text: str) -> None:
    kernel = parse_kernel(text)
    raise_first_refuted(verify(kernel, target_named(kernel.target)))


def check_example(text: str) -> None:
    kernel = parse_kernel(text)
    check(kernel, target_named(kernel.target))


def simulate_example(text: str) -> None:
    kernel = parse_kernel(text)
    sizes = {symbol.name: SIZES[symbol.name] for symbol in kernel.symbols}
    arrays = {
        tensor.name: np.zeros([extent.evaluate(sizes) for extent in tensor.shape], np.float32)
        for tensor in kernel.tensors
    }
    simulate(kernel, target_named(kernel.target), arrays, sizes)


@pytest.mark.parametrize("section", KERNELS, ids=lambda s: s.code)
def test_a_kernel_example_fails_as_the_page_says(section: Section) -> None:
    judge = check_example if section.code == "TW401" else prove_example
    with pytest.raises(TilewrightError) as caught:
        judge(section.block("kernel") or "")
    assert caught.value.code == section.code
    first_line = str(caught.value).split("\n")[0]
    assert (section.block("text") or "").split("\n")[0] == first_line


@pytest.mark.parametrize(
    "section",
    # A reduction is what the kernel says it sums: only the proof knows what is missing.
    # The index example is too large to run.
    [s for s in KERNELS if s.code.startswith("TW3") and s.code not in ("TW303", "TW307")],
    ids=lambda s: s.code,
)
def test_the_simulator_raises_the_same_error(section: Section) -> None:
    with pytest.raises(TilewrightError) as caught:
        simulate_example(section.block("kernel") or "")
    assert caught.value.code == section.code


@pytest.mark.parametrize("section", KERNELS, ids=lambda s: s.code)
def test_a_kernel_example_is_printed_as_the_compiler_would(section: Section) -> None:
    text = section.block("kernel") or ""
    if section.code != "TW402":
        assert print_kernel(parse_kernel(text)) == text


def test_the_right_kernel_is_right() -> None:
    (text, *_) = re.findall(r"^```kernel\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    check_example(text)
    prove_example(text)
    simulate_example(text)
