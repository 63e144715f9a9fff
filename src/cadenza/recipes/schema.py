"""What a recipe may say, and where its objects stand. Checks, normal forms and the documentation read these tables."""

from __future__ import annotations

from collections.abc import Mapping

OBJECTS: Mapping[tuple[str, ...], str] = {
    ("model",): "model",
    ("loss",): "loss",
    ("optimizer",): "optimizer",
    ("scheduler",): "scheduler",
    ("data", "train"): "dataset",
    ("data", "val"): "dataset",
    ("data", "test"): "dataset",
    ("loaders", "train"): "loader",
    ("loaders", "val"): "loader",
    ("loaders", "test"): "loader",
}
"""Where one object stands, and of which kind it is."""

SEVERAL = {("optimizer",), ("scheduler",), ("data", "val"), ("data", "test")}
"""Where a mapping of names to objects may stand instead."""

NAMED: Mapping[str, str] = {"callbacks": "callback", "trackers": "tracker"}
"""Objects under names of their own, as a mapping or as a list."""

SECTIONS: Mapping[str, str] = {
    "about": "one sentence: what is trained on what",
    "reaches": "the quality it reaches: metric, and at_least or at_most",
    "imports": "files beside the recipe, or modules, that register your own objects",
    "seed": "the seed of all random numbers",
    "threads": "how many threads torch uses; null leaves it alone",
    "device": "auto, cpu, cuda, …",
    "strategy": "as of Trainer",
    "execution": "as of Trainer",
    "experiment": "the arguments of Experiment, or false for no folder",
    "model": "the model",
    "loss": "the loss",
    "optimizer": "the optimizer, or several under names",
    "scheduler": "a scheduler of torch, or several under names",
    "data": "the datasets: train, val, test",
    "loaders": "how they are loaded: train, val, test",
    "fit": "how far: epochs or steps, validate_every",
    "callbacks": "the callbacks, under names",
    "trackers": "the trackers of the experiment, under names",
}
"""The keys of a recipe."""

STAGES = ("train", "val", "test")
FIT = ("epochs", "steps", "validate_every")
REACHES = ("metric", "at_least", "at_most")
