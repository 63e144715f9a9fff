"""A training from a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from cadenza.dialects.supergradients.building import build
from cadenza.dialects.supergradients.environment import setup_device
from cadenza.dialects.table import nearest
from cadenza.foundation.suggest import suggestion

if TYPE_CHECKING:
    from cadenza.dialects.supergradients.trainer import Trainer

WHOLE = ("architecture", "training_hyperparams", "experiment_name", "train_dataloader")
PARTS = (
    *WHOLE,
    *("val_dataloader", "test_dataloaders", "dataset_params", "arch_params", "checkpoint_params", "ckpt_root_dir"),
    *("pre_launch_callbacks_list", "multi_gpu", "num_gpus", "device"),
)


def train_from_config(kind: type[Trainer], cfg: Any) -> tuple[nn.Module, dict[str, Any]]:
    """Builds model, loaders and parameters from ``cfg`` and trains."""
    recipe = plain(cfg)
    for said in recipe.get("pre_launch_callbacks_list") or ():
        recipe = plain(build("pre_launch_callback", said)(recipe))
    for name in recipe.keys() - set(PARTS):  # names of the user's own are for other lines to refer to
        if near := nearest(name, PARTS, cutoff=0.88):
            raise ValueError(f"supergradients: the recipe says {name!r}{suggestion(near)}")
    missing = [name for name in WHOLE if not recipe.get(name)]
    if missing:
        raise ValueError(f"supergradients: the recipe does not say {', '.join(missing)}")
    setup_device(recipe.get("multi_gpu"), recipe.get("num_gpus"), recipe.get("device"))
    trainer = kind(recipe["experiment_name"], recipe.get("ckpt_root_dir"))
    model = _model(recipe)
    data = recipe.get("dataset_params") or {}
    results = trainer.train(
        model,
        {**(recipe["training_hyperparams"])},
        _loader(recipe["train_dataloader"], data, "train"),
        _loader(recipe.get("val_dataloader"), data, "val"),
        _test_loaders(recipe.get("test_dataloaders"), data),
        arch_params=recipe.get("arch_params") or {},
        checkpoint_params=recipe.get("checkpoint_params") or {},
    )
    return model, results


def plain(cfg: Any) -> dict[str, Any]:
    """A recipe as plain dicts and lists, with what it refers to filled in."""
    if isinstance(cfg, dict):
        return cfg
    from omegaconf import OmegaConf

    found = OmegaConf.to_container(cfg, resolve=True)
    if not isinstance(found, dict):
        raise TypeError(f"supergradients: a recipe is a mapping, not {type(found).__name__}")
    return {str(name): value for name, value in found.items()}


def _model(recipe: Mapping[str, Any]) -> nn.Module:
    model = build("model", recipe["architecture"], **(recipe.get("arch_params") or {}))
    checkpoint = recipe.get("checkpoint_params") or {}
    if checkpoint.get("pretrained_weights"):
        raise ValueError("supergradients: checkpoint_params.pretrained_weights names weights of the zoo: not carried")
    if checkpoint.get("checkpoint_path"):
        state = torch.load(Path(checkpoint["checkpoint_path"]), map_location="cpu", weights_only=True)
        model.load_state_dict(state.get("ema_net", state.get("net", state)))
    if not isinstance(model, nn.Module):
        raise TypeError(f"supergradients: the architecture made a {type(model).__name__}, not a torch.nn.Module")
    return model


def _loader(said: Any, data: Mapping[str, Any], stage: str) -> Any:
    if said is None:
        return None
    params = {
        "dataset_params": data.get(f"{stage}_dataset_params") or {},
        "dataloader_params": data.get(f"{stage}_dataloader_params") or {},
    }
    return build("dataloader", said, **params)


def _test_loaders(said: Any, data: Mapping[str, Any]) -> dict[str, Any] | None:
    return {name: _loader(one, data, "test") for name, one in said.items()} if said else None
