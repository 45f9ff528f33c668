"""Options of `openneutron compile` as a file has them: names and values, checked like the command line's."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from openneutron.commands.compiling.arguments import add_compile_options
from openneutron.diagnostics import fail, nearest

# Options that run code or write to a place of their own: a file may set them only if it is trusted.
TRUSTED_ONLY = {
    "preprocess": "runs Python code",
    "so_library": "loads a library, which is code",
    "intermediates": "writes to a folder of its choice",
    "extra_flags": "sets flags of NXP's converter, whatever they do",
}


def option_namespace(
    options: Mapping[str, Any], where: str, code: str, trust: bool = True
) -> argparse.Namespace:
    """The options as the compile command would have them; an unknown one is an error.

    Those of a file that is not trusted neither run code nor write where they like.
    """
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_compile_options(parser)
    actions = _by_name(parser)
    args = parser.parse_args([])
    given: dict[str, str] = {}
    for key, value in options.items():
        place = f"{where}: options.{key}"
        if key not in actions:
            fail(code, place, "there is no such option", nearest(key, actions))
        if not trust:
            refuse_option(key, where, code)
        action = actions[key]
        if action.dest in given:
            fail(code, place, f"says the same as options.{given[action.dest]}", "Leave one out.")
        given[action.dest] = key
        checked = _value(action, value, place, code)
        setattr(args, action.dest, checked is not True if action.const is False else checked)
    return args


def _by_name(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The options by the names a file has for them; `per_tensor` is the opposite of `per_channel`."""
    actions = [action for action in parser._actions if action.dest not in ("help", "output")]
    by_name = {action.dest: action for action in reversed(actions)}
    opposites = (action for action in actions if action.const is False)
    return by_name | {action.option_strings[0][2:].replace("-", "_"): action for action in opposites}


def refuse_option(key: str, where: str, code: str) -> None:
    """Fail if only a file that is trusted may set this option."""
    if key in TRUSTED_ONLY:
        problem = f"{TRUSTED_ONLY[key]}, which a file may not do by itself"
        fail(code, f"{where}: options.{key}", problem, "Give --trust if you know the file.")


def option_words(options: Mapping[str, Any]) -> list[str]:
    """The same options as words of a command line."""
    parser = argparse.ArgumentParser()
    add_compile_options(parser)
    actions = _by_name(parser)
    words: list[str] = []
    for key, value in options.items():
        action = actions[key]
        name = max(action.option_strings, key=len)
        if action.dest == "per_channel":
            words.append("--per-channel" if value is (key == "per_channel") else "--per-tensor")
            continue
        if isinstance(action, argparse._AppendAction):
            words += [
                word for item in ([value] if isinstance(value, str) else value) for word in (name, item)
            ]
            continue
        if isinstance(action, argparse.BooleanOptionalAction):
            words.append(
                next(s for s in action.option_strings if s.startswith("--no-") is not value and len(s) > 2)
            )
        elif action.nargs == 0:
            words += [name] if value else []
        elif isinstance(value, list | tuple):
            words += [name, *map(str, value)] if value else []
        elif value is not None:
            words += [name, str(value)]
    return words


def _value(action: argparse.Action, value: Any, where: str, code: str) -> Any:
    expected, good = "a string", isinstance(value, str)
    if action.nargs == 0:
        expected, good = "true or false", isinstance(value, bool)
    elif isinstance(action, argparse._AppendAction):  # given once or several times
        items = [value] if isinstance(value, str) else value
        if isinstance(items, list | tuple) and all(isinstance(item, str) for item in items):
            return list(items)
        expected, good = "a string or a list of strings", False
    elif action.nargs == "+":
        kind: Any = int | float if action.type is float else str
        expected = "a list of numbers" if action.type is float else "a list of strings"
        good = isinstance(value, list | tuple) and all(isinstance(item, kind) for item in value)
    elif action.type is int:
        expected, good = "a number", isinstance(value, int) and not isinstance(value, bool)
    elif action.type is float:
        expected, good = "a number", isinstance(value, int | float) and not isinstance(value, bool)
    elif action.type is not None:  # a size
        try:
            return action.type(str(value))  # type: ignore[operator]
        except argparse.ArgumentTypeError as error:
            fail(code, where, str(error), "Write bytes, or a size like 512K.")
    if good and action.choices is not None:
        expected, good = f"one of {', '.join(map(str, action.choices))}", value in action.choices
    if not good:
        fail(
            code, where, f"must be {expected} (got {value!r})", "Options are those of `openneutron compile`."
        )
    return value
