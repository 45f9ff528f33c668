"""A .pt2 file, read so that nothing in it runs.

torch.export.load trusts its file: it unpickles whatever is there, evaluates expressions and guards, loads
compiled libraries, and makes Python source out of names. So the archive is looked through first, with torch's
own reader (a second one might see other files in the same bytes), and what is neither a tensor nor the graph
of an export with static shapes is refused.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from openneutron.diagnostics import OpenNeutronError, fail
from openneutron.files import read_file

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.export.pt2_archive._package import PT2ArchiveReader

_SAVE = "Save it with torch.export.save(torch.export.export(module, inputs), path)."
_GRAPH = "models/model.json"
_SAMPLE = "data/sample_inputs/model.pt"
_FILES = re.compile(
    r"models/model\.json|archive_format|archive_version|byteorder|\.data/\w+|extra/.*|"
    r"data/weights/(weight_\d+|model_weights_config\.json)|"
    r"data/constants/(tensor_\d+|model_constants_config\.json)|data/sample_inputs/model\.pt"
)
_CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_SPACES = "aten|prims|quantized|quantized_decomposed|torchao|torchvision|dim_order_ops|cortex_m|higher_order"
_ARITHMETIC = "getitem|add|sub|mul|truediv|floordiv|mod|pow|neg|eq|ne|lt|le|gt|ge"
_TARGET = re.compile(
    rf"torch\.ops\.({_SPACES})\.\w+(\.[A-Za-z]\w*)?|_operator\.({_ARITHMETIC})|math\.\w+|torch\.sym_\w+"
)
_READS_FILES = ("torch.ops.aten.from_file",)
_GUARD = re.compile(r"L(\['\w+'\]|\[\d+\])+(\.size\(\)\[\d+\])? (==|!=|<=|>=|<|>) -?\d+")
_WORDS = re.compile(
    r"[\w .:<>=+*/()\[\],|%^@-]*"
)  # no quote, backslash or line break: names become source code
_TREES = (
    None,
    "builtins.tuple",
    "builtins.list",
    "builtins.dict",
    "collections.OrderedDict",
    "torch.fx.immutable_collections.immutable_list",
    "torch.fx.immutable_collections.immutable_dict",
)
_NAMES = ("name", "as_name")  # of nodes: words of the Python source that FX generates
_FREE_TEXT = ("metadata", "torch_version")  # stack traces and module names: shown, never run


def load_exported(path: Path) -> ExportedProgram:
    """The program in a .pt2 file; one that could run code, or has dynamic shapes, is a diagnostic."""
    from torch.export.pt2_archive._package import PT2ArchiveReader, load_pt2

    data = read_file(path)
    try:
        with PT2ArchiveReader(io.BytesIO(data)) as archive:
            _check_archive(path, archive, len(data))
        program: ExportedProgram = load_pt2(io.BytesIO(data)).exported_programs["model"]
    except OpenNeutronError:
        raise
    except Exception as error:  # torch fails on a damaged archive in as many ways as it has bytes
        line = str(error).strip().splitlines()
        _refuse(path, f"torch.export cannot load it: {line[0] if line else type(error).__name__}")
    return program


def _check_archive(path: Path, archive: PT2ArchiveReader, size: int) -> None:
    files = {name: archive.archive_file.get_record_size(name) for name in archive.get_file_names()}
    if _GRAPH not in files:
        _refuse(path, f"there is no {_GRAPH} in it")
    for name, record in files.items():
        if not _FILES.fullmatch(name):
            _refuse(path, f"it holds {name!r}, which is neither a tensor nor the graph, and might run code")
        if record > size:  # torch never compresses
            _refuse(path, f"its {name} unpacks to {record:,} bytes, the file has {size:,}")
    for config in (c for c in _CONFIGS if c in files):
        for payload in json.loads(archive.read_bytes(config))["config"].values():
            name = f"{config.rpartition('/')[0]}/{payload['path_name']}"
            if name not in files:
                _refuse(path, f"a tensor is in {name!r}, which is not there")
            if payload["use_pickle"]:
                _check_pickle(path, name, archive.read_bytes(name))
            elif files[name] == 0 and not _is_empty(payload["tensor_meta"]):
                _refuse(path, f"its tensor {name} has no bytes")
    if files.get(_SAMPLE):
        _check_pickle(path, _SAMPLE, archive.read_bytes(_SAMPLE))
    _check_graph(path, json.loads(archive.read_bytes(_GRAPH)))


def _is_empty(meta: Any) -> bool:
    return any(size.get("as_int") == 0 for size in meta["sizes"])


def _check_pickle(path: Path, name: str, data: bytes) -> None:
    """Refuse a pickle of more than tensors and plain containers; torch would fall back to running it."""
    import torch

    try:
        torch.load(io.BytesIO(data), weights_only=True)
    except Exception:
        _refuse(path, f"its {name} is not only tensors: opening it would run code from the file")


def _check_graph(path: Path, document: Any) -> None:
    for guard in document.get("guards_code") or ():
        if not isinstance(guard, str) or not _GUARD.fullmatch(guard):
            _refuse(path, f"its guard {str(guard)[:80]!r} is not a comparison with a number")
    for where, key, value in _leaves(document):
        if any(part in _FREE_TEXT for part in where) or not isinstance(value, str):
            continue
        if key in ("in_spec", "out_spec"):
            _check_tree(path, value)
        elif key == "expr_str":
            _refuse_symbol(path, where, value)
        elif key in ("target", "as_operator"):
            if not _TARGET.fullmatch(value) or value.startswith(_READS_FILES):
                _refuse(path, f"its operator {value[:80]!r} is none of PyTorch's")
        elif key in _NAMES or "forward_arg_names" in where:
            if value and not value.isidentifier():
                _refuse(path, f"its name {value[:80]!r} is not a name")
        elif "guards_code" not in where and not _WORDS.fullmatch(value):
            _refuse(path, f"its text {value[:80]!r} (in {'.'.join(where[-3:])}) has characters no name has")


def _leaves(value: Any, where: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """(path, last key, value) of every scalar; keys of objects are names of values and come as such."""
    if isinstance(value, dict):
        for key, item in value.items():
            if where and where[-1].endswith("_values"):
                yield (*where, "name"), "name", key
            yield from _leaves(item, (*where, key))
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item, where)
    else:
        yield where, where[-1] if where else "", value


def _check_tree(path: Path, text: str) -> None:
    """A tree of containers may name classes to import: allow the plain ones."""
    _, tree = json.loads(text)
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        context = node["context"]
        plain = json.loads(context) if isinstance(context, str) else context
        keys = plain if isinstance(plain, list) else [plain]
        if node["type"] not in _TREES or not all(k is None or isinstance(k, str | int) for k in keys):
            _refuse(path, f"its inputs or outputs are in a {node['type']}; tuples, lists and dicts are read")
        if any(isinstance(k, str) and not _WORDS.fullmatch(k) for k in keys):
            _refuse(path, "a key of its inputs or outputs has characters no name has")
        waiting += node["children_spec"]


def _refuse_symbol(path: Path, where: tuple[str, ...], symbol: str) -> NoReturn:
    """Expressions are evaluated by torch; a program with static shapes has none."""
    named = [part for before, part in pairwise(where) if before.endswith("_values")]
    shown = symbol if symbol.isidentifier() else "an expression"
    fail(
        "ON205",
        f"{path}: {named[0]}" if named and named[0].isidentifier() else str(path),
        f"has {shown} in its shape",
        "Neutron programs are static: export the model without dynamic_shapes.",
    )


def _refuse(path: Path, problem: str) -> NoReturn:
    fail("ON603", str(path), problem, _SAVE)
