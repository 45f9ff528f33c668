"""The order of operators that needs the least memory at its worst moment.

What is live after a set of operators has run depends on the set alone, not on the order inside it. So the
least peak is a shortest path (with maximum in place of sum) over the sets that are closed under "needs",
and a best-first search finds it exactly. Three observations keep the number of sets small:

- An operator comparable with all others (every path of the graph passes it) cuts the problem in two.
- An operator that fits under the peak already reached and leaves no more live than before can run at once;
  no order is better for waiting, since what it frees it frees earlier.
- A greedy order is an upper bound: no set above it needs looking at, and none at all if it needs no more
  than the largest job alone.

The search may try so many steps, and some more for each job: the time it takes grows with the graph and not
faster, and what it returns depends on no clock. Graphs too wide for it keep the best of a greedy order and
two that finish one branch after the other. The result never is worse than the order given.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

STATE_LIMIT = 20_000  # sets looked at per piece
STEPS, STEPS_PER_JOB = 60_000, 600  # tried for a whole graph; some 3 us each
_WIDEST = 256  # jobs among which a greedy order chooses


@dataclass(frozen=True)
class Job:
    """One kernel call as ordering and placing see it: the memory it touches and what it waits for."""

    needs: tuple[int, ...]  # jobs that run before
    touches: tuple[int, ...]  # scratch buffers read or written
    reuse: tuple[tuple[int, int], ...] = ()  # (old, new): `new` may take the place of `old` if that dies here


@dataclass(frozen=True)
class Order:
    """A permutation of the jobs, its peak in bytes, and whether no order has a smaller one."""

    sequence: tuple[int, ...]
    peak: int
    optimal: bool


def choose_order(jobs: Sequence[Job], sizes: Sequence[int], state_limit: int = STATE_LIMIT) -> Order:
    """The order with the least peak, exact where the search finishes; jobs come in a valid order."""
    search = _Search(jobs, sizes, STEPS + STEPS_PER_JOB * len(jobs))
    given = tuple(range(len(jobs)))
    sequence: list[int] = []
    optimal = True
    done = live = 0
    for piece in _pieces(jobs):
        best, exact = search.piece(done, live, piece, state_limit)
        optimal &= exact
        sequence += best
        for job in best:
            _, live = search.step(job, done, live)
            done |= 1 << job
    peak, given_peak = peak_of(jobs, sizes, sequence), peak_of(jobs, sizes, given)
    # Equal is no reason to move: the order given is the one the user knows from the model.
    if given_peak <= peak:
        return Order(given, given_peak, optimal and given_peak == peak)
    return Order(tuple(sequence), peak, optimal)


def peak_of(jobs: Sequence[Job], sizes: Sequence[int], sequence: Sequence[int]) -> int:
    """The largest number of bytes live at once in this order."""
    return max(live_bytes(jobs, sizes, sequence), default=0)


def live_bytes(jobs: Sequence[Job], sizes: Sequence[int], sequence: Sequence[int]) -> list[int]:
    """Bytes live while each job of the sequence runs."""
    search = _Search(jobs, sizes)
    done, live, result = 0, 0, []
    for job in sequence:
        during, live = search.step(job, done, live)
        done |= 1 << job
        result.append(during)
    return result


def reused(jobs: Sequence[Job], sequence: Sequence[int]) -> dict[int, int]:
    """The in-place decisions of an order: each new buffer and the one it overwrites."""
    search = _Search(jobs, [0] * (1 + max((b for j in jobs for b in j.touches), default=-1)))
    done, result = 0, {}
    for job in sequence:
        for old, new in search.overwrites(job, done):
            result[new] = old
        done |= 1 << job
    return result


def _pieces(jobs: Sequence[Job]) -> list[list[int]]:
    """Split at the jobs comparable with all others: pieces follow one another in every order."""
    count = len(jobs)
    before = [0] * count
    for index, job in enumerate(jobs):
        for need in job.needs:
            before[index] |= before[need] | 1 << need
    after = [0] * count
    for index in reversed(range(count)):
        for need in jobs[index].needs:
            after[need] |= after[index] | 1 << index
    pieces: list[list[int]] = []
    placed = 0
    for cut in range(count):
        if before[cut].bit_count() + after[cut].bit_count() != count - 1:
            continue
        piece = _members(before[cut] & ~placed)
        pieces += [piece, [cut]] if piece else [[cut]]
        placed |= before[cut] | 1 << cut
    rest = _members(((1 << count) - 1) & ~placed)
    return [*pieces, rest] if rest else pieces


def _members(jobs: int, most: int | None = None) -> list[int]:
    """The numbers in a bit set, in order; the first of them, if there are more."""
    result: list[int] = []
    while jobs and (most is None or len(result) < most):
        last = jobs & -jobs
        result.append(last.bit_length() - 1)
        jobs ^= last
    return result


class _Search:
    """Bit sets of the jobs, made once: who touches each buffer, who must run before each job."""

    def __init__(self, jobs: Sequence[Job], sizes: Sequence[int], budget: int = 0):
        self.jobs = jobs
        self.sizes = sizes
        self.budget = budget  # steps that may still be tried
        self.needs = [sum(1 << n for n in set(job.needs)) for job in jobs]
        self.readers: list[list[int]] = [[] for _ in jobs]
        for index, job in enumerate(jobs):
            for need in set(job.needs):
                self.readers[need].append(index)
        self.touchers = [0] * len(sizes)
        for index, job in enumerate(jobs):
            for buffer in job.touches:
                self.touchers[buffer] |= 1 << index

    def overwrites(self, job: int, done: int) -> list[tuple[int, int]]:
        """The (old, new) pairs where `new` starts at this job and `old` ends at it, each buffer once."""
        after = done | 1 << job
        taken: set[int] = set()
        result = []
        for old, new in self.jobs[job].reuse:
            if self.touchers[old] & ~after or self.touchers[new] & done or taken & {old, new}:
                continue
            taken |= {old, new}
            result.append((old, new))
        return result

    def step(self, job: int, done: int, live: int) -> tuple[int, int]:
        """Bytes live while the job runs and after it, given what is live before."""
        after = done | 1 << job
        during = kept = live
        for buffer in self.jobs[job].touches:
            if not self.touchers[buffer] & done:
                during += self.sizes[buffer]
                kept += self.sizes[buffer]
            if not self.touchers[buffer] & ~after:
                kept -= self.sizes[buffer]
        saved = sum(self.sizes[new] for _, new in self.overwrites(job, done))
        return during - saved, kept

    def ready(self, done: int, piece: Sequence[int]) -> int:
        """The jobs of a piece that can run now, as a bit set."""
        return sum(1 << job for job in piece if not done >> job & 1 and not self.needs[job] & ~done)

    def _ready_after(self, ready: int, job: int, done: int, inside: int) -> int:
        """What can run once a job has run, too; `done` has it already."""
        ready &= ~(1 << job)
        for reader in self.readers[job]:
            if inside >> reader & 1 and not self.needs[reader] & ~done:
                ready |= 1 << reader
        return ready

    def piece(self, done: int, live: int, piece: list[int], state_limit: int) -> tuple[list[int], bool]:
        """The best order of one piece, and whether it is known to be optimal."""
        if len(piece) == 1:
            return piece, True
        greedy = self._greedy(done, live, piece)
        given = (self._peak(done, live, piece), piece)
        bound, best = min(greedy, given, key=lambda candidate: candidate[0])
        if bound <= max(live, *map(self._least, piece)):
            return best, True
        better, exact = self._best_first(done, live, piece, bound, state_limit)
        if not exact:
            candidates = [best, *(self._by_branch(piece, order) for order in (1, -1))]
            return min(candidates, key=lambda order: self._peak(done, live, order)), False
        return (better or best), exact

    def _least(self, job: int) -> int:
        """Bytes live while a job runs, whatever the order: what it touches, less what it may reuse."""
        saved = {new for _, new in self.jobs[job].reuse}
        return sum(self.sizes[buffer] for buffer in set(self.jobs[job].touches) - saved)

    def _needs_of(self, job: int, order: int) -> Iterator[int]:
        return iter(sorted(set(self.jobs[job].needs))[::order])

    def _by_branch(self, piece: list[int], order: int) -> list[int]:
        """Each job as late as its first reader allows: one branch after the other."""
        inside, placed = set(piece), set[int]()
        sequence: list[int] = []
        for last in piece:
            if any(reader in inside for reader in self.readers[last]):
                continue
            pending = [(last, self._needs_of(last, order))]
            while pending:
                job, needs = pending[-1]
                if (need := next((n for n in needs if n in inside and n not in placed), None)) is not None:
                    pending.append((need, self._needs_of(need, order)))
                    continue
                pending.pop()
                placed.add(job)
                sequence.append(job)
        return sequence

    def _peak(self, done: int, live: int, sequence: Sequence[int]) -> int:
        peak = live
        for job in sequence:
            during, live = self.step(job, done, live)
            done |= 1 << job
            peak = max(peak, during)
        return peak

    def _greedy(self, done: int, live: int, piece: list[int]) -> tuple[int, list[int]]:
        """Always the job that leaves least live, then the one that needs least while it runs."""
        sequence: list[int] = []
        peak = live
        ready, inside = self.ready(done, piece), sum(1 << job for job in piece)
        while len(sequence) < len(piece):
            options = [(*reversed(self.step(j, done, live)), j) for j in _members(ready, _WIDEST)]
            live, during, job = min(options)
            peak = max(peak, during)
            done |= 1 << job
            ready = self._ready_after(ready, job, done, inside)
            sequence.append(job)
        return peak, sequence

    def _best_first(
        self, start: int, live: int, piece: list[int], bound: int, state_limit: int
    ) -> tuple[list[int] | None, bool]:
        """The least-peak path from `start` to the whole piece, if its peak is below `bound`."""
        inside = sum(1 << job for job in piece)
        goal = start | inside
        # Ties go to the state with more done, then to the path found first: deterministic. A path is the job
        # run last, and the path before it.
        heap: list[tuple[int, int, int, int, int, int, Any]] = [
            (live, 0, 0, start, live, self.ready(start, piece), None)
        ]
        seen: set[int] = set()
        serial = 0
        while heap:
            peak, length, _, done, live, ready, path = heapq.heappop(heap)
            if done == goal:
                return _unrolled(path), True
            if done in seen:
                continue
            seen.add(done)
            if len(seen) > state_limit or self.budget <= 0:
                return None, False
            for job, during, kept in self._moves(done, live, peak, ready):
                worst, after = max(peak, during), done | 1 << job
                if worst < bound and after not in seen:
                    serial += 1
                    then = self._ready_after(ready, job, after, inside)
                    heapq.heappush(heap, (worst, length - 1, serial, after, kept, then, (job, path)))
        return None, True

    def _moves(self, done: int, live: int, peak: int, ready: int) -> list[tuple[int, int, int]]:
        """The jobs worth trying next, with what is live during and after each."""
        moves = []
        for job in _members(ready):
            during, kept = self.step(job, done, live)
            self.budget -= 1
            if during <= peak and kept <= live:
                return [(job, during, kept)]
            moves.append((job, during, kept))
        return moves


def _unrolled(path: Any) -> list[int]:
    sequence = []
    while path is not None:
        job, path = path
        sequence.append(job)
    return sequence[::-1]
