"""What MODEL means on the command line: a zoo name, `file.py:callable`, a .pt2, .onnx or .tflite file."""

from __future__ import annotations

import argparse
import ast
import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NoReturn

from openneutron.diagnostics import OpenNeutronError, fail
from openneutron.files import read_file
from openneutron.inputs.formats import FORMATS
from openneutron.inputs.model import Source, check_static, is_quantized
from openneutron.models.zoo import ZooEntry, find_model, is_known

_RETURNS = "Return (module, example_inputs) or (module, example_inputs, calibration_inputs)."


def listed(words: Iterable[str], last: str) -> str:
    """`a, b and c`."""
    *first, end = words
    return f"{', '.join(first)} {last} {end}" if first else end


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """The options that say what a model is, for every command that takes MODEL."""
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="[INPUT=]SIZES",
        help="the shape of an .onnx model's input with open dimensions, e.g. x=1,3,320,320",
    )
    parser.add_argument(
        "--fix",
        action="append",
        default=[],
        metavar="INPUT=NUMBER",
        help="make an input of an .onnx model a constant, e.g. sample_rate=16000",
    )
    parser.add_argument(
        "--state",
        action="append",
        default=[],
        metavar="OUT=IN",
        help="the model passes state: make this output and this input, by name or number, a state that the "
        "program keeps from run to run and that starts from zeros, e.g. hn=h0",
    )


def model_options(args: argparse.Namespace) -> dict[str, list[str]]:
    """What the command line has of them, as options of a file."""
    return {name: list(getattr(args, name)) for name in ("shape", "fix", "state") if getattr(args, name)}


def check_model_options(args: argparse.Namespace, *models: str) -> None:
    """Refuse --shape, --fix and --state where there is no model to use them on."""
    for option in model_options(args):
        if not any(takes_option(model, option) for model in models):
            _refuse_option(option, models[0] if len(models) == 1 else "these models")


def takes_option(model: str, option: str) -> bool:
    """Whether an option of these is for such a model."""
    return option in (_FROM_CODE if names_code(model) else _options_of(Path(model)))


def _options_of(path: Path) -> tuple[str, ...]:
    return FORMATS[path.suffix].options if path.suffix in FORMATS else ()


