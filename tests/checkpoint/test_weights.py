"""Weights alone: into files that others read, out of files of others, and into modules that do not quite fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from cadenza.checkpoint import NotState, Shelf, load_into, load_weights, save_weights

from .states import bits


def model(classes: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))


def same(one: nn.Module, two: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    return all(bits(a) == bits(b) for a, b in pairs)


# Files ---------------------------------------------------------------------------------------------------------------


def test_a_file_of_weights_goes_both_ways(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "new" / "ours.safetensors", tmp_path / "theirs.safetensors"
    first, second, third = model(), model(), model()
    save_weights(ours, first)
    safetensors.torch.load_model(second, ours)
    assert same(first, second)
    safetensors.torch.save_model(second, str(theirs))
    load_into(third, load_weights(theirs))
    assert same(first, third)


def test_a_file_without_values_goes_both_ways(tmp_path: Path) -> None:
    path = tmp_path / "empty.safetensors"
    save_weights(path, nn.ParameterList([torch.empty(0, 3)]))
    assert [tuple(weight.shape) for weight in load_weights(path).values()] == [(0, 3)]


def test_tied_weights_are_known_by_both_names(tmp_path: Path) -> None:
    tied = nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 7, bias=False))
    tied[1].weight = tied[0].weight
    for write in (save_weights, lambda path, module: safetensors.torch.save_model(module, str(path))):
        path = tmp_path / "tied.safetensors"
        write(path, tied)
        weights = load_weights(path)
        assert sorted(weights) == ["0.weight", "1.weight"]
        assert weights["0.weight"] is weights["1.weight"]
        apart = nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 7, bias=False))
        assert load_into(apart, weights).complete
        assert same(apart, tied)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_weights(path, {"a": torch.ones(2)})
    with pytest.raises(NotState, match="b is a int"):
        save_weights(path, {"a": torch.zeros(2), "b": 1})  # type: ignore[dict-item]
    assert torch.equal(load_weights(path)["a"], torch.ones(2))
    save_weights(path, {"a": torch.zeros(2)})
    assert torch.equal(load_weights(path)["a"], torch.zeros(2))
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"should be called .*w\.pt\.safetensors"):
        save_weights(tmp_path / "w.pt", model())
    with pytest.raises(ValueError, match="there are no weights"):
        save_weights(tmp_path / "w.safetensors", nn.ReLU())
    torch.save(model().state_dict(), tmp_path / "w.pt")
    with pytest.raises(ValueError, match=r"no safetensors file.*weights_only=True.*save_weights"):
        load_weights(tmp_path / "w.pt")
    (tmp_path / "w.pt").rename(tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match="is no whole safetensors file"):
        load_weights(tmp_path / "w.safetensors")
    with pytest.raises(FileNotFoundError, match=r"there is no file .*x\.safetensors"):
        load_weights(tmp_path / "x.safetensors")


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_weights(path, model())
    whole = path.read_bytes()
    for length in (0, 4, 100, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="is no whole safetensors file"):
            load_weights(path)


# Checkpoints ---------------------------------------------------------------------------------------------------------


def test_weights_come_from_checkpoints_too(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "run")
    for value in (1.0, 2.0):
        state = {"model": {"w": torch.tensor(value)}, "callbacks": {"EMA": {"average": {"w": torch.tensor(-value)}}}}
        shelf.write(f"v{value:g}", state, {"mode": "min", "value": value})
    sources: list[Any] = [tmp_path / "run", str(tmp_path / "run/"), shelf, shelf.read(), tmp_path / "run" / "000002-v2"]
    for source in sources:
        assert load_weights(source) == {"w": torch.tensor(2.0)}
    assert load_weights(shelf, which="best") == {"w": torch.tensor(1.0)}
    assert load_weights(tmp_path / "run", what="callbacks.EMA.average") == {"w": torch.tensor(-2.0)}
    (tmp_path / "experiment").mkdir()
    (tmp_path / "run").rename(tmp_path / "experiment" / "checkpoints")
    assert load_weights(tmp_path / "experiment", which="best") == {"w": torch.tensor(1.0)}
    (tmp_path / "experiment" / "checkpoints").rename(tmp_path / "run")
    with pytest.raises(KeyError, match="there is no 'EMO' in callbacks; it has EMA"):
        load_weights(shelf, what="callbacks.EMO")
    with pytest.raises(TypeError, match="does not map names to tensors"):
        load_weights(shelf, what="callbacks")
    (tmp_path / "run" / "000002-v2").rename(tmp_path / "best-of-all")
    with pytest.raises(ValueError, match="was renamed"):
        load_weights(tmp_path / "best-of-all")


# Into modules that do not quite fit -----------------------------------------------------------------------------------


def test_strict_is_all_or_nothing() -> None:
    source, target, before = model(5), model(3), model(3)
    before.load_state_dict(target.state_dict())
    with pytest.raises(
        ValueError, match=r"(?s)nothing was changed.*strict=False.*2\.weight is \[5, 8\], in the module \[3, 8\]"
    ):
        load_into(target, source.state_dict())
    assert same(target, before)
    report = load_into(target, source.state_dict(), strict=False)
    assert report.mismatched == {"2.weight": ((5, 8), (3, 8)), "2.bias": ((5,), (3,))}
    assert not report.complete
    assert same(target[:2], source[:2])
    assert same(target[2], before[2])


def test_missing_and_unexpected_names_are_told_with_the_nearest() -> None:
    weights = dict(model().state_dict())
    weights["0.weihgt"] = weights.pop("0.weight")
    report = load_into(model(), weights, strict=False)
    assert (report.missing, report.unexpected) == (["0.weight"], ["0.weihgt"])
    assert "not in the weights, left as they were (1): 0.weight, nearest 0.weihgt" in str(report)
    assert "not in the module, left out (1): 0.weihgt, nearest 0.weight" in str(report)
    many = {**model().state_dict(), **{f"x{i}": torch.ones(1) for i in range(30)}}
    assert "and 20 more" in str(load_into(model(), many, strict=False))


def test_a_prefix_is_taken_away() -> None:
    source = nn.ModuleDict({"encoder": model(), "head": nn.Linear(3, 2)})
    target = model()
    report = load_into(target, source.state_dict(), prefix="encoder.")
    assert same(target, source["encoder"])
    assert report.passed_over == ["head.weight", "head.bias"]
    assert report.complete


def test_a_mapping_of_prefixes_moves_parts() -> None:
    source = nn.ModuleDict({"encoder": model(), "projector": nn.Linear(3, 2)})
    target = nn.ModuleDict({"backbone": model(), "head": nn.Linear(3, 7)})
    before = target["head"].weight.clone()
    report = load_into(target, source.state_dict(), prefix={"encoder.": "backbone."})
    assert same(target["backbone"], source["encoder"])
    assert torch.equal(target["head"].weight, before)
    assert report.complete, "what the mapping does not name is not asked for"
    whole = load_into(target, model().state_dict(), prefix={"": "backbone."})
    assert whole.complete
    with pytest.raises(ValueError, match="two of the weights would become"):
        load_into(model(), source.state_dict(), prefix={"encoder.0.": "0.", "projector.": "0."}, strict=False)


def test_nothing_that_fits_is_an_error_even_if_not_strict() -> None:
    wrapped = {f"module.{name}": tensor for name, tensor in model().state_dict().items()}
    with pytest.raises(ValueError, match=r"All of them begin with 'module\.': try it as prefix"):
        load_into(model(), wrapped, strict=False)
    with pytest.raises(ValueError, match=r"No name begins so; there is module\.0\.weight"):
        load_into(model(), wrapped, strict=False, prefix="modul.")


def test_parameters_stay_the_same_objects_and_tied_ones_are_not_missed() -> None:
    tied = nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 7, bias=False))
    tied[1].weight = tied[0].weight
    parameter: Tensor = tied[0].weight
    assert load_into(tied, {"0.weight": torch.ones(7, 3)}).complete
    assert tied[0].weight is parameter
    assert torch.equal(tied[1].weight, torch.ones(7, 3))


def test_other_types_are_converted_to_those_of_the_module() -> None:
    target = nn.Linear(2, 2).to(torch.bfloat16)
    load_into(target, nn.Linear(2, 2).state_dict())
    assert target.weight.dtype is torch.bfloat16
