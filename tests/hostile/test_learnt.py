"""What coverage-guided fuzzing has kept, once more: each input is used, or refused with a diagnostic.

Kept by `tests.hostile.learn` (in Python) and `tests.runtime.learn` (in C): inputs that together reach all
code that was ever reached. The readers in C run under the address and undefined-behaviour sanitizers.
"""

from __future__ import annotations

import subprocess
from collections import Counter

import pytest

from tests.hostile import learn
from tests.native import INCLUDES, RUNTIME, libraries
from tests.runtime.learn import OWN, as_programs, read_kept, write_inputs
from tests.runtime.test_fuzz import SANITIZE, builder, fuzz


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reader", learn.USES)
def test_readers_in_python(reader):
    found = Counter(learn.outcome(reader, data) for data in read_kept(reader))
    assert found["read"] and len(found) > 3, found  # good files and several kinds of bad ones


def test_the_driver(tmp_path):
    (tmp_path / "programs").write_bytes(as_programs(read_kept("microcode")))
    rounds, accepted, finished = fuzz(builder("portable"), tmp_path / "programs", 0, 1)
    assert rounds > 3000 and accepted > finished > 100, (rounds, accepted, finished)


def test_the_payload(tmp_path):
    kept = read_kept("payload")
    (tmp_path / "inputs").write_bytes(write_inputs(kept))
    library = libraries()["portable"]
    command = ["g++", "-std=c++17", *SANITIZE, *INCLUDES, f"-I{RUNTIME / 'executorch'}", *OWN["payload"]]
    command += [library, f"-Wl,-rpath,{library.parent}", "-o", tmp_path / "replay"]
    subprocess.run([str(word) for word in command], check=True)
    done = subprocess.run(
        [tmp_path / "replay", tmp_path / "inputs"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert kept and done.stdout == f"{len(kept)} payloads\n"
