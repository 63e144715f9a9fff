"""What each process has of its own in a state: its random numbers, its place in the data, its share of a mean.

A state of many processes is that of rank 0, and beside it, under ``"ranks"``, for each process what differs there. What
is the same everywhere, such as the weights, is there once.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cadenza.data import accumulation_for
from cadenza.foundation.fingerprint import fingerprint, fingerprints
from cadenza.foundation.rng import pack_rng, rng_kept, rng_state, seed_everything
from cadenza.foundation.tree import map_tree, with_dicts
from cadenza.foundation.warn import warn

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.run import Run


OWN = ("rng", "feeds", "clock", "waiting")
"""Parts of a state that each process has of its own."""
COMPARED = ("callbacks", "metrics", "store", "model", "buffers", "criterion", "outside")
"""Parts of a state whose entries are looked at one by one: those that are as on rank 0 are not stored again."""


def compared(state: dict[str, Any], buffers: set[str]) -> dict[str, dict[str, str]]:
    """A short text for each entry that may differ between processes, to be compared with that of rank 0."""
    parts = {name: state[name] for name in COMPARED if name != "model"}
    parts["model"] = {name: value for name, value in state["model"].items() if name in buffers}
    return {name: fingerprints(part) for name, part in parts.items()}


def own_part(state: dict[str, Any], mine: dict[str, dict[str, str]], main: dict[str, dict[str, str]]) -> dict[str, Any]:
    """What this process has that rank 0 has not, as plain values and tensors on the host."""
    inside = state["position"] and state["position"]["pass"]
    part: dict[str, Any] = {name: state[name] for name in OWN}
    part["pass"] = {name: inside[name] for name in ("mean", "logged", "seen", "counted")} if inside else None
    part["differs"], part["lacks"] = {}, {}
    for section in COMPARED:
        own, theirs = mine[section], main[section]
        part["differs"][section] = {name: state[section][name] for name, one in own.items() if theirs.get(name) != one}
        part["lacks"][section] = sorted(theirs.keys() - own.keys())
    kept: dict[str, Any] = on_host(part)
    return kept


def on_host(tree: Any) -> Any:
    """``tree`` with its tensors in main memory."""
    return map_tree(tree, lambda leaf: leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf, rebuild=with_dicts)


# Going on -----------------------------------------------------------------------------------------------------------


def saved_size(state: dict[str, Any]) -> int:
    """With how many processes ``state`` was saved."""
    return len(state.get("ranks") or [None])


def part_for(state: dict[str, Any], rank: int, size: int) -> dict[str, Any] | None:
    """What ``rank`` of ``size`` processes takes in the place of what rank 0 saved; None if nothing."""
    parts = state.get("ranks") or [None]
    if len(parts) == size:
        if rank and parts[rank] is None:
            raise ValueError(
                f"the checkpoint was saved with {size} processes, but what rank {rank} had of its own (random numbers, "
                "its place in the data) is not in it, so it would not go on as it was: go on from another one"
            )
        return parts[rank]  # type: ignore[no-any-return]
    return _moved(state, parts, rank)


def taken_by(state: dict[str, Any], rank: int, size: int) -> dict[str, Any]:
    """The state as ``rank`` of ``size`` processes takes it."""
    return with_part(shared(state), part_for(state, rank, size))


def shared(state: dict[str, Any]) -> dict[str, Any]:
    """What all processes get, and with how many it was saved."""
    return {**{name: value for name, value in state.items() if name != "ranks"}, "saved_with": saved_size(state)}


def with_part(state: dict[str, Any], part: dict[str, Any] | None) -> dict[str, Any]:
    """The state as the process has it whose part is given."""
    state = dict(state)
    if part is None:
        return state
    for name in OWN:
        if name in part:  # the oldest checkpoints have nothing that waits
            state[name] = part[name]
    for section in part["lacks"]:  # a checkpoint of an earlier version has fewer
        merged = copy.copy(state.get(section, {}))  # of the model with what is noted about versions of its modules
        for name in part["lacks"][section]:
            merged.pop(name, None)
        merged.update(part["differs"][section])
        state[section] = merged
    if part["pass"] is not None:
        position = state["position"]
        state["position"] = {**position, "pass": {**position["pass"], **part["pass"]}}
    return state


# With another number of processes -----------------------------------------------------------------------------------


def _moved(state: dict[str, Any], parts: list[Any], rank: int) -> dict[str, Any]:
    """What rank 0 saved, with random numbers of one's own, the whole mean on rank 0 and none elsewhere; of callbacks
    that differ what the process of the same rank had."""
    known = parts[rank] if 0 < rank < len(parts) else None
    differing = {
        name for part in parts if part for name in (*part["differs"]["callbacks"], *part["lacks"]["callbacks"])
    }
    differs: dict[str, Any] = {section: {} for section in COMPARED}
    lacks: dict[str, Any] = {section: [] for section in COMPARED}
    if known is not None:
        differs["callbacks"], lacks["callbacks"] = known["differs"]["callbacks"], known["lacks"]["callbacks"]
    elif rank:
        lacks["callbacks"] = sorted(differing)
    own = known["rng"] if known is not None else state["rng"] if rank == 0 else _another(state["rng"], rank)
    feeds = {name: {**feed, "moved": len(parts)} for name, feed in state["feeds"].items()}
    moved = {"rng": own, "feeds": feeds, "clock": state["clock"], "differs": differs, "lacks": lacks}
    return {**moved, "waiting": _waiting(state, parts, rank), "pass": _gathered_mean(state, parts, rank)}


def _waiting(state: dict[str, Any], parts: list[Any], rank: int) -> list[Any]:
    """Rank 0 asks for what one process is enough for, whoever it was, and what it asked itself; what all must ask is
    asked anew."""
    if rank:
        return []
    theirs = [one for part in parts if part for one in part.get("waiting", ()) if one[1] == "any"]
    return [*(one for one in state.get("waiting", ()) if one[1] != "all"), *theirs]


def _gathered_mean(state: dict[str, Any], parts: list[Any], rank: int) -> dict[str, Any] | None:
    inside = state["position"] and state["position"]["pass"]
    if not inside:
        return None
    counted = inside.get("counted", [0, 0])
    if rank:
        empty: dict[str, Any] = {"losses": [], "weights": [], "total": None, "weight": 0}
        return {"mean": empty, "logged": [], "seen": [0, 0], "counted": counted}
    every = [inside, *(part["pass"] for part in parts if part)]
    means = [one["mean"] for one in every]
    mean: dict[str, Any] = {name: [number for one in means for number in one[name]] for name in ("losses", "weights")}
    totals = [one["total"] for one in means if one["total"] is not None]
    mean |= {"total": sum(totals) if totals else None, "weight": sum(one["weight"] for one in means)}
    seen = [sum(one.get("seen", [0, 0])[place] for one in every) for place in range(2)]
    return {"mean": mean, "logged": _gathered_logged(every), "seen": seen, "counted": counted}


def _gathered_logged(every: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the processes saved of the names that they logged in this pass, each name once."""
    found: dict[str, dict[str, Any]] = {}
    for one in (one for inside in every for one in inside.get("logged", ())):
        known = found.get(one["name"])
        if known is None:
            found[one["name"]] = {**one, "losses": list(one["losses"]), "weights": list(one["weights"])}
            continue
        if one["over"] == "last":
            continue
        known["losses"] += one["losses"]
        known["weights"] += one["weights"]
        if one["over"] == "mean":
            known["weight"] += one["weight"]
            totals = [total for total in (known["total"], one["total"]) if total is not None]
            known["total"] = sum(totals) if totals else None
        elif one["total"] is not None:  # of a sum, the greatest or the least it is one value more
            known["losses"].append(one["total"])
            known["weights"].append(0)
    return list(found.values())


