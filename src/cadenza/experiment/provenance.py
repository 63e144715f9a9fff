"""What a run was made of: command, source, packages, machine. No environment values, and no secrets."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from cadenza.experiment.secrets import MASK, masked_command, masked_diff, masked_text

_LARGEST_DIFF = 5_000_000
_SECONDS = 10
_LITERAL = re.compile(
    r"(?P<key>(?i:pass(?:word|wd|phrase)|secret|token|api_?key|credential)\w*[\"']?\s*[:=]\s*)(?P<quote>[\"'])[^\"']+(?P=quote)"
)


def command() -> list[str]:
    """How this process was started, with secrets masked."""
    return masked_command([Path(sys.executable).name, *getattr(sys, "orig_argv", sys.argv)[1:]])


@functools.cache
def packages() -> tuple[str, ...]:
    """Every installed package as ``name==version``. The list is made once in a process."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(name.lower(), f"{name}=={distribution.version}")
    return tuple(found[name] for name in sorted(found))


def hardware(device: torch.device) -> dict[str, Any]:
    """The machine: processor, memory, and the accelerators that torch sees."""
    found: dict[str, Any] = {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": _memory(),
        "device": str(device),
        "torch_threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        found["cuda"] = torch.version.cuda
        found["gpus"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {name: value for name, value in found.items() if value not in (None, "")}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _memory() -> float | None:
    if not hasattr(os, "sysconf"):
        return None
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return None


# The source ---------------------------------------------------------------------------------------------------------


def git_state() -> tuple[dict[str, Any] | None, str]:
    """Commit, branch and changed files of the repository around the current folder, and the difference to the commit.

    None and no difference outside a repository or without git.
    """
    where = Path.cwd()
    commit = _git(where, "rev-parse", "HEAD")
    if commit is None:
        return None, ""
    changed = (_git(where, "status", "--porcelain") or "").splitlines()
    state = {
        "commit": commit.strip(),
        "branch": (_git(where, "rev-parse", "--abbrev-ref", "HEAD") or "").strip(),
        "changed": [line[3:] for line in changed if not line.startswith("??")],
        "untracked": [line[3:] for line in changed if line.startswith("??")][:200],
    }
    if not state["changed"]:
        return state, ""
    diff = _git(where, "diff", "HEAD", "--no-color", "--no-ext-diff", "--", ".", ":(exclude)*.env*") or ""
    if len(diff) > _LARGEST_DIFF:
        diff = diff[:_LARGEST_DIFF] + f"\n… cut: the difference has {len(diff):,} characters\n"
    return state, _without_secrets(diff)


def _git(where: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(where), *words],
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def _without_secrets(diff: str) -> str:
    """Texts that are assigned to secret names are masked; other code, such as ``sort(key=…)``, stays as it is."""
    lines = (_LITERAL.sub(rf"\g<key>\g<quote>{MASK}\g<quote>", line) for line in masked_diff(diff).splitlines())
    return "\n".join(masked_text(line) if "://" in line else line for line in lines) + "\n"


def describe(device: torch.device, seed: int | None, *, deterministic: bool) -> tuple[dict[str, Any], str]:
    """All of it as a dict that can be written as JSON, and the difference to the commit."""
    git, diff = git_state()
    found = {
        "command": command(),
        "directory": str(Path.cwd()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cadenza": _version(),
        "seed": seed,
        "first_seed": torch.initial_seed(),
        "deterministic": deterministic,
        "git": git,
        "hardware": hardware(device),
    }
    return found, diff


def _version() -> str:
    from cadenza import __version__

    return __version__
