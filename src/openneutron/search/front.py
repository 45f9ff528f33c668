"""The Pareto front: the trials that no other one beats in every objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def pareto_front(figures: Sequence[Mapping[str, float]], objectives: Mapping[str, str]) -> list[int]:
    """Indices of the rows on the front; of rows with equal objectives the first stands for all."""
    keys = [_key(row, objectives) for row in figures]
    front: list[int] = []
    for i in sorted(range(len(keys)), key=lambda i: (keys[i], i)):
        # Sorted by the first objective, a row can only be beaten by one that came before.
        if not any(all(a <= b for a, b in zip(keys[j], keys[i], strict=True)) for j in front):
            front.append(i)
    return sorted(front)


def _key(row: Mapping[str, float], objectives: Mapping[str, str]) -> tuple[float, ...]:
    return tuple(-row[name] if aim == "maximize" else row[name] for name, aim in objectives.items())
