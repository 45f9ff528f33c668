"""Stages add up to the whole; where nobody records, nothing is kept."""

from __future__ import annotations

import time

from openneutron.environment.stopwatch import EXIR, EXPORT, MICROCODE, TORCHAO, record, stage


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_inner_stages_take_their_time_from_the_outer():
    begun = time.process_time()
    with record() as seconds, stage(EXIR):
        burn(0.02)
        with stage(MICROCODE):
            burn(0.05)
        with stage(MICROCODE):
            burn(0.01)
    spent = time.process_time() - begun
    assert list(seconds.spent) == [EXIR, MICROCODE]
    assert seconds.spent[MICROCODE] >= 0.06 and seconds.spent[EXIR] >= 0.02
    assert seconds.total <= spent


def test_own_share_leaves_out_what_is_not_ours():
    with record() as seconds:
        for name in (EXPORT, TORCHAO, EXIR):
            with stage(name):
                burn(0.01)
    assert seconds.own == seconds.spent[EXIR]


def test_a_failing_stage_is_left():
    with record() as seconds:
        try:
            with stage(EXIR):
                raise ValueError
        except ValueError:
            pass
        with stage(EXPORT):
            burn(0.01)
    assert seconds.spent[EXIR] < 0.01 <= seconds.spent[EXPORT]


def test_outside_of_a_record_nothing_happens():
    with stage(EXIR):
        pass
    with record() as seconds:
        pass
    assert not seconds.spent
