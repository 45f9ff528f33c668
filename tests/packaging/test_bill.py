"""The bill of materials, the notices and the check of licences."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import io
import json
import re
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bill():
    spec = importlib.util.spec_from_file_location("bill", ROOT / "tools" / "bill.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_bill(data: bytes) -> None:
    found = json.loads(data)
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.5")
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", found["serialNumber"])
    assert found["metadata"]["component"]["name"] == "openneutron"
    names = {c["name"].lower(): c for c in found["components"]}
    assert {"torch", "executorch", "torchao", "numpy", "rich"} <= names.keys() and "pytest" not in names
    for component in names.values():
        assert component["purl"].startswith("pkg:pypi/") and component["version"] in component["purl"]
        assert component["licenses"][0]["expression"], component
    known = {c["bom-ref"] for c in (*names.values(), found["metadata"]["component"])}
    assert {d["ref"] for d in found["dependencies"]} == known
    assert {n for d in found["dependencies"] for n in d["dependsOn"]} <= known


def test_they_are_in_a_wheel_and_an_sdist(bill, tmp_path):
    wheel, sdist, home = tmp_path / "a-1-py3-none-any.whl", tmp_path / "a-1.tar.gz", "a-1.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a.py", "x = 1\n")
        archive.writestr(f"{home}/RECORD", f"a.py,sha256=x,6\n{home}/RECORD,,\n")
    with tarfile.open(sdist, "w:gz") as archive:
        item = tarfile.TarInfo("a-1/a.py")
        item.size = 6
        archive.addfile(item, io.BytesIO(b"x = 1\n"))
    for path in (wheel, wheel, sdist, sdist):  # the second time changes nothing
        bill.add(path)
    with zipfile.ZipFile(wheel) as archive:
        assert len(archive.namelist()) == len(set(archive.namelist())) == 4
        check_bill(archive.read(f"{home}/sboms/openneutron.cdx.json"))
        assert b"| torch | " in archive.read(f"{home}/licenses/THIRD_PARTY_NOTICES.md")
        rows = {row[0]: row[1:] for row in csv.reader(archive.read(f"{home}/RECORD").decode().splitlines())}
        assert rows.keys() == set(archive.namelist())
        for name, (digest, size) in rows.items():
            if "dist-info/" in name and not name.endswith("RECORD"):
                data = archive.read(name)
                wanted = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                assert (digest, int(size)) == (f"sha256={wanted}", len(data))
    with tarfile.open(sdist) as archive:
        assert sorted(archive.getnames()) == [
            "a-1/THIRD_PARTY_NOTICES.md", "a-1/a.py", "a-1/openneutron.cdx.json"
        ]  # fmt: skip
        check_bill(archive.extractfile("a-1/openneutron.cdx.json").read())


def test_the_pinned_packages_have_licences_that_are_allowed(bill):
    assert bill.check() == []


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"License-Expression": "AGPL-3.0-only"}, "rich: AGPL-3.0-only is not in the list"),
        ({"License-Expression": "MIT AND GPL-2.0-only"}, "not in the list"),
        ({"License": "Proprietary, ask us"}, "rich: its metadata name no licence"),
        ({"Classifier": "License :: Other/Proprietary License"}, "name no licence"),
        ({}, "name no licence"),
    ],
)
def test_others_are_refused(bill, monkeypatch, fields, says):
    real = bill.distribution

    class Fake:
        version, requires = "1", []
        metadata = Message()

    Fake.metadata["Name"] = "rich"
    for key, value in fields.items():
        Fake.metadata[key] = value
    monkeypatch.setattr(bill, "distribution", lambda name: Fake if name == "rich" else real(name))
    (problem,) = bill.check()
    assert says in problem
