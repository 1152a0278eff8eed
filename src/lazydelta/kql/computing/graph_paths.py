"""Paths in a graph: occurrences of patterns, and components.

A graph arrives as rows of nodes (their number and properties) and of edges (the numbers of both ends and properties).
It is held in memory; matches are found depth first and returned in batches as they are found.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lazydelta.kql.computing.steps import batch_of

__all__ = ["PatternEdge", "components", "degrees", "matches"]

_MATCHES = 2048


class PatternEdge(NamedTuple):
    """An edge of a pattern between two variables of nodes; ``hops`` is None for exactly one edge.

    ``allowed`` is the number of a flag of edges that every edge must have, or None.
    """

    source: int
    target: int
    direction: str
    hops: tuple[int, int] | None
    allowed: int | None


@dataclass(slots=True)
class _Graph:
    nodes: pa.Array
    edges: pa.Array
    ends: list[tuple[int, int]] = field(default_factory=list)
    node_flags: list[list[bool]] = field(default_factory=list)
    edge_flags: list[list[bool]] = field(default_factory=list)
    out: list[list[tuple[int, int]]] = field(default_factory=list)
    into: list[list[tuple[int, int]]] = field(default_factory=list)

    @classmethod
    def read(cls, batches: Iterator[pa.RecordBatch]) -> _Graph:
        """Return the graph of rows: is an edge, ends, flags, properties of a node, properties of an edge."""
        # There is a row for each node at least, unless the graph is empty.
        found = list(batches)
        if not found:
            return cls(pa.nulls(0), pa.nulls(0))
        table = pa.Table.from_batches(found).combine_chunks()
        is_edge = table.column(0).combine_chunks()
        nodes, edges = table.filter(pc.invert(is_edge)), table.filter(is_edge)
        made = cls(_whole(nodes.column(4)), _whole(edges.column(5)))
        made.ends = list(zip(edges.column(1).to_pylist(), edges.column(2).to_pylist(), strict=True))
        made.node_flags, made.edge_flags = (each.column(3).to_pylist() for each in (nodes, edges))
        made.out = [[] for _ in range(nodes.num_rows)]
        made.into = [[] for _ in range(nodes.num_rows)]
        for number, (source, target) in enumerate(made.ends):
            made.out[source].append((number, target))
            made.into[target].append((number, source))
        return made

    def steps(self, node: int, direction: str) -> Iterator[tuple[int, int]]:
        """Return the edges that leave a node in a direction, with the nodes at their other ends."""
        if direction in {">", "-"}:
            yield from self.out[node]
        if direction in {"<", "-"}:
            for number, other in self.into[node]:
                if direction == "<" or other != node:
                    yield number, other


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def matches(
    edges: list[PatternEdge], node_flags: list[int | None], cycles: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function from a graph to the matches of a pattern.

    A match is the properties of each variable of a node, then for each edge of the pattern its properties (a list of
    them for several hops) and the nodes inside, then the number of edges and of the match.
    """

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        graph = _Graph.read(batches)
        found = _found(graph, edges, node_flags, cycles)
        number = itertools.count()
        while chunk := list(itertools.islice(found, _MATCHES)):
            columns: list[pa.Array] = [
                graph.nodes.take(pa.array([match[0][variable] for match in chunk], pa.int64()))
                for variable in range(len(node_flags))
            ]
            for place, edge in enumerate(edges):
                walks = [match[1][place] for match in chunk]
                if edge.hops is None:
                    columns.append(graph.edges.take(pa.array([walk[0][0] for walk in walks], pa.int64())))
                else:
                    columns.append(_lists(graph.edges, [walk[0] for walk in walks]))
                columns.append(_lists(graph.nodes, [walk[1] for walk in walks]))
            columns.append(pa.array([sum(len(walk[0]) for walk in match[1]) for match in chunk], pa.int64()))
            columns.append(pa.array([next(number) for _ in chunk], pa.int64()))
            yield pa.RecordBatch.from_arrays(columns, [str(index) for index in range(len(columns))])

    return step


def _lists(values: pa.Array, indices: list[tuple[int, ...]]) -> pa.Array:
    offsets = list(itertools.accumulate((len(each) for each in indices), initial=0))
    flat = pa.array([one for each in indices for one in each], pa.int64())
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values.take(flat))


_Walk = tuple[tuple[int, ...], tuple[int, ...]]


