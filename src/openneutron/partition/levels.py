"""Grouping clusters into partitions: few, and never in a cycle with what stays on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import TopologicalSorter

from torch.fx import Graph, Node

from openneutron.partition.clusters import Cluster


def group_clusters(graph: Graph, clusters: Sequence[Cluster]) -> list[list[Cluster]]:
    """Clusters that run together, in execution order.

    Each node gets a level that rises by one wherever the data pass from the NPU to the CPU or back, so that
    two clusters of one level have no CPU node on any path between them. A second sweep, backwards, moves a
    cluster to the level of what consumes it: it joins that partition instead of making one of its own.
    """
    owner = {node: cluster for cluster in clusters for node in cluster.members}
    level: dict[Node | Cluster, int] = {}
    for unit in _units(graph, owner):
        level[unit] = max((_step(level, owner, p, unit) for p in _producers(unit, owner)), default=0)
    for unit in reversed(_units(graph, owner)):
        if isinstance(unit, Cluster):
            users = _users(unit, owner)
            if users and all(u in level for u in users):
                level[unit] = min(level[u] if isinstance(u, Cluster) else level[u] - 1 for u in users)
    groups: dict[int, list[Cluster]] = {}
    for cluster in clusters:
        groups.setdefault(level[cluster], []).append(cluster)
    return [groups[key] for key in sorted(groups)]


def _units(graph: Graph, owner: dict[Node, Cluster]) -> list[Node | Cluster]:
    """Clusters and lone nodes in an order where each follows what it reads.

    That of the graph is none: a cluster of several results may have one before, and one behind its reader.
    """
    calls = (node for node in graph.nodes if node.op == "call_function")
    units: dict[Node | Cluster, None] = dict.fromkeys(owner.get(node, node) for node in calls)
    return list(TopologicalSorter({unit: _producers(unit, owner) for unit in units}).static_order())


def _producers(unit: Node | Cluster, owner: dict[Node, Cluster]) -> list[Node | Cluster]:
    members = unit.members if isinstance(unit, Cluster) else (unit,)
    sources = (p for m in members for p in m.all_input_nodes if p.op == "call_function")
    return [u for u in dict.fromkeys(owner.get(p, p) for p in sources) if u is not unit]


def _users(unit: Cluster, owner: dict[Node, Cluster]) -> list[Node | Cluster]:
    # What the program returns is read when all is done.
    users = (u for m in unit.members for u in m.users if u.op != "output")
    return [u for u in dict.fromkeys(owner.get(n, n) for n in users) if u is not unit]


def _step(
    level: dict[Node | Cluster, int], owner: dict[Node, Cluster], source: Node | Cluster, unit: Node | Cluster
) -> int:
    crosses = isinstance(source, Cluster) != isinstance(unit, Cluster)
    return level[source] + crosses
