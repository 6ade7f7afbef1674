"""Random programs over random shapes: whatever is composed with whatever, as torch computes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fusion_check import check, define, torch

LARGEST = 4000  # elements of a value


class Torch:
    """torch under the names of `fd.ops`."""

    add, mul, maximum, matmul, tanh = torch.add, torch.mul, torch.maximum, torch.matmul, torch.tanh

    def sum(self, x, dims, keepdim):
        return x.sum(dims, keepdim)

    def amax(self, x, dims, keepdim):
        return x.amax(dims, keepdim)

    def permute(self, x, dims):
        return x.permute(dims)

    def reshape(self, x, shape):
        return x.reshape(shape)

    def expand(self, x, shape):
        return x.expand(shape)

    def flip(self, x, dims):
        return x.flip(dims)

    def cat(self, tensors, dim):
        return torch.cat(tensors, dim)

    def slice(self, x, starts, ends, steps):
        parts = zip(starts, ends, steps, strict=True)
        return x[tuple(slice(*part) for part in parts)]

    def pad(self, x, widths, value):
        return torch.nn.functional.pad(x, widths, value=value)

    def softmax(self, x, dim):
        return torch.softmax(x, dim)

    def unsqueeze(self, x, dim):
        return x.unsqueeze(dim)

    def squeeze(self, x, dim):
        return x.squeeze(dim)

    def cumsum(self, x, dim):
        return x.cumsum(dim)


def meets(left, right) -> bool:
    return all(a == b or 1 in (a, b) for a, b in zip(reversed(left), reversed(right), strict=False))


class Maker:
    """Chooses steps that fit the shapes of the values so far. A step is (name, arguments)."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.values: list[Any] = []

    def below(self, limit: int) -> int:
        return int(self.rng.integers(max(limit, 1)))

    def one_of(self, items: list) -> Any:
        return items[self.below(len(items))]

    def step(self) -> tuple[str, tuple]:
        i = self.below(len(self.values))
        shape = list(self.values[i].shape)
        if not shape or self.below(4) == 0:
            fitting = [j for j, y in enumerate(self.values) if meets(shape, y.shape)]
            return self.one_of(["add", "mul", "maximum"]), (_V(i), _V(self.one_of(fitting)))
        kinds = [self.reduction, self.movement, self.shaping, self.window, self.partner, self.along]
        return self.one_of(kinds)(i, shape, self.below(len(shape)))

    def reduction(self, i: int, shape: list[int], dim: int) -> tuple[str, tuple]:
        dims = sorted({dim, self.below(len(shape))})
        return self.one_of(["sum", "amax"]), (_V(i), dims, bool(self.below(2)))

    def movement(self, i: int, shape: list[int], dim: int) -> tuple[str, tuple]:
        if self.below(2):
            return "permute", (_V(i), [int(d) for d in self.rng.permutation(len(shape))])
        return "flip", (_V(i), [dim])

    def shaping(self, i: int, shape: list[int], dim: int) -> tuple[str, tuple]:
        match self.below(4):
            case 0:
                return "unsqueeze", (_V(i), dim)
            case 1 if shape[dim] == 1:
                return "squeeze", (_V(i), dim)
            case 2:
                return "expand", (_V(i), [3 if n == 1 else n for n in shape])
            case _:
                n = int(np.prod(shape))
                split = self.one_of([a for a in range(1, n + 1) if n % a == 0])
                return "reshape", (_V(i), [split, n // split])

    def window(self, i: int, shape: list[int], dim: int) -> tuple[str, tuple]:
        if self.below(2):
            return "pad", (_V(i), [self.below(3), self.below(2)], 0.5)
        starts = [self.below(n) for n in shape]
        ends = [min(n, s + 1 + self.below(4)) for n, s in zip(shape, starts, strict=True)]
        return "slice", (_V(i), starts, ends, [1 + self.below(2) for _ in shape])

    def partner(self, i: int, shape: list[int], dim: int) -> tuple[str, tuple]:
        joins = [
            j for j, y in enumerate(self.values)
            if [n for d, n in enumerate(y.shape) if d != dim]
            == [n for d, n in enumerate(shape) if d != dim] and y.dim() == len(shape)
        ]  # fmt: skip
        factors = [
            j for j, y in enumerate(self.values)
            if y.dim() in (1, 2) and y.shape[-2 if y.dim() > 1 else 0] == shape[-1]
        ]  # fmt: skip
        if factors and self.below(2):
            return "matmul", (_V(i), _V(self.one_of(factors)))
        return "cat", ([_V(i), _V(self.one_of(joins))], dim)

    def along(self, i: int, shape: list[int], dim: int) -> tuple[str, tuple]:
        return self.one_of(["softmax", "cumsum"]), (_V(i), dim)


class _V(int):
    """The number of a value, among arguments that are numbers themselves."""


def run(o: Any, inputs: list, steps: list[tuple[str, tuple]]) -> list:
    """The values of all steps; what grows is kept in bounds by tanh."""
    values = list(inputs)

    def resolve(argument: Any) -> Any:
        if isinstance(argument, _V):
            return values[argument]
        is_list = isinstance(argument, list)
        return [resolve(a) for a in argument] if is_list else argument

    for name, arguments in steps:
        made = getattr(o, name)(*map(resolve, arguments))
        values.append(o.tanh(made) if name in ("mul", "sum", "matmul", "cumsum") else made)
    return values[len(inputs) :]


@pytest.mark.parametrize("seed", range(30))
def test_random_program(seed) -> None:
    maker = Maker(seed)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(3):
        shape = [1 + maker.below(5) for _ in range(maker.below(4))]
        maker.values.append(torch.rand(shape, dtype=torch.float64, generator=generator) - 0.3)
    inputs, steps = list(maker.values), []
    while len(steps) < 4 + seed % 9:
        step = maker.step()
        made = run(Torch(), maker.values, [step])[0]
        if made.numel() <= LARGEST and made.dim() <= 4:
            steps.append(step)
            maker.values.append(made)
    everything = run(Torch(), inputs, steps)
    kept = everything if seed % 2 else everything[-1:]

    def build(fd) -> None:
        for value in run(fd.ops, define(fd, *inputs), steps)[-len(kept) :]:
            fd.add_output(value)

    check(build, inputs, [k.contiguous() for k in kept], tolerance=(1e-9, 1e-9))
