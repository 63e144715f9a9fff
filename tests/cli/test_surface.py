"""What the command line offers is frozen; it starts quickly, completes, and says what is missing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import typer

from cadenza.cli.app import make_app
from cadenza.cli.main import main

BUILDING = ["--import", "--allow"]
USING = ["--checkpoint", "--root", *BUILDING]
SURFACE = {
    "train": (["recipe", "overrides"], ["--dry-run", "--print-config", "--resume", *BUILDING]),
    "validate": (["run", "overrides"], USING),
    "test": (["run", "overrides"], USING),
    "predict": (["run", "data"], ["--out", *USING]),
    "explain": (["recipe", "overrides"], BUILDING),
    "points": ([], []),
    "check": (["files"], []),
    "recipes": ([], []),
    "runs": (["project"], ["--root"]),
    "compare": (["runs"], ["--root"]),
    "report": (["runs"], ["--out", "--root"]),
    "ablate": (["recipe", "overrides"], ["--seeds", "--metric", "--out", *BUILDING]),
    "replay": (["file", "recipe"], ["--trainer", *BUILDING]),
    "launch": (["command"], ["--workers", "--on", "--address", "--storage", "--restarts"]),
    "script": (["file", "arguments"], ["--dialect"]),
    "certify": (["recipe", "overrides"], ["--kills", "--storm", "--seed", "--out", *BUILDING]),
}
"""Every command with its arguments and options. Others are added here as their parts arrive; none goes away."""


def test_the_commands_are_frozen():
    commands = typer.main.get_command(make_app()).commands
    found = {}
    for name, command in commands.items():
        arguments = [one.name for one in command.params if one.param_type_name == "argument"]
        options = [one.opts[0] for one in command.params if one.param_type_name == "option" and one.name != "help"]
        found[name] = (arguments, options)
    assert {name: found.get(name) for name in SURFACE} == SURFACE
    assert list(found)[: len(SURFACE)] == list(SURFACE)


@pytest.mark.parametrize("name", SURFACE)
def test_every_command_has_help(name, capsys):
    assert main([name, "--help"]) == 0
    assert f"Usage: cadenza {name}" in capsys.readouterr().out


def test_the_list_of_commands_fits_into_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out.partition("Commands:")[2]
    assert "..." not in listed
    assert all(len(line) <= 80 for line in listed.splitlines())


@pytest.mark.parametrize("name", SURFACE)
def test_every_argument_says_what_it_is(name):
    command = typer.main.get_command(make_app()).commands[name]
    for one in command.params:
        assert one.help, one.name
        assert not set(one.metavar or "") & set(".[]") or one.metavar == "file.py:function", one.metavar


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, text=True, env={**os.environ, **environment})


def test_help_and_completion_load_no_torch():
    code = (
        "import sys; from cadenza.cli.main import main; sys.argv[1:] = {words}; main(); "
        "print('torch' in sys.modules, 'hydra' in sys.modules, file=sys.stderr)"
    )
    assert python(code.format(words=["--help"])).stderr.strip() == "False False"
    assert python(code.format(words=["train", "--help"])).stderr.strip() == "False False"


def test_the_shell_completes_commands_and_recipes():
    def completed(line: str) -> list[str]:
        code = "import sys; from cadenza.cli.main import main; sys.argv[:] = ['cadenza']; sys.exit(main())"
        environment = {"_CADENZA_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        return python(code, **environment).stdout.split()

    assert completed("cadenza ex") == ["explain"]
    assert completed("cadenza train dig") == ["digits", "digits_cnn"]


@pytest.mark.parametrize(("missing", "words"), [("typer", "['points']"), ("hydra", "['train', 'digits']")])
def test_what_is_not_installed_is_named_with_its_extra(missing, words):
    code = f"import sys; sys.modules['{missing}'] = None; from cadenza.cli.main import main; sys.exit(main({words}))"
    done = python(code)
    assert done.returncode == 1
    assert "pip install 'cadenza[cli]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_error_in_a_users_code_is_one_message_with_its_place(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "faulty.py").write_text(
        "from cadenza import Callback\nfrom cadenza.recipes import register\n@register('callback')\n"
        "class Faulty(Callback):\n    def after_step(self, run): raise RuntimeError('out of ideas')\n"
    )
    (tmp_path / "my.yaml").write_text("defaults: [digits]\nimports: [faulty.py]\ncallbacks: {faulty: }\n")
    assert main(["train", "my.yaml"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("cadenza: RuntimeError: out of ideas; ")
    assert "Faulty" in told
    assert "after_step" in told
    assert told.count("\n") == 1
    assert main(["--traceback", "train", "my.yaml"]) == 1
    assert "Traceback" in capsys.readouterr().err
