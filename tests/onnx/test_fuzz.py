"""A few hundred damaged ONNX files: read, or refused with a code."""

import pytest

from tests.onnx.fuzz import fuzz


@pytest.mark.filterwarnings("ignore")
def test_damaged_files_are_refused_with_a_code(tmp_path):
    found = fuzz(300, 0, tmp_path)
    assert found["read"] and found["ON903"] and len(found) > 3, found
    assert all(code == "read" or code.startswith(("ON9", "ON1")) for code in found), found
