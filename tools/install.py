"""Installs Cadenza and what one make target needs into an environment of its own. Needs nothing but Python.

``python tools/install.py .venv examples`` installs the extra that the examples import; ``test`` installs the dependency
group. The environment is made if it is not there. uv installs where it is found, since it takes a third of the time;
pip does otherwise.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

WANTED = {"examples": ["--editable", ".[examples]"], "test": ["--editable", ".", "--group", "test"]}
"""What each target installs. The test group includes what the examples need."""
OLDEST = (3, 11)
PIP = "pip>=25.1"
"""The first pip that reads dependency groups."""
HAS_PIP = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pip') is None)"
SETTINGS = {
    "find-links": "UV_FIND_LINKS",
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
}
"""Settings of pip that say where packages come from, and what uv calls them. uv does not read pip's configuration."""


def main(folder: str, target: str) -> None:
    begun = time.monotonic()
    python = Path(folder) / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    uv = shutil.which("uv")
    with_uv = uv is not None and install_with_uv(uv, python, target)
    if not with_uv:
        install_with_pip(python, target)
    print(f"installed in {time.monotonic() - begun:.0f} s", flush=True)


def install_with_uv(uv: str, python: Path, target: str) -> bool:
    """Returns False if uv could not do it; pip then says what is wrong, or succeeds."""
    say(f"installing what `{target}` needs into {python.parent.parent} with uv")
    environment = {**as_uv_reads_them(settings_of_pip()), **os.environ}
    if not works(python) and not succeeds([uv, "venv", "--quiet", "--python", sys.executable, *anew(python)]):
        return False
    where = ["--quiet", "--python", str(python), "--constraints", "constraints.txt"]
    return succeeds([uv, "pip", "install", *where, *WANTED[target]], environment)


def install_with_pip(python: Path, target: str) -> None:
    say(f"installing what `{target}` needs into {python.parent.parent} with pip (uv would be faster)")
    if not works(python) or not succeeds([str(python), "-c", HAS_PIP]):
        check([sys.executable, "-m", "venv", *anew(python)])
    # Without --no-compile pip spends half of its time on bytecode of modules that no test and no example imports.
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    if "--group" in WANTED[target]:
        check([*pip, PIP])
    check([*pip, "--constraint", "constraints.txt", *WANTED[target]])


# Settings -----------------------------------------------------------------------------------------------------------


def settings_of_pip() -> dict[str, str]:
    """What pip's files and variables set: ``find-links`` and the like; a variable counts more than a file."""
    done = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition("=")
        key = name.rpartition(".")[2]
        if key not in found or name.startswith(":env:"):
            found[key] = value.strip().strip("'\"")
    return found


def as_uv_reads_them(settings: dict[str, str]) -> dict[str, str]:
    """Variables for uv: the same places, and the best version from any of them, as pip takes it."""
    found = {variable: settings[key] for key, variable in SETTINGS.items() if settings.get(key)}
    return {**found, "UV_INDEX_STRATEGY": "unsafe-best-match"} if found else {}


# Commands -----------------------------------------------------------------------------------------------------------


def works(python: Path) -> bool:
    """Whether an environment is there whose Python starts and is new enough."""
    return python.exists() and succeeds([str(python), "-c", f"import sys; sys.exit(sys.version_info < {OLDEST})"])


def anew(python: Path) -> list[str]:
    """The folder to make the environment in; what is there is removed if it is one that does not work."""
    folder = python.parent.parent
    return ["--clear", str(folder)] if (folder / "pyvenv.cfg").exists() and not works(python) else [str(folder)]


def succeeds(command: list[str], environment: dict[str, str] | None = None) -> bool:
    return subprocess.run(command, env=environment, check=False).returncode == 0


def check(command: list[str]) -> None:
    if not succeeds(command):
        sys.exit(f"failed: {' '.join(command)}")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