def taken_options(options: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Those of the options that are for this model."""
    return {name: values for name, values in options.items() if takes_option(model, name)}


def _refuse_option(option: str, where: str) -> NoReturn:
    suffixes = [*(s for s, f in FORMATS.items() if option in f.options), *(".py",) * (option in _FROM_CODE)]
    takers = f"{listed(suffixes, 'and')} models"
    fail("ON104", f"option --{option}", f"has no effect on {where}: it is for {takers}", "Leave it out.")


def is_model(text: str) -> bool:
    """Whether a command line names a model, rather than something made of one."""
    return is_model_file(text) or is_known(text)


def is_model_file(text: str) -> bool:
    """Whether a model is the user's own: a file, or a function of one."""
    return names_code(text) or Path(text).suffix in FORMATS


def names_code(text: Any) -> bool:
    """Whether a MODEL, or what stands for a function, is Python code that would be run."""
    return isinstance(text, str) and ".py:" in text


def refuse_code(text: Any, where: str, code: str) -> None:
    """Fail if a value that a file gave would run code: only the user says which code is run."""
    if names_code(text):
        fail(
            code,
            where,
            f"{text!r} is Python code, which a file may not name",
            f"Look at that code, then give --trust; zoo names and {listed(FORMATS, 'and')} files need none.",
        )


def load_source(
    text: str, shape: Sequence[str] = (), fix: Sequence[str] = (), state: Sequence[str] = ()
) -> Source:
    """The model that `text` names, with the values of `--shape`, `--fix` and `--state`."""
    for option, values in (("shape", shape), ("fix", fix), ("state", state)):
        if values and not takes_option(text, option):
            _refuse_option(option, text)
    pairs = _state_pairs(state)
    source = _load(text, shape, fix)
    return _carrying(source, pairs) if pairs else source


def _state_pairs(texts: Sequence[str]) -> dict[str, str]:
    """`OUT=IN` of the command line."""
    pairs: dict[str, str] = {}
    for text in texts:
        out, _, into = text.partition("=")
        if not out or not into:
            fail("ON104", "option --state", f"'{text}' is not OUT=IN", "For example: --state hn=h0")
        if out in pairs:
            fail("ON104", "option --state", f"output '{out}' is given twice", "A state is one of each.")
        pairs[out] = into
    return pairs


def _carrying(source: Source, pairs: dict[str, str]) -> Source:
    """The model with a state in the place of outputs and inputs."""
    from openneutron.quantize.carried import carry_state

    assert source.module is not None
    module, inputs = carry_state(source.module, source.example_inputs, pairs)
    given = None if source.calibration is None else module.frames(source.calibration)
    return replace(source, module=module, example_inputs=inputs, calibration=given)


def check_source(text: str) -> None:
    """Refuse at once a model that is not there; nothing of it is loaded."""
    path = Path(f"{text.partition('.py:')[0]}.py") if ".py:" in text else Path(text)
    if path.suffix in (".py", *FORMATS) or path.exists() or len(path.parts) > 1:
        read_file(path)
    else:
        find_model(text)


def _load(text: str, shape: Sequence[str], fix: Sequence[str]) -> Source:
    path = Path(text)
    if names_code(text):
        file, _, call = text.partition(".py:")
        return _from_callable(Path(f"{file}.py"), *parse_call(call, text))
    if path.suffix in FORMATS:
        return FORMATS[path.suffix].load(path, shape, fix)
    if path.suffix == ".py":
        fail("ON104", text, "a Python file needs the name of a function", f"Write {text}:FUNCTION.")
    if path.suffix == ".pte":
        fail("ON603", text, "a .pte is a compiled program", f"Run it: openneutron run {text}")
    if path.exists() or len(path.parts) > 1:
        read_file(path)
        fail("ON603", text, "the file is not a model this command reads", f"MODEL is {MODEL_HELP}.")
    return _from_zoo(find_model(text))


def _from_zoo(entry: ZooEntry) -> Source:
    return Source(
        entry.name,
        entry.build(trained=entry.is_trained),
        entry.example_inputs(),
        entry.calibration_inputs(),
        entry=entry,
    )


_FROM_CODE = ("state",)  # the options of FILE.py:CALLABLE
MODEL_HELP = f"a zoo name, FILE.py:CALLABLE, {listed([f'MODEL{suffix}' for suffix in FORMATS], 'or')}"


def parse_call(text: str, where: str) -> tuple[str, dict[str, Any]]:
    """A function's name and the values given with it: `net`, or `net(width=0.5, resolution=96)`."""
    try:
        tree = ast.parse(text, mode="eval").body
        if isinstance(tree, ast.Name):
            return tree.id, {}
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.args:
            return tree.func.id, {str(k.arg): ast.literal_eval(k.value) for k in tree.keywords if k.arg}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    fail(
        "ON604", where, f"'{text}' is no call of a function", "Write FUNCTION, or FUNCTION(name=value, ...)."
    )


def _from_callable(path: Path, name: str, parameters: dict[str, Any]) -> Source:
    function, where = _function(path, name), f"{path}:{name}"
    try:
        result = function(**parameters)
    except OpenNeutronError:
        raise
    except Exception as error:
        _user_error(where, error)
    return _checked(where, path.stem, result)


def load_function(text: str) -> Callable[..., Any]:
    """The function that `FILE.py:FUNCTION` names: the user's own code."""
    file, colon, name = text.partition(".py:")
    if not colon:
        fail("ON604", text, "names no function of a Python file", "Write FILE.py:FUNCTION.")
    return _function(Path(f"{file}.py"), name)


def arguments_of(text: str) -> list[str] | None:
    """The arguments that `FILE.py:FUNCTION` takes by name, without running the file; None: any, or not told.

    A file or function that is not there is a diagnostic.
    """
    file, colon, call = text.partition(".py:")
    if not colon:
        return None
    path, name = Path(f"{file}.py"), call.partition("(")[0].strip()
    try:
        tree = ast.parse(read_file(path))
    except (SyntaxError, ValueError, RecursionError):
        return None  # running it says what is wrong
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
    if functions:
        given = functions[-1].args
        if given.kwarg or functions[-1].decorator_list:
            return None
        return [a.arg for a in (*given.args, *given.kwonlyargs)]
    own = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
    if not any(isinstance(n, ast.Name | ast.alias | ast.ClassDef) for n in ast.walk(tree) if _names(n, name)):
        fail("ON604", text, f"the file has no function '{name}'", f"It has: {', '.join(own) or 'none'}.")
    return None


def _names(node: ast.AST, name: str) -> bool:
    """Whether a part of a file may be what gives something this name."""
    if isinstance(node, ast.alias):
        return name == (node.asname or node.name) or node.name == "*"
    return getattr(node, "id", getattr(node, "name", None)) == name


class _Uncached(SourceFileLoader):
    """Neither reads nor leaves bytecode: nothing appears beside the user's file, and every edit is seen."""

    def path_stats(self, path: str) -> NoReturn:
        """Without a time of change nothing is cached."""
        raise OSError(f"{path}: not cached")


def _function(path: Path, name: str) -> Callable[..., Any]:
    """The function of that name; one that the file only imports is nobody's to call by way of the file."""
    read_file(path)
    spec = importlib.util.spec_from_file_location(path.stem, path, loader=_Uncached(path.stem, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))  # so that the file can import its neighbours
    loaded = sys.modules.setdefault(path.stem, module)  # a dataclass looks for the module that defines it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        if loaded is module:
            del sys.modules[path.stem]
        _user_error(str(path), error)
    function = vars(module).get(name)
    if not callable(function) or not _is_own(function, module):
        listing = ", ".join(n for n, v in vars(module).items() if callable(v) and _is_own(v, module))
        problem = f"the file has no function '{name}'"
        if function is not None:
            problem = f"'{name}' is no function that is defined in the file"
        fail("ON604", f"{path}:{name}", problem, f"It has: {listing or 'none'}.")
    return function


def _is_own(value: Any, module: ModuleType) -> bool:
    """Whether something callable was defined by the code of this file, not imported into it."""
    if isinstance(value, functools.partial):
        return _is_own(value.func, module)
    if isinstance(value, type):
        same_name = getattr(sys.modules.get(module.__name__), value.__qualname__, None)
        return value.__module__ == module.__name__ and same_name is not value
    code = inspect.unwrap(value)  # what a decorator that was imported stands before
    if isinstance(code, FunctionType):
        return code.__globals__ is vars(module)
    return not isinstance(code, BuiltinFunctionType | MethodType) and _is_own(type(code), module)


def _checked(where: str, stem: str, result: Any) -> Source:
    import torch
    from torch.export import ExportedProgram

    if not isinstance(result, tuple) or len(result) not in (2, 3):
        kind = f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
        fail("ON604", where, f"the function returned {kind}", _RETURNS)
    model, inputs = result[:2]
    if not isinstance(model, torch.nn.Module | ExportedProgram):
        fail("ON604", where, f"the model is {type(model).__name__}, not a torch.nn.Module", _RETURNS)
    inputs = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    for i, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor):
            fail("ON604", where, f"example input {i} is {type(value).__name__}, not a tensor", _RETURNS)
    if isinstance(model, torch.nn.Module):
        model.eval()
    else:
        check_static(model, where)
    calibration = result[2] if len(result) == 3 else None
    return Source(stem, model, inputs, calibration, quantized=is_quantized(model))


def _user_error(where: str, error: Exception) -> None:
    lines = str(error).strip().splitlines()
    fail(
        "ON604",
        where,
        f"raised {type(error).__name__}: {lines[0] if lines else 'no message'}",
        "--debug shows the traceback.",
    )
