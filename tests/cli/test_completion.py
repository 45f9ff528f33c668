"""Completion scripts say what the parsers say, and the shells take them."""

import shutil
import subprocess

import pytest

from openneutron.cli import build_parser, main
from openneutron.commands.reference.completion import vocabulary


def script(shell, capsys):
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["comp"], "compare compile completion"),
        (["compile", "--rec"], "--recipe"),
        (["compile", "--recipe", ""], "cortex-m imxrt700 neutron npu+cpu"),
        (["eval", "cif"], "cifarnet"),
        (["run", "some"], "some.pte"),
        (["completion", ""], "bash fish some.pte zsh"),
    ],
)
def test_bash_completes(typed, expected, capsys, tmp_path):
    (tmp_path / "some.pte").touch()
    words = " ".join(f"'{word}'" for word in typed)
    ask = f"COMP_WORDS=(openneutron {words}); COMP_CWORD={len(typed)}; _openneutron\n"
    ask += """printf '%s\\n' "${COMPREPLY[@]}" """
    done = subprocess.run(
        ["bash", "-uc", script("bash", capsys) + ask],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert (sorted(done.stdout.split()), done.stderr) == (expected.split(), "")


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_the_script_names_every_command_and_option(shell, capsys, tmp_path):
    text = script(shell, capsys)
    for command in vocabulary(build_parser()):
        assert command.name in text
        for option in command.options:
            assert all(name.lstrip("-") in text for name in option.names), option
    if shutil.which(shell):
        file = tmp_path / "script"
        file.write_text(text)
        done = subprocess.run([shell, "-n", str(file)], capture_output=True, text=True, timeout=20)
        assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_shell_is_refused(capsys):
    assert main(["completion", "csh"]) == 2
    assert "csh" in capsys.readouterr().err
