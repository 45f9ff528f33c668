"""The table of file formats: readers refuse what is no such file, and a new format is one line."""

from __future__ import annotations

import pytest
import torch

from openneutron.diagnostics import OpenNeutronError
from openneutron.inputs import source
from openneutron.inputs.formats import FORMATS, Format
from openneutron.inputs.model import Source
from openneutron.inputs.source import load_source
from openneutron.litert.file import read

BROKEN = {"empty": b"", "text": b"this is no model\n" * 20, "zip": b"PK\x03\x04" + bytes(200)}


def opened(path: str) -> None:
    """Read the model; of a LiteRT file the bytes are looked at when they are compiled."""
    loaded = load_source(path)
    if loaded.litert is not None:
        read(loaded.litert, path)


@pytest.mark.parametrize("content", BROKEN)
@pytest.mark.parametrize("suffix", FORMATS)
def test_what_is_no_such_file_is_a_diagnostic(tmp_path, suffix, content):
    path = tmp_path / f"model{suffix}"
    path.write_bytes(BROKEN[content])
    with pytest.raises(OpenNeutronError) as caught:
        opened(str(path))
    assert "model" in caught.value.diagnostic.where


@pytest.mark.parametrize("option", ["shape", "fix", "state"])
@pytest.mark.parametrize("suffix", FORMATS)
def test_an_option_that_a_format_has_no_use_for_is_refused(suffix, option):
    if option in FORMATS[suffix].options:
        return
    with pytest.raises(OpenNeutronError, match=f"--{option}.*has no effect on model{suffix}"):
        load_source(f"model{suffix}", **{option: ["x=1"]})


def test_a_format_is_one_line(tmp_path, monkeypatch):
    def load(path, *options):
        return Source(path.stem, torch.nn.ReLU(), (torch.zeros(1, int(path.read_text())),))

    monkeypatch.setitem(source.FORMATS, ".width", Format(load, ("state",)))
    path = tmp_path / "net.width"
    path.write_text("7")
    assert source.is_model(str(path)) and source.takes_option(str(path), "state")
    assert load_source(str(path)).example_inputs[0].shape == (1, 7)
    with pytest.raises(OpenNeutronError, match=r"it is for .onnx models"):
        load_source(str(path), shape=["1,2"])
