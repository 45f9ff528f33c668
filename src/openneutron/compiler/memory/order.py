"""The order of operators that needs the least memory at its worst moment.

What is live after a set of operators has run depends on the set alone, not on the order inside it. So the
least peak is a shortest path (with maximum in place of sum) over the sets that are closed under "needs",
and a best-first search finds it exactly. Three observations keep the number of sets small:

- An operator comparable with all others (every path of the graph passes it) cuts the problem in two.
- An operator that fits under the peak already reached and leaves no more live than before can run at once;
  no order is better for waiting, since what it frees it frees earlier.
- A greedy order is an upper bound: no set above it needs looking at.

Graphs too wide even so keep the best greedy order. The result never is worse than the order given.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

STATE_LIMIT = 20_000  # sets looked at per piece; some 0.1 ms each


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
    search = _Search(jobs, sizes)
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


def _members(jobs: int) -> list[int]:
    """The numbers in a bit set, in order."""
    result = []
    while jobs:
        last = jobs & -jobs
        result.append(last.bit_length() - 1)
        jobs ^= last
    return result


class _Search:
    """Bit sets of the jobs, made once: who touches each buffer, who must run before each job."""

    def __init__(self, jobs: Sequence[Job], sizes: Sequence[int]):
        self.jobs = jobs
        self.sizes = sizes
        self.needs = [sum(1 << n for n in set(job.needs)) for job in jobs]
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

    def ready(self, done: int, piece: Sequence[int]) -> list[int]:
        return [job for job in piece if not done >> job & 1 and not self.needs[job] & ~done]

    def piece(self, done: int, live: int, piece: list[int], state_limit: int) -> tuple[list[int], bool]:
        """The best order of one piece, and whether it is known to be optimal."""
        if len(piece) == 1:
            return piece, True
        greedy = self._greedy(done, live, piece)
        given = (self._peak(done, live, piece), piece)
        bound, best = min(greedy, given, key=lambda candidate: candidate[0])
        found, exact = self._best_first(done, live, piece, bound, state_limit)
        return (found or best), exact

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
        while len(sequence) < len(piece):
            options = [(*reversed(self.step(j, done, live)), j) for j in self.ready(done, piece)]
            live, during, job = min(options)
            peak = max(peak, during)
            done |= 1 << job
            sequence.append(job)
        return peak, sequence

    def _best_first(
        self, start: int, live: int, piece: list[int], bound: int, state_limit: int
    ) -> tuple[list[int] | None, bool]:
        """The least-peak path from `start` to the whole piece, if its peak is below `bound`."""
        goal = start | sum(1 << job for job in piece)
        # Ties go to the state with more done, then to the path found first: deterministic.
        heap: list[tuple[int, int, int, int, int, tuple[int, ...]]] = [(live, 0, 0, start, live, ())]
        seen: set[int] = set()
        serial = 0
        while heap:
            peak, _, _, done, live, path = heapq.heappop(heap)
            if done == goal:
                return list(path), True
            if done in seen:
                continue
            seen.add(done)
            if len(seen) > state_limit:
                return None, False
            for job in self._moves(done, live, peak, piece):
                during, kept = self.step(job, done, live)
                worst = max(peak, during)
                if worst < bound and done | 1 << job not in seen:
                    serial += 1
                    heapq.heappush(heap, (worst, -len(path), serial, done | 1 << job, kept, (*path, job)))
        return None, True

    def _moves(self, done: int, live: int, peak: int, piece: Sequence[int]) -> list[int]:
        ready = self.ready(done, piece)
        for job in ready:
            during, kept = self.step(job, done, live)
            if during <= peak and kept <= live:
                return [job]
        return ready