def _found(  # noqa: C901 - three functions that call each other
    graph: _Graph, edges: list[PatternEdge], node_flags: list[int | None], cycles: str
) -> Iterator[tuple[list[int], list[_Walk]]]:
    """Return assignments of nodes to the variables, and the walk of each edge: its edges and the nodes inside."""
    bound: list[int | None] = [None] * len(node_flags)
    walks: list[_Walk] = []
    used: set[int] = set()

    def fits(variable: int, node: int) -> bool:
        if bound[variable] is not None:
            return bound[variable] == node
        flag = node_flags[variable]
        if flag is not None and not graph.node_flags[node][flag]:
            return False
        return cycles != "none" or node not in bound

    def along(place: int) -> Iterator[tuple[list[int], list[_Walk]]]:
        if place == len(edges):
            missing = next((index for index, each in enumerate(bound) if each is None), None)
            if missing is None:
                yield [each for each in bound if each is not None], list(walks)
                return
            # A variable that no edge touches is any node.
            for node in range(len(graph.out)):
                if fits(missing, node):
                    bound[missing] = node
                    yield from along(place)
                    bound[missing] = None
            return
        edge = edges[place]
        starts = [bound[edge.source]] if bound[edge.source] is not None else range(len(graph.out))
        for start in starts:
            if start is None or not fits(edge.source, start):
                continue
            fresh = bound[edge.source] is None
            bound[edge.source] = start
            least, most = edge.hops or (1, 1)
            yield from walk(place, start, (), (), least, most)
            if fresh:
                bound[edge.source] = None

    def walk(
        place: int, node: int, passed: tuple[int, ...], inside: tuple[int, ...], least: int, most: int
    ) -> Iterator[tuple[list[int], list[_Walk]]]:
        edge = edges[place]
        if len(passed) >= least and fits(edge.target, node):
            fresh = bound[edge.target] is None
            bound[edge.target] = node
            walks.append((passed, inside[:-1]))
            yield from along(place + 1)
            walks.pop()
            if fresh:
                bound[edge.target] = None
        if len(passed) == most:
            return
        for number, other in graph.steps(node, edge.direction):
            if cycles != "all" and number in used:
                continue
            if edge.allowed is not None and not graph.edge_flags[number][edge.allowed]:
                continue
            if cycles == "none" and (other in inside or (other in bound and other != bound[edge.target])):
                continue
            used.add(number)
            yield from walk(place, other, (*passed, number), (*inside, other), least, most)
            if number not in itertools.chain.from_iterable(each[0] for each in walks):
                used.discard(number)

    return along(0)


def degrees(
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Return the number of each node with its edges that come in and go out."""
    graph = _Graph.read(batches)
    rows = ((node, len(graph.into[node]), len(graph.out[node])) for node in range(len(graph.out)))
    yield from batch_of(("long", "long", "long"), rows)


def components(*, strong: bool) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function from a graph to the number of each node and of its component, in the order of nodes."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        graph = _Graph.read(batches)
        found = _strong(graph) if strong else _weak(graph)
        numbers: dict[Any, int] = {}
        rows = ((node, numbers.setdefault(each, len(numbers))) for node, each in enumerate(found))
        yield from batch_of(("long", "long"), rows)

    return step


def _weak(graph: _Graph) -> list[int]:
    parent = list(range(len(graph.out)))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for source, target in graph.ends:
        parent[root(source)] = root(target)
    return [root(node) for node in range(len(parent))]


def _strong(graph: _Graph) -> list[int]:
    """Return the components of mutual reach, by two searches: forward for an order, and backward in its reverse."""
    order: list[int] = []
    seen: set[int] = set()
    for first in range(len(graph.out)):
        waiting = [(first, iter(graph.out[first]))] if first not in seen else []
        seen.add(first)
        while waiting:
            node, rest = waiting[-1]
            following = next((other for _, other in rest if other not in seen), None)
            if following is None:
                order.append(node)
                waiting.pop()
            else:
                seen.add(following)
                waiting.append((following, iter(graph.out[following])))
    found = [-1] * len(graph.out)
    for first in reversed(order):
        stack = [first] if found[first] < 0 else []
        while stack:
            node = stack.pop()
            found[node] = first
            stack += [other for _, other in graph.into[node] if found[other] < 0]
    return found
