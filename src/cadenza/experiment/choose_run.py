"""Chooses the run that ``fit(..., resume="auto")`` continues, among those of the same project and name."""

from __future__ import annotations

import re
import textwrap
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadenza.callback import Order
from cadenza.distributed.agreement.collectives import from_main
from cadenza.experiment.make_folder import FolderError, Places, read_details
from cadenza.experiment.recipe_text import flat, jsonable
from cadenza.experiment.records import runs_in
from cadenza.experiment.run_settings import settings_of
from cadenza.experiment.secrets import masked
from cadenza.experiment.status import read_status

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.engine.trainer_state import Training
    from cadenza.run import Run

STARTED_WITH = "started_with"
"""Under this name ``run.json`` keeps what the first fit of the run was set to, before anything was loaded."""
_LENGTHS = tuple(f"{place}.{unit}" for place in ("settings", "recipe", "recipe.fit") for unit in ("epochs", "steps"))
_NOT_COMPARED = {*_LENGTHS, "settings.device", "settings.world_size"}
"""A run may be resumed with another length, and on another machine."""
_OF_ONE_PROCESS = {"settings.batch_size", "settings.batches"}
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_SHOWN = 3


class UnclearRun(FolderError):
    """The run to resume cannot be told; ``listing`` has a line for each that it may be."""

    listing = ""


def unclear(why: str, runs: Sequence[Candidate]) -> UnclearRun:
    listing = "\n".join([f"{why}:", *(f"  {one}" for one in runs)])
    error = UnclearRun(
        f"{listing}\nTo continue one of them write experiment=Experiment.at({str(runs[-1].folder)!r}). To train from "
        "the beginning, leave resume out, or give the experiment another name."
    )
    error.listing = listing
    return error


@dataclass(frozen=True)
class Candidate:
    """A run of the same project and name, and how its settings differ from those of now."""

    folder: Path
    status: dict[str, Any]
    differs: dict[str, tuple[Any, Any]]

    @property
    def state(self) -> str:
        return str(self.status["state"])

    def __str__(self) -> str:
        came = f", {self.status['epochs']} epochs and {self.status['steps']} steps" if "steps" in self.status else ""
        return f"{self.folder} ({self.state}{came}){self.difference}"

    @property
    def difference(self) -> str:
        """The first settings that differ, in words."""
        first = [
            f"{name} was {_short(then)}, now {_short(now)}" for name, (then, now) in [*self.differs.items()][:_SHOWN]
        ]
        more = len(self.differs) - len(first)
        return f": {', '.join(first)}{f' and {more} more' if more else ''}" if first else ""


def _short(value: Any) -> str:
    return "not set" if value is None else textwrap.shorten(str(value), 40, placeholder="…")


def candidates(place: Path, now: Mapping[str, Any]) -> list[Candidate]:
    """The runs in ``place`` that trained, the oldest first."""
    found = []
    for folder in runs_in(place):
        try:
            then = read_details(folder).get(STARTED_WITH)
        except FolderError:
            continue
        if isinstance(then, dict):
            found.append(Candidate(folder, read_status(folder), differences(then, now)))
    return found


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings that are not equal, by dotted names, without those that a resume may change.

    >>> differences({"settings": {"lr": 0.1, "epochs": 2}}, {"settings": {"lr": 0.3, "epochs": 5}})
    {'lr': (0.1, 0.3)}
    """
    one, other = flat(then), flat(now)
    moved = one.get("settings.world_size") != other.get("settings.world_size")
    names = [name for name in dict.fromkeys((*one, *other)) if name not in _NOT_COMPARED]
    return {
        name.removeprefix("settings."): (one.get(name), other.get(name))
        for name in names
        if one.get(name) != other.get(name) and not (moved and name in _OF_ONE_PROCESS)
    }


def choose(found: Sequence[Candidate], saved: Callable[[Candidate], bool], *, shared: bool) -> Candidate | None:
    """The run to continue; None if all that is wanted is to begin. ``saved`` says whether a run has a checkpoint, and
    ``shared`` that all of them save to one place, so that it has the checkpoints of the newest."""
    mine = [one for one in found if not one.differs]
    unfinished = [one for one in mine if one.state not in ("running", "finished") and saved(one)]
    if len(unfinished) > 1 and not shared:
        raise unclear("several unfinished runs have these settings", unfinished)
    running = [one for one in mine if one.state == "running"]  # its lock will tell whether it really is
    finished = [one for one in mine if one.state == "finished" and saved(one)]
    for some in (unfinished, running, finished):
        if some:
            return some[-1]
    others = [one for one in found if one.differs and one.state not in ("running", "finished") and saved(one)]
    if others:
        raise unclear("the unfinished runs of this name have other settings", others)
    return None


class RunChoice(Places):
    """The part of an experiment that finds its folder again after the process has ended."""

    project: str
    name: str
    root: Path
    recipe: Mapping[str, Any] | None
    seed: int | None
    deterministic: bool
    nothing_found = ""
    """Why there was no run to resume, in words."""
    _fixed = False
    _training: weakref.ref[Training] | None = None
    _started_with: dict[str, Any] | None = None

    def _is_set_up(self, run: Run, callbacks: Sequence[Callback]) -> None:
        """Notes the settings before a checkpoint is looked for, since loading one changes some, such as the rate."""
        if run.experiment is None:
            run.experiment = self
        if not run.is_main:
            return
        that_train = {one.name for one in callbacks if one.order < Order.REPORT and not one.passive}
        settings = settings_of(run, callbacks)
        shown = settings["callbacks"].items()
        settings["callbacks"] = {name: _ADDRESS.sub("", text) for name, text in shown if name in that_train}
        found = {"settings": settings, "recipe": self.recipe, "seed": self.seed, "deterministic": self.deterministic}
        self._started_with = masked(jsonable(found))

    def choose_run(self, run: Run, saver: Any) -> bool:
        """Whether there is a run to look for checkpoints in; the one that may be continued if it has no folder yet."""
        if self._has_folder_for(run):
            return True
        place = self.root / self.project / self.name
        found = candidates(place, self._started_with or {})
        shared = getattr(saver, "to", None) is not None
        chosen = choose(found, lambda one: bool(saver.shelf(_Place(one.folder)).names()), shared=shared)
        if chosen is not None:
            self._folder, self._training = chosen.folder, weakref.ref(run.training_state)
            return True
        finished = [one for one in found if one.state == "finished" and one.differs]
        other = f"; the finished {finished[-1].folder.name} differs{finished[-1].difference}" if finished else ""
        self.nothing_found = f"there is no run in {place} to resume{other}"
        return shared

    def share_folder(self, run: Run) -> None:
        """What the main process chose, on all of them."""
        self._folder = from_main(self._folder)

    def _has_folder_for(self, run: Run) -> bool:
        """Whether a fit of this trainer goes on in the folder that is known; another trainer gets another one."""
        known = self._training() if self._training is not None else None
        return self._folder is not None and (self._fixed or known is run.training_state or run.mode != "fit")


class _Place(Places):
    """The paths in a folder, for a callback that asks where an experiment has its checkpoints."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
