"""The order search against brute force over every valid order."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from openneutron.compiler.memory import order as searching
from openneutron.compiler.memory.order import Job, choose_order, live_bytes, peak_of, reused


@st.composite
def problems(draw, most_jobs=7):
    """A random DAG of jobs; each makes one buffer, some may overwrite an input of the same size."""
    count = draw(st.integers(1, most_jobs))
    sizes = [draw(st.sampled_from([16, 32, 64, 160])) for _ in range(count)]
    jobs = []
    for index in range(count):
        needs = draw(st.sets(st.integers(0, index - 1), max_size=2)) if index else set()
        reuse = tuple((n, index) for n in sorted(needs) if sizes[n] == sizes[index] and draw(st.booleans()))
        jobs.append(Job(tuple(sorted(needs)), (*sorted(needs), index), reuse))
    return jobs, sizes


def valid_orders(jobs):
    for order in itertools.permutations(range(len(jobs))):
        position = {job: i for i, job in enumerate(order)}
        if all(position[n] < position[j] for j in order for n in jobs[j].needs):
            yield order


def simulated_peak(jobs, sizes, order):
    """The peak by an independent count: which buffers exist at each step."""
    touched = {b: [i for i, j in enumerate(order) if b in jobs[j].touches] for b in range(len(sizes))}
    overwritten = reused(jobs, order)
    peak = 0
    for step in range(len(order)):
        live = {b for b, at in touched.items() if at and at[0] <= step <= at[-1]}
        for new, old in overwritten.items():
            if touched[new][0] == step:
                assert touched[old][-1] == step and sizes[old] == sizes[new]
                live.discard(old)
        peak = max(peak, sum(sizes[b] for b in live))
    return peak


@settings(max_examples=150)
@given(problems())
def test_search_finds_the_least_peak_of_all_orders(problem):
    jobs, sizes = problem
    result = choose_order(jobs, sizes)
    orders = list(valid_orders(jobs))
    assert result.sequence in orders
    assert result.optimal
    assert result.peak == simulated_peak(jobs, sizes, result.sequence)
    assert result.peak == min(peak_of(jobs, sizes, order) for order in orders)


@given(problems(most_jobs=30))
def test_a_search_cut_short_is_never_worse_than_the_given_order(problem):
    jobs, sizes = problem
    given_peak = peak_of(jobs, sizes, range(len(jobs)))
    for limit in (1, 10, 20_000):
        result = choose_order(jobs, sizes, state_limit=limit)
        assert result.peak <= given_peak
        assert sorted(result.sequence) == list(range(len(jobs)))
        assert result.peak == simulated_peak(jobs, sizes, result.sequence)


@given(problems(most_jobs=20))
def test_the_same_jobs_get_the_same_order(problem):
    jobs, sizes = problem
    assert choose_order(jobs, sizes) == choose_order(jobs, sizes)


def test_a_wide_graph_stays_cheap():
    """Sixteen branches of three jobs: 4^16 sets, of which the search looks at a few thousand only."""
    branches, sizes, jobs = 16, [64], [Job((), (0,))]
    ends = []
    for _ in range(branches):
        for depth in range(3):
            need = 0 if depth == 0 else len(jobs) - 1
            jobs.append(Job((need,), (need, len(jobs))))
            sizes.append(256 if depth < 2 else 16)
        ends.append(len(jobs) - 1)
    jobs.append(Job(tuple(ends), (*ends, len(jobs))))
    sizes.append(16)
    result = choose_order(jobs, sizes)
    assert result.peak == 64 + 16 * (branches - 2) + 2 * 256  # the root dies with the last branch
    assert max(live_bytes(jobs, sizes, result.sequence)) == result.peak


def branches_in_rows(count: int) -> tuple[list[Job], list[int]]:
    """Many branches of two jobs from one tensor, added up one after the other; all first jobs come first."""
    jobs, sizes = [Job((), (0,))], [64]
    for width in range(count):
        jobs.append(Job((0,), (0, len(sizes))))
        sizes.append(64 + 16 * (width % 5))
    for branch in range(count):
        jobs.append(Job((1 + branch,), (1 + branch, len(sizes))))
        sizes.append(64)
    total = 1 + count  # the job, and the buffer, of the first branch's end
    for branch in range(1, count):
        jobs.append(Job((total, 1 + count + branch), (total, 1 + count + branch, len(sizes))))
        sizes.append(64)
        total = len(jobs) - 1
    return jobs, sizes


def steps_tried(monkeypatch, jobs, sizes) -> int:
    count = 0
    step = searching._Search.step

    def counted(self, *args):
        nonlocal count
        count += 1
        return step(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(searching._Search, "step", counted)
        choose_order(jobs, sizes)
    return count


def test_the_work_for_a_job_does_not_grow_with_the_graph(monkeypatch):
    each = {}
    for count in (32, 128, 512):
        jobs, sizes = branches_in_rows(count)
        each[count] = steps_tried(monkeypatch, jobs, sizes) / len(jobs)
    assert each[512] < each[32], each


def test_a_graph_too_wide_to_search_finishes_its_branches_one_by_one():
    jobs, sizes = branches_in_rows(200)
    result = choose_order(jobs, sizes)
    assert not result.optimal
    assert result.peak == simulated_peak(jobs, sizes, result.sequence)
    assert result.peak <= 64 * 3 + 2 * 128  # the root, the sum, and one branch; not 200 of them