def _another(rng: dict[str, Any], rank: int) -> dict[str, Any]:
    """Random numbers for a process that was not there: they follow from those of rank 0 and its own rank."""
    seed = int(hashlib.blake2b(f"{fingerprint(rng)}/{rank}".encode(), digest_size=4).hexdigest(), 16)
    with rng_kept():
        seed_everything(seed)
        made = pack_rng(rng_state())
    if "cuda" in rng:
        made["cuda"] = rng["cuda"].clone()
        made["cuda"][:8] = torch.tensor(list(seed.to_bytes(8, "little")), dtype=torch.uint8)  # then comes an offset
    return made


def warn_of_move(state: dict[str, Any], size: int) -> None:
    """Says what a change of the number of processes costs."""
    parts = [part for part in state.get("ranks") or [] if part]
    names = sorted({name for part in parts for name in part["differs"]["callbacks"]})
    inside = state["position"] is not None
    what = f"; what {', '.join(names)} had gathered in this epoch is not complete" if names and inside else ""
    before = saved_size(state)
    processes = "process" if before == 1 else "processes"
    warnings.warn(
        f"the run was saved with {before} {processes} and goes on with {size}: every sample is seen once, but "
        f"random numbers are other ones{what}",
        stacklevel=2,
    )


def step_of(run: Run) -> dict[str, Any]:
    """What a checkpoint notes: the samples that a step sees over all processes, None if they are not known."""
    training = run.training_state
    if run.train_loader is None and training.step is not None:  # a custom loop that was resumed only to end
        return training.step
    size, owner = batch_size_of(run.train_loader), accumulating(run.callbacks)
    batches = 1 if owner is None else owner.n
    samples = None if size is None else size * run.world_size * batches
    training.step = {"samples": samples, "adapted": owner is not None and owner.adapted}
    return training.step


def batch_size_of(loader: Any) -> int | None:
    """The batch size of one process, if the loader says it."""
    size = getattr(getattr(loader, "loader", loader), "batch_size", None)
    return size if isinstance(size, int) else None


def accumulating(callbacks: Sequence[Callback]) -> Any:
    """The callback that makes one step of several batches; None if each batch is a step."""
    return next((callback for callback in callbacks if "accumulation" in callback.owns), None)


def keep_step(run: Run, callbacks: Sequence[Callback], saved: dict[str, Any], before: int) -> None:
    """A run that was saved with ``before`` processes goes on: a step sees as many samples as before. The accumulation
    is adapted; what cannot be is refused, with the numbers."""
    size, samples, owner = batch_size_of(run.train_loader), saved["samples"], accumulating(callbacks)
    if size is None or samples is None:
        if before != run.world_size:
            said = "how many samples a step sees is not known from the loader: see to it that it stays the same"
            warn(f"saved with {before} processes, going on with {run.world_size}: {said}")
        return
    batches = accumulation_for(samples, size, run.world_size)
    if owner is not None:
        owner.adapt(batches, scale=before / run.world_size)
    elif batches != 1:
        raise ValueError(
            f"a step of the saved run sees {samples} samples, {run.world_size} process(es) with batch size {size} see "
            f"{size * run.world_size}: use batch size {samples // run.world_size}, or add Accumulate(1) to the "
            f"callbacks, which then takes {batches} batches for a step"
        )
