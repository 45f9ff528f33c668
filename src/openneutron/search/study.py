"""Which point is tried next, and what is known already: an Optuna study in a file.

A small space is a grid and needs no sampler. Otherwise points come in batches of a fixed size, each from a
sampler with its own seed, and results are told in the order of their numbers: the same space and seed give
the same trials, however many workers there are and however often the search was interrupted.
"""

from __future__ import annotations

import json
import os
import random
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openneutron.diagnostics import OpenNeutronError, fail
from openneutron.files import lock_file
from openneutron.search.journal import AFRESH, open_journal
from openneutron.search.space import MOST_POINTS, Choice, Dimension, Point, Space
from openneutron.search.trial import DONE, FAILED, OVER, Outcome

if TYPE_CHECKING:
    import optuna

JOURNAL = "study.journal"
_ROW, _SPACE, _POINT = "openneutron", "space", "point"
_WHOLE = "asked"  # so many points were asked for, in batches that are whole
_TRIES = 20  # of the sampler, to find a point that is new
_AGAIN = "Extend it with more trials, or start afresh: remove the folder or choose another with -o."


class Study:
    """The trials of a space, kept in `folder`; one process at a time may hold it."""

    def __init__(self, space: Space, folder: Path):
        self.space = space
        self.optuna = _optuna()
        self._lock = _locked(folder)
        self.note = ""  # what was wrong with the file and could be mended
        self._asked: dict[int, optuna.trial.Trial | optuna.trial.FrozenTrial] = {}
        try:
            _check_kinds(folder)
            self._open(folder)
        except OpenNeutronError:
            self.close()
            raise
        except Exception as error:  # lines that are JSON and no journal fail in as many ways as there are
            self.close()
            problem = f"is damaged: {type(error).__name__}: {error}"
            fail("ON801", str(folder / JOURNAL), problem.splitlines()[0], AFRESH)

    def _open(self, folder: Path) -> None:
        storage, self.note = open_journal(self.optuna, folder / JOURNAL)
        self._study = self.optuna.create_study(
            study_name="sweep",
            storage=storage,
            directions=list(self.space.objectives.values()),
            load_if_exists=True,
        )
        stored = self._study.user_attrs.get(_SPACE)
        if stored is None:
            self._study.set_user_attr(_SPACE, self.space.digest)
        elif stored != self.space.digest:
            fail(
                "ON801",
                str(folder),
                "holds the trials of another space, or of this one before it was changed",
                _AGAIN,
            )
        self._known = {_key(point): outcome for point, outcome in self.finished()}
        state = self.optuna.trial.TrialState
        # A process killed while it asked for a batch leaves a part of it: the whole batch is asked for again.
        whole = self._study.user_attrs.get(_WHOLE, 0) > len(self._known)
        for trial in self._study.get_trials(deepcopy=False, states=(state.RUNNING, state.WAITING)):
            if whole and trial.state == state.RUNNING:
                _check_point(trial.params, self.space)
            else:
                self._study._storage.set_trial_state_values(trial._trial_id, state.FAIL)

    def close(self) -> None:
        """Let others have it."""
        os.close(self._lock)

    def finished(self) -> list[tuple[Point, Outcome]]:
        """What is known of the space's points, by number."""
        rows = []
        for trial in self._study.get_trials(deepcopy=False):
            row = trial.user_attrs
            if trial.state.is_finished() and _ROW in row:  # all of it is written before its state is
                _check_point(row[_POINT], self.space)
                rows.append((row[_POINT], _outcome(row[_ROW], self.space)))
        return sorted(rows, key=lambda item: item[1].number)

    def batches(self) -> Iterator[list[tuple[int, Point]]]:
        """What is still to be run, batch by batch: tell the outcomes of one before asking for the next."""
        if self.space.is_grid:
            points = list(enumerate(self.space.grid()))
            yield [(i, point) for i, point in points if _key(point) not in self._known]
            return
        while (start := len(self._known)) < self.space.trials:
            batch = self._ask(min(self.space.batch, self.space.trials - start), start)
            if not batch:
                return  # every point of the space has been tried
            yield batch

    def tell(self, point: Point, outcome: Outcome) -> None:
        """Keep what came of a point."""
        self._known[_key(point)] = outcome
        values = [outcome.figures[name] for name in self.space.objectives] if outcome.state == DONE else None
        state = getattr(self.optuna.trial.TrialState, _STATES[outcome.state])
        attributes = {_ROW: _plain(outcome), _POINT: point}
        asked = self._asked.pop(outcome.number, None)
        if asked is None:
            distributions = {name: _distribution(self.optuna, d) for name, d in self.space.dimensions.items()}
            self._study.add_trial(
                self.optuna.trial.create_trial(
                    state=state,
                    values=values,
                    params=point,
                    distributions=distributions,
                    user_attrs=attributes,
                )
            )
            return
        storage = self._study._storage  # a trial taken over from a process that died is a frozen one
        for name, value in attributes.items():
            storage.set_trial_user_attr(asked._trial_id, name, value)
        self._study.tell(asked.number, values, state=state)

    def _ask(self, count: int, start: int) -> list[tuple[int, Point]]:
        """A batch of new points; first those that a process asked for and did not live to tell."""
        state = self.optuna.trial.TrialState
        left = self._study.get_trials(deepcopy=False, states=(state.RUNNING,))
        batch: list[tuple[int, Point]] = []
        for trial in left[:count]:
            self._asked[start + len(batch)] = trial
            batch.append((start + len(batch), dict(trial.params)))
        if batch:
            return batch
        seed = random.Random(f"{self.space.seed} {start}").randrange(2**31)
        self._study.sampler = self.optuna.samplers.TPESampler(
            seed=seed, multivariate=True, n_startup_trials=8
        )
        distributions = {name: _distribution(self.optuna, d) for name, d in self.space.dimensions.items()}
        seen = {*self._known}
        size = self.space.grid_size
        while len(batch) < count and (size is None or len(seen) < size):
            for _ in range(_TRIES):
                trial = self._study.ask(distributions)
                point = dict(trial.params)
                if _key(point) not in seen:
                    break
                self._study.tell(trial, state=state.FAIL)
            else:
                point = self._unseen(seen, seed)
                self._study.enqueue_trial(point)
                trial = self._study.ask(distributions)
            seen.add(_key(point))
            self._asked[start + len(batch)] = trial
            batch.append((start + len(batch), point))
        self._study.set_user_attr(_WHOLE, start + len(batch))
        return batch

    def _unseen(self, seen: set[str], seed: int) -> Point:
        """A point at random that was not tried: the sampler keeps coming back to what it knows."""
        draw = random.Random(seed + len(seen))
        if self.space.grid_size is not None and self.space.grid_size <= MOST_POINTS:
            return draw.choice([point for point in self.space.grid() if _key(point) not in seen])
        while True:
            point = {name: _draw(d, draw) for name, d in self.space.dimensions.items()}
            if _key(point) not in seen:
                return point


