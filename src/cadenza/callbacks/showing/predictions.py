"""What a model said and what was true, image by image, for the three tasks that pictures are made of.

Each function takes a whole batch and returns a list with one entry for each image; nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Label:
    """A class, and how sure the model is of it, from 0 to 1."""

    label: Tensor
    score: Tensor | None = None


@dataclass(frozen=True)
class Boxes:
    """Boxes as rows of left, top, right and bottom in pixels, each with its class and perhaps a score."""

    boxes: Tensor
    labels: Tensor
    scores: Tensor | None = None


@dataclass(frozen=True)
class Mask:
    """The class of each pixel."""

    mask: Tensor


# What the model said ------------------------------------------------------------------------------------------------


def decode_labels(output: Any) -> list[Label]:
    """Scores of shape (N, C) by the highest; single scores by whether they are above 0; whole numbers as they are.

    >>> decode_labels(torch.tensor([[0.0, 2.0]]))[0]
    Label(label=tensor(1), score=tensor(0.8808))
    """
    scores = main_tensor(output)
    if not scores.is_floating_point():
        return [Label(label) for label in scores.flatten()]
    if scores.dim() > 1 and scores.size(1) > 1:
        sure, labels = scores.float().softmax(1).max(1)
    else:
        sure = scores.float().flatten().sigmoid()
        labels = (sure > 0.5).long()
        sure = torch.where(labels > 0, sure, 1 - sure)
    return [Label(label, score) for label, score in zip(labels, sure, strict=True)]


def decode_boxes(output: Any) -> list[Boxes]:
    """For each image a dict with ``boxes``, ``labels`` and ``scores``, or a tensor of rows (left, top, right, bottom,
    score, class)."""
    if isinstance(output, Mapping):
        parts = [output[name] for name in ("boxes", "labels", "scores")]
        return [Boxes(*each) for each in zip(*parts, strict=True)]
    if not isinstance(output, list | tuple | Tensor):
        raise TypeError(_unknown("boxes", output))
    found = []
    for one in output:
        if isinstance(one, Mapping) and "boxes" in one:
            found.append(Boxes(one["boxes"], one["labels"], one.get("scores")))
        elif isinstance(one, Tensor) and one.dim() == 2 and one.size(1) == 6:
            found.append(Boxes(one[:, :4], one[:, 5].long(), one[:, 4]))
        else:
            raise TypeError(_unknown("boxes", one))
    return found


def decode_masks(output: Any) -> list[Mask]:
    """Scores of shape (N, C, H, W) by the highest; single scores by whether they are above 0; whole numbers as they
    are."""
    scores = main_tensor(output)
    if scores.dim() == 4 and scores.size(1) > 1:
        masks = scores.argmax(1)
    else:
        masks = scores.squeeze(1) if scores.dim() == 4 else scores
        masks = (masks > 0).long() if masks.is_floating_point() else masks
    if masks.dim() != 3:
        raise ValueError(f"masks have the shape (N, C, H, W) or (N, H, W), not {tuple(scores.shape)}: give decode=")
    return [Mask(mask) for mask in masks]


# What was true ------------------------------------------------------------------------------------------------------


def true_labels(targets: Any) -> list[Label]:
    """Classes as whole numbers, or rows of which the highest number is the class."""
    if not isinstance(targets, Tensor):
        raise TypeError(_unknown("labels", targets, "decode_targets"))
    if targets.dim() > 1 and targets.size(1) > 1:
        targets = targets.argmax(1)
    return [Label(label) for label in targets.flatten().long()]


def true_boxes(targets: Any) -> list[Boxes]:
    """For each image a dict with ``boxes`` and ``labels``, or a tensor of rows (left, top, right, bottom, class)."""
    if not isinstance(targets, list | tuple):
        raise TypeError(_unknown("boxes", targets, "decode_targets"))
    found = []
    for one in targets:
        if isinstance(one, Mapping) and "boxes" in one:
            found.append(Boxes(one["boxes"], one["labels"]))
        elif isinstance(one, Tensor) and one.dim() == 2 and one.size(1) == 5:
            found.append(Boxes(one[:, :4], one[:, 4].long()))
        else:
            raise TypeError(_unknown("boxes", one, "decode_targets"))
    return found


def true_masks(targets: Any) -> list[Mask]:
    """Classes of shape (N, H, W) or (N, 1, H, W), or shares of shape (N, C, H, W) of which the highest counts."""
    if not isinstance(targets, Tensor) or targets.dim() not in (3, 4):
        raise TypeError(_unknown("masks", targets, "decode_targets"))
    if targets.dim() == 4:
        targets = targets.argmax(1) if targets.size(1) > 1 else targets.squeeze(1)
    return [Mask(mask) for mask in targets.long()]


# The images ---------------------------------------------------------------------------------------------------------


def find_images(inputs: Any) -> Sequence[Tensor]:
    """The images in what the model got: a tensor of shape (N, C, H, W), or a list with one of shape (C, H, W) each."""
    if isinstance(inputs, Tensor) and inputs.dim() == 4:
        return list(inputs)
    parts = list(inputs.values()) if isinstance(inputs, Mapping) else inputs
    if isinstance(parts, list | tuple) and parts:
        if all(isinstance(part, Tensor) and part.dim() == 3 for part in parts):
            return parts
        for part in parts:
            if isinstance(part, Tensor) and part.dim() == 4:
                return list(part)
    kind = f"a tensor of shape {tuple(inputs.shape)}" if isinstance(inputs, Tensor) else type(inputs).__name__
    raise TypeError(
        f"the inputs are {kind}, and images have the shape (N, C, H, W): give images=, a function of run.inputs"
    )


def class_count(output: Any) -> int | None:
    """How many classes the scores in an output tell apart; None if it holds no scores."""
    scores = main_tensor(output)
    if not scores.is_floating_point():
        return None
    return scores.size(1) if scores.dim() > 1 and scores.size(1) > 1 else 2


def main_tensor(output: Any) -> Tensor:
    """The tensor in which a model says what it predicts."""
    if isinstance(output, Mapping):
        output = next((output[name] for name in ("logits", "out") if name in output), next(iter(output.values()), None))
    output = getattr(output, "logits", output)
    if isinstance(output, list | tuple) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise TypeError(_unknown("predictions", output))
    return output


def _unknown(what: str, found: Any, argument: str = "decode") -> str:
    kind = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
    return f"no {what} are found in {kind}: give {argument}=, a function that returns them for each image"
