"""What the shell offers when TAB is pressed."""

from __future__ import annotations

from pathlib import Path


def complete_recipe(incomplete: str) -> list[str]:
    """Ready recipes, and YAML files that begin so."""
    ready = Path(__file__).parents[2] / "recipes" / "ready"
    names = [path.stem for path in sorted(ready.glob("*.yaml"))]
    folder = Path(incomplete).parent if incomplete else Path()
    files = [str(path) for path in sorted(folder.glob("*.y*ml"))] if folder.is_dir() else []
    return [name for name in [*names, *files] if name.startswith(incomplete)]


def complete_run(incomplete: str) -> list[str]:
    """Folders of runs below ``runs``."""
    found = sorted(Path("runs").glob("*/*/*/status.json"), reverse=True)
    return [str(path.parent) for path in found if str(path.parent).startswith(incomplete)]