_STATES = {DONE: "COMPLETE", OVER: "PRUNED", FAILED: "FAIL"}


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError:
        fail("ON805", "sweep", "Optuna is not installed", "pip install 'openneutron[sweep]'")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _check_kinds(folder: Path) -> None:
    """Refuse what no search leaves: through a link it would write elsewhere, at a FIFO wait for ever."""
    left = folder / f"{JOURNAL}.lock"  # a link that Optuna made and nothing follows
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            if path == left:
                continue
            kind = path.lstat().st_mode
            if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
                what = (
                    "a link" if stat.S_ISLNK(kind) else "a FIFO" if stat.S_ISFIFO(kind) else "no regular file"
                )
                fail("ON801", str(path), f"is {what}, which no search leaves", AFRESH)


def _locked(folder: Path) -> int:
    """The lock of the folder, which ends with this process whatever ends that."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return lock_file(folder / ".lock", wait=False)
    except BlockingIOError:
        problem, hint = "another search is writing to it", "Wait for it, or choose another folder with -o."
    except OSError as error:
        problem, hint = f"cannot be written: {error.strerror}", "Choose another folder with -o."
    fail("ON801", str(folder), problem, hint)


def _distribution(optuna: Any, dimension: Dimension) -> Any:
    if isinstance(dimension, Choice):
        return optuna.distributions.CategoricalDistribution(dimension.values)
    if dimension.is_int:
        step = int(dimension.step or 1)
        high = dimension.low + (dimension.high - dimension.low) // step * step
        return optuna.distributions.IntDistribution(dimension.low, int(high), log=dimension.log, step=step)
    return optuna.distributions.FloatDistribution(
        dimension.low, dimension.high, log=dimension.log, step=dimension.step
    )


def _draw(dimension: Dimension, draw: random.Random) -> Any:
    if isinstance(dimension, Choice):
        return draw.choice(dimension.values)
    if dimension.is_int and dimension.log:
        return draw.randint(int(dimension.low), int(dimension.high))
    if dimension.count is not None:
        return dimension.value(draw.randrange(dimension.count))
    return draw.uniform(dimension.low, dimension.high)


def _key(point: Point) -> str:
    return json.dumps(point, sort_keys=True, default=str)


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {key: value for key, value in outcome.as_row({}).items() if key != "point"}


def _outcome(row: dict[str, Any], space: Space) -> Outcome:
    outcome = Outcome(**row)
    figures = [outcome.figures[name] for name in space.objectives] if outcome.state == DONE else []
    texts = outcome.code, outcome.reason, outcome.command
    if outcome.state not in _STATES or not all(isinstance(text, str) for text in texts):
        raise ValueError("an outcome of no known kind")
    if not isinstance(outcome.number, int) or not all(isinstance(f, int | float) for f in figures):
        raise ValueError("an outcome whose figures are no numbers")
    return outcome


def _check_point(point: Point, space: Space) -> None:
    """A file says which point it was; only one of this space's is run or shown."""
    if point.keys() != space.dimensions.keys():
        raise ValueError("a point of other dimensions")
    for name, value in point.items():
        dimension = space.dimensions[name]
        if isinstance(dimension, Choice):
            good = json.dumps(value) in map(json.dumps, dimension.values)
        else:
            kinds = int if dimension.is_int else (int, float)
            good = isinstance(value, kinds) and dimension.low <= value <= dimension.high
        if not good:
            raise ValueError(f"a point with {name} = {value!r}, which is none of its values")
