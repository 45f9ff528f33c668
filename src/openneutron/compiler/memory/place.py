"""Offsets: buffers with life times put into one scratch area, as small as can be found, with a bound.

No placement is smaller than the most bytes ever live at once, so a placement that reaches this bound is
optimal. Best-fit in several orders reaches it for most networks; where it does not, CP-SAT starts from the
best of them. The solver's limit counts steps, not seconds: the same buffers get the same offsets everywhere.
Two blocks may be allowed to overlap in part: a cascade's output takes the place of input rows that are done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ALIGNMENT = 16  # bytes; what NXP's parts are aligned to, and enough for every element type
SOLVER_EFFORT = 2.0  # CP-SAT's deterministic time; about seconds, but the same everywhere
SOLVER_LIMIT = 400  # buffers; beyond it the model is too large to pay


@dataclass(frozen=True)
class Block:
    """A buffer to place: how large it is, and the first and last step at which it must exist."""

    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Apart:
    """How two blocks of one step may lie: the second at most `low` or at least `high` behind the first."""

    low: int
    high: int

    def union(self, first: int, second: int) -> int:
        """The least bytes both can take together."""
        below = max(first - min(self.low, 0), second)
        above = max(first, max(self.high, 0) + second)
        return min(below, above, first + second)

    def mirrored(self, first: int, second: int) -> Apart:
        """The same for blocks of these sizes with addresses counted from the end."""
        return Apart(first - second - self.high, first - second - self.low)


@dataclass(frozen=True)
class Placement:
    """An offset for each block, the size of the area, and the least size any placement could have."""

    offsets: tuple[int, ...]
    nbytes: int
    bound: int
    method: str

    @property
    def gap(self) -> float:
        """How far above the bound the area is, as a fraction."""
        return self.nbytes / self.bound - 1 if self.bound else 0.0


def aligned(nbytes: int) -> int:
    """The size rounded up to the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def place(
    blocks: Sequence[Block],
    apart: Mapping[tuple[int, int], Apart] | None = None,
    solve: bool = True,
    least: int = 0,
) -> Placement:
    """Put the blocks into the smallest area found.

    Blocks that exist at the same step never overlap, except pairs (first, second) in `apart`, as that says.
    `least` bytes are known to be needed whatever the blocks say.
    """
    blocks = [Block(aligned(b.nbytes), b.first, b.last) for b in blocks]
    clashes = _clashes(blocks)
    apart = {pair: sane(rule, *(blocks[i].nbytes for i in pair)) for pair, rule in (apart or {}).items()}
    bound = max(_bound(blocks, apart), least)
    best, best_size, method = _best_fit(blocks, clashes, apart)
    if best_size > bound and len(blocks) <= SOLVER_LIMIT and solve:
        solved = _solve(blocks, clashes, apart, best, best_size, bound)
        if solved is not None:
            best, best_size, method = solved, _size(blocks, solved), "CP-SAT"
    return Placement(tuple(best), best_size, bound, method)


def sane(rule: Apart, first: int, second: int) -> Apart:
    """In multiples of the alignment, and no stricter than not to overlap."""
    low = rule.low // ALIGNMENT * ALIGNMENT
    return Apart(max(low, -second), min(aligned(rule.high), first))


def _bound(blocks: Sequence[Block], apart: Mapping[tuple[int, int], Apart]) -> int:
    """The most bytes needed at one step: no placement is smaller."""
    if not apart:
        return most_live(blocks)
    saved = {
        pair: blocks[pair[0]].nbytes
        + blocks[pair[1]].nbytes
        - rule.union(blocks[pair[0]].nbytes, blocks[pair[1]].nbytes)
        for pair, rule in apart.items()
    }
    live: dict[int, int] = {}
    for step in {b.first for b in blocks}:
        live[step] = sum(b.nbytes for b in blocks if b.first <= step <= b.last)
        live[step] -= sum(
            size
            for (i, j), size in saved.items()
            if all(blocks[k].first <= step <= blocks[k].last for k in (i, j))
        )
    return max(live.values(), default=0)


def _clashes(blocks: Sequence[Block]) -> list[list[int]]:
    """For each block, those that exist at some step of its life."""
    result: list[list[int]] = [[] for _ in blocks]
    order = sorted(range(len(blocks)), key=lambda i: blocks[i].first)
    for position, i in enumerate(order):
        for j in order[position + 1 :]:
            if blocks[j].first > blocks[i].last:
                break  # sorted: all further ones start later still
            result[i].append(j)
            result[j].append(i)
    return result


def most_live(blocks: Sequence[Block]) -> int:
    """The most bytes that exist at one step: the lower bound of every placement."""
    change: dict[int, int] = {}
    for block in blocks:
        change[block.first] = change.get(block.first, 0) + block.nbytes
        change[block.last + 1] = change.get(block.last + 1, 0) - block.nbytes
    live = most = 0
    for step in sorted(change):
        live += change[step]
        most = max(most, live)
    return most


