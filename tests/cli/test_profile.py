"""`compile --use_profiling`, `compile --etrecord`, `run --etdump`."""

from __future__ import annotations

import pytest

from openneutron.package.pte import inspect_program
from tests.trained import trained_model

pytestmark = pytest.mark.slow  # compiles and runs in processes of their own


def test_profile_of_a_run(cli):
    plain = cli("compile", "own.py:net", "-o", "plain.pte", "--json").json
    assert "etrecord" not in plain
    profiled = cli("compile", "own.py:net", "-o", "net.pte", "--use_profiling", "--json").json
    assert profiled["etrecord"] == "net.etrecord"
    parts = [inspect_program(name).payloads() for name in ("plain.pte", "net.pte")]
    assert parts[0] == parts[1], "profiling must not change what the open converter makes"

    done = cli("run", "net.pte", "--etdump", "net.etdp", "--repeat", 3)
    assert done.code == 0 and "CONV_2D" in done.out and "convolution, relu" in done.out
    assert "estimates" in done.out and "wrote net.etdp" in done.out

    bare = cli("run", "plain.pte", "--etdump", "plain.etdp")
    assert bare.code == 0 and "CONV_2D" in bare.out and "no ETRecord" in bare.out

    data = cli("run", "plain.pte", "--etdump", "x.etdp", "--etrecord", "net.etrecord", "--json").json
    profile = data["profile"]
    assert profile["cycles_estimated"] == sum(c["cycles_estimated"] for c in profile["calls"])
    assert all(call["ops"] and call["nodes"] and call["host_us"] > 0 for call in profile["calls"])


def test_what_is_refused(cli, tmp_path):
    kws = trained_model("mlperf_tiny_kws_dscnn_int8")
    for argv, code, text in (
        (("compile", kws, "--etrecord", "x.etrecord"), 2, "option --etrecord"),
        (("run", kws, "--etdump", "x.etdp"), 2, "option --etdump"),
        (("run", "own.pte", "--etrecord", "x.etrecord"), 2, "--etdump only"),
    ):
        done = cli(*argv)
        assert done.code == code and text in done.err, done.err
    assert cli("compile", "own.py:net", "-o", "net.pte").code == 0
    (tmp_path / "net.etrecord").write_bytes(b"PK nonsense")
    done = cli("run", "net.pte", "--etdump", "net.etdp")
    assert done.code == 1 and "ON516" in done.err and "net.etrecord" in done.err
    done = cli("run", "net.pte", "--etdump", "nowhere/net.etdp")
    assert done.code == 1 and "ON601" in done.err
