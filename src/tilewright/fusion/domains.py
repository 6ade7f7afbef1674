"""Iteration domains: which dimensions of which values are the same axis of a kernel.

A union-find over dimensions. Two dimensions of one value may never become one axis; a join that
would make them so is refused before anything changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Carrier = int  # a value, or one read of a buffer: whatever has dimensions
Element = int


class Domains:
    """Classes of dimensions. Each knows the carriers that it occurs in."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._carriers: list[dict[Carrier, int]] = []
        self.sizes: list[int] = []

    def add(self, carrier: Carrier, dim: int, size: int) -> Element:
        """A class of its own for a dimension."""
        self._parent.append(len(self._parent))
        self._carriers.append({carrier: dim})
        self.sizes.append(size)
        return len(self._parent) - 1

    def find(self, element: Element) -> Element:
        root = element
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[element] != root:
            self._parent[element], element = root, self._parent[element]
        return root

    def carriers(self, root: Element) -> dict[Carrier, int]:
        return self._carriers[root]

    def union(self, left: Element, right: Element) -> None:
        """Make one class of two; `Trial` has checked that it may be."""
        a, b = self.find(left), self.find(right)
        if a == b:
            return
        if len(self._carriers[a]) < len(self._carriers[b]):
            a, b = b, a
        self._parent[b] = a
        self._carriers[a].update(self._carriers[b])
        self._carriers[b] = {}


class Trial:
    """Joins that are tried: nothing changes before `commit`."""

    def __init__(self, domains: Domains) -> None:
        self._domains = domains
        self._cluster: dict[Element, list[Element]] = {}

    def find(self, element: Element) -> Element:
        root = self._domains.find(element)
        cluster = self._cluster.get(root)
        return cluster[0] if cluster else root

    def join(self, pairs: Iterable[tuple[Element, Element]]) -> bool:
        """Join all pairs, or none of them where a value would have one axis twice."""
        before = dict(self._cluster)
        for left, right in pairs:
            if not self._join(self._domains.find(left), self._domains.find(right)):
                self._cluster = before
                return False
        return True

    def _join(self, left: Element, right: Element) -> bool:
        a, b = self._cluster.get(left, [left]), self._cluster.get(right, [right])
        if a[0] == b[0]:
            return True
        if any(self._meet(x, y) for x in a for y in b):
            return False
        both = a + b
        self._cluster.update(dict.fromkeys(both, both))
        return True

    def _meet(self, left: Element, right: Element) -> bool:
        """Whether a value has a dimension in both classes."""
        few, many = self._domains.carriers(left), self._domains.carriers(right)
        if len(few) > len(many):
            few, many = many, few
        return any(carrier in many for carrier in few)

    def axes(self, elements: Iterable[Element]) -> set[Element]:
        return {self.find(e) for e in elements}

    def commit(self) -> None:
        for element, cluster in self._cluster.items():
            self._domains.union(element, cluster[0])


def pairs_of(
    left: Sequence[Element | None], right: Sequence[Element | None]
) -> list[tuple[Element, Element]]:
    """Dimensions side by side, where both are axes."""
    return [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None]
