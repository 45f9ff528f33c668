"""Print a completion script for a shell, made of the commands and options of this version.

bash    openneutron completion bash > ~/.local/share/bash-completion/completions/openneutron
zsh     openneutron completion zsh > "${fpath[1]}/_openneutron"
fish    openneutron completion fish > ~/.config/fish/completions/openneutron.fish
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

NAME = "completion"
HELP = "print a completion script for bash, zsh or fish"


@dataclass(frozen=True)
class Option:
    """One option of a command: its spellings, what it is for, and its values if they are few and known."""

    names: tuple[str, ...]
    help: str
    choices: tuple[str, ...]
    takes_value: bool


@dataclass(frozen=True)
class Words:
    """What can be typed after the name of a command."""

    name: str
    help: str
    options: tuple[Option, ...]
    first: tuple[str, ...]  # the choices of its positional arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("shell", choices=sorted(_WRITERS), help="which shell")


def execute(args: argparse.Namespace) -> None:
    """Print the script."""
    print(_WRITERS[args.shell](vocabulary(args.parser)), end="")


def vocabulary(whole: argparse.ArgumentParser) -> list[Words]:
    """The commands with their options, read off the command line's parser."""
    from openneutron.models import ZOO

    subparsers = next(a for a in whole._actions if isinstance(a, argparse._SubParsersAction))
    helps = {action.dest: action.help or "" for action in subparsers._choices_actions}
    words = []
    for name, parser in subparsers.choices.items():
        options: list[Option] = []
        first: list[str] = []
        for action in parser._actions:
            choices = tuple(map(str, action.choices or ()))
            if action.option_strings:
                is_flag = action.nargs == 0
                options.append(
                    Option(tuple(action.option_strings), _plain(action, parser), choices, not is_flag)
                )
            else:
                first += ZOO if action.metavar == "MODEL" else choices
        words.append(Words(name, _one_line(helps.get(name, "")), tuple(options), tuple(first)))
    return words


def _plain(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    return _one_line((action.help or "") % {"default": action.default, "prog": parser.prog})


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("'", "").replace('"', "").replace("`", "")


def _bash(commands: list[Words]) -> str:
    names = " ".join(command.name for command in commands)
    lines = [
        "# bash completion for openneutron, written by `openneutron completion bash`",
        "_openneutron() {",
        '    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" words=""',
        "    COMPREPLY=()",
        "    if [ $COMP_CWORD -eq 1 ]; then",
        f'        COMPREPLY=($(compgen -W "{names} --help --version" -- "$current"))',
        "        return",
        "    fi",
        '    case "${COMP_WORDS[1]}:$previous" in',
    ]
    for command in commands:
        for option in command.options:
            if option.choices:
                names = "|".join(f"{command.name}:{name}" for name in option.names)
                lines.append(f'        {names}) words="{" ".join(option.choices)}" ;;')
    lines += ["    esac", '    if [ -z "$words" ]; then', '        case "${COMP_WORDS[1]}" in']
    for command in commands:
        spelled = " ".join(name for option in command.options for name in option.names)
        firsts = " ".join(command.first)
        lines.append(
            f'            {command.name}) words="{spelled}"; [[ "$current" == -* ]] || words="{firsts}" ;;'
        )
    lines += [
        "        esac",
        '        [[ "$current" == -* ]] || COMPREPLY=($(compgen -f -- "$current"))',
        "    fi",
        '    COMPREPLY+=($(compgen -W "$words" -- "$current"))',
        "}",
        "complete -o filenames -F _openneutron openneutron",
        "",
    ]
    return "\n".join(lines)


def _zsh(commands: list[Words]) -> str:
    lines = ["#compdef openneutron", "# written by `openneutron completion zsh`", "_openneutron() {"]
    lines += ["    local -a commands", "    commands=("]
    lines += [f"        '{c.name}:{c.help.replace(':', ' ')}'" for c in commands]
    lines += ["    )", "    if (( CURRENT == 2 )); then _describe command commands; return; fi"]
    lines.append("    local command=$words[2]; shift words; (( CURRENT-- ))")
    lines.append("    case $command in")
    for command in commands:
        lines.append(f"        {command.name})")
        specs = []
        for option in command.options:
            text = option.help.replace("[", "(").replace("]", ")").replace(":", " ")
            value = ""
            if option.takes_value:
                value = f":value:({' '.join(option.choices)})" if option.choices else ":value:_files"
            specs += [f"'{name}[{text}]{value}'" for name in option.names]
        words = f"compadd -- {' '.join(command.first)}; " if command.first else ""
        specs.append(f"'*:argument:{{ {words}_files }}'")
        lines.append("            _arguments " + " \\\n                ".join(specs) + " ;;")
    lines += ["    esac", "}", "compdef _openneutron openneutron", ""]
    return "\n".join(lines)


def _fish(commands: list[Words]) -> str:
    start = "complete -c openneutron"
    lines = ["# fish completion for openneutron, written by `openneutron completion fish`"]
    lines += [f"{start} -n __fish_use_subcommand -f -a {c.name} -d '{c.help}'" for c in commands]
    for command in commands:
        seen = f"{start} -n '__fish_seen_subcommand_from {command.name}'"
        if command.first:
            lines.append(f"{seen} -a '{' '.join(command.first)}'")
        for option in command.options:
            spelled = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names
            )
            value = f" -xa '{' '.join(option.choices)}'" if option.choices else " -r" * option.takes_value
            lines.append(f"{seen} {spelled}{value} -d '{option.help}'")
    return "\n".join([*lines, ""])


_WRITERS = {"bash": _bash, "fish": _fish, "zsh": _zsh}
