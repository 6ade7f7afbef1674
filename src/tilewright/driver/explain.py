"""`explain`: the plan, the layouts, what was inserted and why, and the proofs, as text."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.driver.compile import Compilation
from tilewright.graph.text import print_graph
from tilewright.kernel.async_ops import RemoteStore
from tilewright.kernel.ops import Assign, Barrier, Load, Reduce, Store, walk
from tilewright.lower.obligations import report
from tilewright.schedule.text import print_plan


def explain(compilation: Compilation) -> str:
    """Everything an author may ask about a compiled kernel, in sections."""
    program = print_graph(compilation.graph).splitlines()[1:]
    sections = (
        ("program", [line.removeprefix("  ") for line in program]),
        ("digits and places", print_plan(compilation.plan).splitlines()),
        ("layouts", list(_layouts(compilation))),
        ("inserted", list(_inserted(compilation)) or ["nothing"]),
        ("proofs", report(compilation.obligations).splitlines()),
    )
    lines = [f"{compilation.kernel.name} for {compilation.specialisation.target.name}"]
    for title, content in sections:
        lines += ["", title, *(f"  {line}" for line in content)]
    return "\n".join(lines)


def _layouts(compilation: Compilation) -> Iterator[str]:
    for fragment in compilation.kernel.registers:
        shape = ", ".join(str(n) for n in fragment.shape)
        yield f"{fragment.name}: {fragment.dtype.name}[{shape}] holds {fragment.holds}"
    for buffer in compilation.kernel.shared:
        shape = ", ".join(str(n) for n in buffer.shape)
        swizzle = "" if buffer.swizzle is None else ", swizzled"
        yield f"{buffer.name}: {buffer.dtype.name}[{shape}] in shared memory{swizzle}"


def _inserted(compilation: Compilation) -> Iterator[str]:
    for statement in walk(compilation.kernel.body):
        match statement:
            case Barrier(note):
                yield f"barrier: {note}"
            case Assign() | Reduce() if statement.note:
                yield f"{statement.dst.name}: {statement.note}"
            case Load() if statement.note:
                yield f"load of {statement.src.name}: {statement.note}"
            case RemoteStore() if statement.note:
                yield f"store to {statement.dst.name} of another block: {statement.note}"
            case Store() if statement.note:
                yield f"store to {statement.dst.name}: {statement.note}"
            case _:
                pass