def _size(blocks: Sequence[Block], offsets: Sequence[int]) -> int:
    return max((o + b.nbytes for o, b in zip(offsets, blocks, strict=True)), default=0)


def _fit(
    blocks: Sequence[Block],
    clashes: Sequence[Sequence[int]],
    apart: Mapping[tuple[int, int], Apart],
    order: Sequence[int],
) -> list[int]:
    """Place in this order, each block into the tightest gap left by those it meets, else on top of them."""
    offsets = [-1] * len(blocks)
    for index in order:
        need = blocks[index].nbytes
        taken = []
        for j in clashes[index]:
            if offsets[j] < 0:
                continue
            if (rule := apart.get((j, index))) is not None:  # from where to where this one must not begin
                begin, end = offsets[j] + rule.low, offsets[j] + rule.high
            elif (rule := apart.get((index, j))) is not None:
                begin, end = offsets[j] - rule.high, offsets[j] - rule.low
            else:
                begin, end = offsets[j] - need, offsets[j] + blocks[j].nbytes
            taken.append((begin + need, end))
        taken.sort()
        at, tightest, top = -1, -1, 0
        for begin, end in taken:
            room = begin - top
            if room >= need and (tightest < 0 or room < tightest):
                at, tightest = top, room
            top = max(top, end)
        offsets[index] = at if at >= 0 else top
    return offsets


def _best_fit(
    blocks: Sequence[Block], clashes: Sequence[Sequence[int]], apart: Mapping[tuple[int, int], Apart]
) -> tuple[list[int], int, str]:
    """Best-fit in a few orders known to be good: the best of them."""
    span = [b.last - b.first + 1 for b in blocks]
    keys = {
        "largest first": lambda i: (-blocks[i].nbytes, -span[i], i),
        "longest first": lambda i: (-span[i], -blocks[i].nbytes, i),
        "largest area first": lambda i: (-span[i] * blocks[i].nbytes, i),
        "earliest first": lambda i: (blocks[i].first, -blocks[i].nbytes, i),
        "latest first": lambda i: (-blocks[i].last, -blocks[i].nbytes, i),
    }
    sizes = [b.nbytes for b in blocks]
    mirrored = {(i, j): rule.mirrored(sizes[i], sizes[j]) for (i, j), rule in apart.items()}
    best: tuple[list[int], int, str] | None = None
    for name, key in keys.items():
        order = sorted(range(len(blocks)), key=key)
        for rules, way in ((apart, ""), (mirrored, " from the end")) if apart else ((apart, ""),):
            offsets = _fit(blocks, clashes, rules, order)
            size = _size(blocks, offsets)
            if best is None or size < best[1]:
                if way:
                    offsets = [size - at - nbytes for at, nbytes in zip(offsets, sizes, strict=True)]
                best = offsets, size, f"best fit, {name}{way}"
    assert best is not None
    return best


def _solve(
    blocks: Sequence[Block],
    clashes: Sequence[Sequence[int]],
    apart: Mapping[tuple[int, int], Apart],
    hint: Sequence[int],
    size: int,
    bound: int,
) -> list[int] | None:
    """CP-SAT: rectangles of life time by bytes that do not overlap, least height; None if nothing better."""
    from ortools.sat.python import cp_model  # imported here: most graphs never need it

    model = cp_model.CpModel()
    unit = ALIGNMENT
    top = model.new_int_var(bound // unit, size // unit - 1, "top")
    starts, spans_x, spans_y = [], [], []
    for index, block in enumerate(blocks):
        height = block.nbytes // unit
        start = model.new_int_var(0, max(0, size // unit - 1 - height), f"at{index}")
        model.add(start + height <= top)
        starts.append(start)
        if height and clashes[index] and not apart:
            life = block.last - block.first + 1
            spans_x.append(model.new_fixed_size_interval_var(block.first, life, f"t{index}"))
            spans_y.append(model.new_fixed_size_interval_var(start, height, f"m{index}"))
    if apart:  # rectangles cannot say it: one choice for each pair instead
        for index, others in enumerate(clashes):
            for other in (o for o in others if o > index):
                first, second = (other, index) if (other, index) in apart else (index, other)
                none = Apart(-blocks[second].nbytes, blocks[first].nbytes)
                rule = apart.get((first, second), none)
                behind = model.new_bool_var(f"b{first}_{second}")
                model.add(starts[second] >= starts[first] + rule.high // unit).only_enforce_if(behind)
                model.add(starts[second] <= starts[first] + rule.low // unit).only_enforce_if(~behind)
    else:
        model.add_no_overlap_2d(spans_x, spans_y)
    model.minimize(top)
    for start, offset in zip(starts, hint, strict=True):
        model.add_hint(start, offset // unit)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # several workers race, and the winner is not always the same
    solver.parameters.random_seed = 0
    solver.parameters.catch_sigint_signal = False  # it would leave the process without a handler for Ctrl-C
    solver.parameters.max_deterministic_time = SOLVER_EFFORT
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return [solver.value(start) * unit for start in starts]
