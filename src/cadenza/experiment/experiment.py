"""The folder of a run, and everything that belongs into it."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cadenza.callback import Callback, Order
from cadenza.distributed.agreement.collectives import from_main
from cadenza.experiment.choose_run import STARTED_WITH, RunChoice
from cadenza.experiment.journal import Journal
from cadenza.experiment.make_folder import (
    FolderError,
    check_name,
    fill_folder,
    make_folder,
    read_details,
    remove_folder,
    write_details,
)
from cadenza.experiment.media import Media
from cadenza.experiment.media_callbacks import Showing
from cadenza.experiment.provenance import describe
from cadenza.experiment.recipe_text import flat, jsonable
from cadenza.experiment.run_settings import check_seed, deterministic, score_of, settings_of
from cadenza.experiment.secrets import masked
from cadenza.experiment.status import now, read_status
from cadenza.foundation.arguments import flags, path
from cadenza.foundation.locking import FolderLock

if TYPE_CHECKING:
    from cadenza.run import Run

_ADVICE = "wait until it ended, or train into a folder of its own: Experiment(project, name) makes one"


class Experiment(RunChoice, Callback, Showing):
    """Gives each run a folder of its own, ``<root>/<project>/<name>/<time>-<id>``, and keeps its record there.

    In it are the recipe, the command, the state of git, the packages, the machine, the seed and the score
    (``run.json``, ``recipe.yaml``, ``git.diff``, ``packages.txt``), every row of the history (``metrics.jsonl``), what
    happened (``events.jsonl``, ``log.txt``), where the run stands (``status.json``), the folders ``checkpoints``,
    ``plots`` and ``tensorboard``, and at the end ``report.html``. Give it to the trainer as ``experiment``; every
    callback reaches it as ``run.experiment``, and those that write files write them there.

    The folder is made when the run begins. A lock, which ends with the process, refuses a second run in it. A further
    fit of the same trainer goes on in the same folder, and ``fit(..., resume="auto")`` of a script that is started
    again in that of the unfinished run of the same project, name and settings. ``Experiment.at(folder)`` goes on in
    the folder named.
    ``recipe`` is what was set, as nested dicts. ``seed`` seeds Python, NumPy and torch as the first fit begins;
    ``deterministic=True`` lets torch use algorithms that give the same bits each time, while a run goes on.
    ``report=False`` writes no report at the end.

    Values of keys such as password, token, secret and key are masked in all that is written, and no environment values
    are stored. Under many processes the first one writes, and all know the folder.

    >>> import cadenza, tempfile, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model, loss = tiny_classifier(), torch.nn.CrossEntropyLoss()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with tempfile.TemporaryDirectory() as root:
    ...     experiment = Experiment("digits", "first", root, seed=1)
    ...     trainer = cadenza.Trainer(model, sgd, loss, experiment=experiment, device="cpu")
    ...     history = trainer.fit(tiny_loader(), epochs=2)
    ...     print(experiment.metrics_file.read_text().count("train/loss"), experiment.status)
    2 finished
    """

    order = Order.PREPARE - 1_000_000  # before all others, who write into its folder
    passive = True
    replayed = False
    _begins_anew = True  # another trainer gets another folder
    _shows_iterations = True
    _label = "Experiment"

    def __init__(
        self,
        project: str,
        name: str,
        root: str | os.PathLike[str] = "runs",
        *,
        recipe: Mapping[str, Any] | None = None,
        seed: int | None = None,
        deterministic: bool = False,
        report: bool = True,
    ) -> None:
        if recipe is not None and not isinstance(recipe, Mapping):
            raise TypeError(f"recipe is a dict of what was set, or None, not {recipe!r}")
        flags(deterministic=deterministic, report=report)
        if root is None:
            raise TypeError("root is the name of a folder, not None")
        path("root", root, "the name of a folder")
        self.project, self.name = check_name("project", project), check_name("name", name)
        self.root, self.recipe, self.report = Path(root), recipe, report
        self.seed, self.deterministic = check_seed(seed), deterministic
        self._rows = 0
        self._resuming = False
        self._details: dict[str, Any] = {}
        self._forget()

    def _forget(self) -> None:
        self._journal: Journal | None = None
        self._lock: FolderLock | None = None
        self._run: weakref.ref[Run] | None = None
        self._media: Media | None = None
        self._keeps_status = False

    @classmethod
    def at(cls, folder: str | os.PathLike[str], *, report: bool = True) -> Experiment:
        """The experiment whose folder is there already: the next run goes on in it."""
        place = Path(folder)
        found = read_details(place)
        project, name, seed = str(found["project"]), str(found["name"]), found.get("seed")
        made = cls(project, name, place.parents[2] if len(place.parents) > 2 else place.parent, report=report)
        made.recipe, made.seed, made.deterministic = found.get("recipe"), seed, bool(found.get("deterministic"))
        made._folder, made._fixed = place, True
        return made

    @classmethod
    def example(cls) -> Self:
        return cls("project", "example", seed=0, report=False)

    def explain(self) -> str:
        where = self._folder or self.root / self.project / self.name
        return f"writes to {where}" + (", deterministic" if self.deterministic else "")

    # Points ---------------------------------------------------------------------------------------------------------

    def after_register(self, run: Run) -> None:
        """Makes or opens the folder, before any other callback asks for it."""
        self._forget()
        if run.experiment is None:
            run.experiment = self
        if run.experiment is not self:
            raise ValueError(f"a run has one experiment; {self.name!r} is a second one")
        self._run = weakref.ref(run)
        error: Exception | None = None
        if run.is_main:
            try:
                self._open(run)
            except Exception as failed:
                error = failed
        failed_there = None
        if run.world_size > 1:  # every process plays this, and all of them wait for the first
            self._folder, failed_there = from_main((self._folder, str(error) if error else None))
        if error is not None:
            raise error
        if failed_there is not None:
            raise FolderError(f"the main process has no folder for the run: {failed_there}")

    def before_run(self, run: Run) -> None:
        if self._journal is None:
            return
        self._details.update(settings=masked(jsonable(settings_of(run, run.callbacks))), score=score_of(run))
        if self._started_with is not None:
            self._details.setdefault(STARTED_WITH, self._started_with)
        with self._journal.trouble.noting():
            write_details(self.folder, self._details)
        self._follow_resume(run)

    def around_run(self, run: Run) -> Iterator[None]:
        with ExitStack() as held:
            if self.deterministic:
                held.enter_context(deterministic(run.device))
            if self._journal is not None:
                held.enter_context(self._journal.log.listening())
            yield

    def after_load(self, run: Run) -> None:
        self._follow_resume(run)

    def before_save(self, run: Run) -> None:
        if self._journal is not None:
            self._journal.flush(run)
            self._journal.set_earlier_rows_aside(run)

    def after_log(self, run: Run) -> None:
        if self._journal is not None and run.row is not None:
            self._journal.take(run, run.row)

    def after_train_iter(self, run: Run) -> None:
        if run.skipped and self._journal is not None:
            self._journal.happened.count_skip(run)

    def after_epoch(self, run: Run) -> None:
        if self._journal is not None:
            self._journal.end_epoch(run)

    def after_run(self, run: Run) -> None:
        self._end(run, None)

    def after_error(self, run: Run) -> None:
        self._end(run, run.error)

    def close(self) -> None:
        """Writes what came last, and the report; then another run may have the folder."""
        journal, lock = self._journal, self._lock
        self._rows = self.rows
        try:
            if self._media is not None:
                self._media.close()
            if journal is not None:
                journal.close(self._run() if self._run is not None else None)
                if self.report:
                    _write_report(self.folder)
        finally:
            if lock is not None:
                lock.release()
            self._forget()

    # State ----------------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        return self._rows if self._journal is None or self._resuming else self._journal.rows

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rows, self._resuming = int(state["rows"]), True

    def _follow_resume(self, run: Run) -> None:
        if self._resuming and self._journal is not None:
            self._resuming = False
            self._journal.resume(run, self._rows)

    @property
    def status(self) -> str:
        """Where the run of this folder stands: running, finished, failed, interrupted, preempted or killed."""
        return str(read_status(self.folder)["state"])

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """What was set, by dotted names, with secrets masked: the recipe, else what the run itself shows."""
        tree = self.recipe if self.recipe is not None else self._details.get("settings", {})
        found: dict[str, Any] = flat(masked(jsonable(tree)))
        return found

    # The folder -----------------------------------------------------------------------------------------------------

    def _open(self, run: Run) -> None:
        fresh = not self._has_folder_for(run)
        if fresh:
            self._folder = make_folder(self.root / self.project / self.name)
        elif not self.folder.is_dir():
            raise FolderError(f"{self.folder} is gone; it cannot be written to any more")
        self._training = weakref.ref(run.training_state)
        self._lock = FolderLock(self.folder, _ADVICE).acquire()
        if fresh:
            self._rows = self._rows if self._resuming else 0
            self._fill(run)
        else:
            self._details = read_details(self.folder)
        self._journal = Journal(self.folder, self.metrics_file, self.log_file)
        self._media = Media(self.folder, self.plots, self._journal.trouble)
        self._keeps_status = run.mode != "fit" and not fresh
        again = "" if fresh else " again"
        self._journal.happened.add("begin", f"{run.mode} began{again}", run, mode=run.mode)
        self._journal.log.write(f"{run.mode} began{again}: {self.project}/{self.name}/{self.id}")
        if not self._keeps_status:
            self._journal.write_status(run, "running")

    def _fill(self, run: Run) -> None:
        seed = run.training_state.seed
        found, diff = describe(run.device, seed, deterministic=self.deterministic)
        recipe = None if self.recipe is None else masked(jsonable(self.recipe))
        names = {"project": self.project, "name": self.name, "id": self.id, "created": now()}
        self._details = {**names, "mode": run.mode, **found, "recipe": recipe}
        try:
            fill_folder(self.folder, self._details, self.recipe, diff)
        except OSError:
            if self._lock is not None:
                self._lock.release()
            remove_folder(self.folder)
            self._folder, self._lock = None, None
            raise

    def _end(self, run: Run, error: BaseException | None) -> None:
        if self._journal is None or (self._keeps_status and error is None):
            return
        self._journal.end(run, error)


def _write_report(folder: Path) -> None:
    """A report that cannot be made is no reason to lose a training."""
    from cadenza.experiment.report import write_report

    try:
        write_report([folder])
    except Exception as error:
        warnings.warn(f"the report of {folder} could not be written: {type(error).__name__}: {error}", stacklevel=2)
