"""Insert the barriers that exchanges through shared memory need, and no others.

A buffer is dirty from a store until the next barrier, and busy from a load until then. A load
of a dirty buffer and a store to a dirty or busy one need a barrier before them. Pipelined
buffers place their own barriers. The race proof checks the outcome independently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.kernel.ops import (
    AsyncCopy,
    Barrier,
    Body,
    If,
    Kernel,
    Load,
    Loop,
    Statement,
    Store,
    When,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _State:
    """What other threads may still be doing since the last barrier."""

    dirty: frozenset[str] = frozenset()
    busy: frozenset[str] = frozenset()

    def join(self, other: _State) -> _State:
        return _State(self.dirty | other.dirty, self.busy | other.busy)


_Make = Callable[[str], Statement]  # a barrier, for the reason given


def insert_barriers(kernel: Kernel, managed: frozenset[str], meet: _Make = Barrier) -> Kernel:
    """store s; load s  ->  store s; barrier; load s. Buffers in `managed` are left alone.

    `meet` makes a barrier of the threads that use the buffers: of the whole block by default.
    """
    ours = frozenset(s.name for s in kernel.shared) - managed
    body, _ = _body(kernel.body, _State(), ours, meet)
    return replace(kernel, body=body)


def _before_loop(loop: Loop, state: _State, ours: frozenset[str], meet: _Make) -> Statement | None:
    """The one barrier that a loop's body needs because of what was before the loop alone."""
    _, after = _body(loop.body, _State(), ours, meet)
    alone, _ = _body(loop.body, after, ours, meet)
    if len(alone) != len(loop.body) or any(
        a is not b for a, b in zip(alone, loop.body, strict=True)
    ):
        return None
    found, _ = _body(loop.body, state, ours, meet)
    return next((s for s in found if not any(s is b for b in loop.body)), None)


def _body(body: Body, state: _State, ours: frozenset[str], meet: _Make) -> tuple[Body, _State]:
    done: list[Statement] = []
    for statement in body:
        match statement:
            case Barrier():
                state = _State()
            case Loop() if (before := _before_loop(statement, state, ours, meet)) is not None:
                done.append(before)
                _, after = _body(statement.body, _State(), ours, meet)
                state = _State().join(after)
            case Loop():
                # The end of one step meets the beginning of the next.
                _, after = _body(statement.body, state, ours, meet)
                inner, after = _body(statement.body, state.join(after), ours, meet)
                statement = replace(statement, body=inner)
                state = state.join(after)
            case If() | When():
                inner, after = _body(statement.body, state, ours, meet)
                statement = replace(statement, body=inner)
                state = state.join(after)
            case Load() if statement.src.name in ours:
                name = statement.src.name
                if name in state.dirty:
                    done.append(meet(f"{name} was written by other threads"))
                    state = _State()
                state = _State(state.dirty, state.busy | {name})
            case Store() | AsyncCopy() if statement.dst.name in ours:
                name = statement.dst.name
                if name in state.dirty or name in state.busy:
                    done.append(meet(f"{name} is still in use by other threads"))
                    state = _State()
                state = _State(state.dirty | {name}, state.busy)
            case _:
                pass
        done.append(statement)
    return tuple(done), state
