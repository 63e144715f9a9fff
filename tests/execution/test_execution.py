"""What is asked for, what is refused, and what ``explain`` says; the forms of optimizers; without a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from cadenza import Callback, Execution, MainCallback, Run, Trainer
from cadenza.callbacks import EMA, Accumulate, GradientClip, OneCycleSchedule, Precision
from cadenza.execution.executor import settle
from cadenza.execution.recorded.optimizer_form import Form, captured_form, why_no_form, why_no_weights
from cadenza.execution.recorded.region import Region
from cadenza.execution.recorded.why_not import form_words, why_opened
from cadenza.foundation.tree import Unknown, shape_of, tensors_of, with_tensors
from cadenza.plan import Plan
from cadenza.testing import tiny_classifier, tiny_loader

CPU = torch.device("cpu")


def made(
    *callbacks: Callback, optimizer: Any = None, execution: Any = "auto", module: nn.Module | None = None
) -> Trainer:
    module = module or tiny_classifier()
    make = optimizer or (lambda parameters: torch.optim.Adam(parameters, lr=0.01))
    one = make(module.parameters())
    return Trainer(module, one, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu", execution=execution, seed=1)


def weights(trainer: Trainer) -> list[Tensor]:
    trainer.fit(tiny_loader(), epochs=2)
    return list(trainer.model.state_dict().values())


# What is asked for --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"mode": "fast"}, "one of eager, auto, captured, compiled, not 'fast'"),
        ({"fused": True, "foreach": True}, "not both"),
        ({"mode": "captured", "foreach": True}, "foreach=True is for"),
        ({"mode": "compiled", "fused": True}, "the compiler itself fuses"),
        ({"shapes": 0}, "at least 1"),
        ({"shapes": True}, "at least 1"),
        ({"tf32": "highest"}, "tf32 is True, False or None, not 'highest'"),
        ({"fused": "no"}, "fused is True, False or None, not 'no'"),
        ({"channels_last": 0}, "channels_last is True, False or None, not 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Execution(**options)


def test_the_trainer_takes_a_name_or_options() -> None:
    with pytest.raises(ValueError, match="one of eager"):
        made(execution="quick")
    with pytest.raises(TypeError, match="not int"):
        made(execution=3)
    assert made(execution=Execution("auto", shapes=2))._training.execution.shapes == 2


def test_captured_without_a_gpu_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match='execution="captured" needs a CUDA device'):
        made(execution="captured")


def test_auto_on_the_cpu_is_the_users_own_training_and_says_why() -> None:
    trainer, plain = made(EMA(0.9)), made(EMA(0.9), execution="eager")
    assert all(map(torch.equal, weights(trainer), weights(plain)))
    assert "Execution: auto\n  steps are played one by one: the device is cpu" in trainer.explain()
    assert "Execution" not in plain.explain()


def test_what_auto_does_not_capture_is_stepped_in_the_fused_form_if_that_is_allowed() -> None:
    trainer, eager = made(execution=Execution("auto", fused=True)), made(execution=Execution(fused=True))
    assert all(map(torch.equal, weights(trainer), weights(eager)))
    assert "the device is cpu, and CUDA graphs need a GPU\n  Adam is stepped in torch's fused form" in trainer.explain()


def test_a_fused_form_that_there_is_not_is_no_error_of_auto() -> None:
    allowed = Execution("auto", fused=True)
    rprop = made(optimizer=torch.optim.Rprop, execution=allowed)
    assert all(map(torch.equal, weights(rprop), weights(made(optimizer=torch.optim.Rprop, execution="eager"))))
    assert "fused form" not in rprop.explain()
    sparse = nn.Sequential(nn.Embedding(9, 3, sparse=True))
    trainer = Trainer(sparse, torch.optim.SGD(sparse.parameters(), lr=0.1), device="cpu", execution=allowed)
    assert "fused form" not in trainer.explain()


def test_a_mode_that_is_asked_for_by_name_is_said_to_be_refused() -> None:
    said = made(Looks(), execution="compiled").explain()
    assert "Execution: compiled\n  a fit is refused: Looks plays before_backward and is not capturable" in said
    assert "\n  steps of a fit that has begun are played one by one" in said


# Who opens a step ---------------------------------------------------------------------------------------------------


class Looks(Callback):
    def before_backward(self, run: Run) -> None: ...


class OwnLoss(MainCallback):
    def on_iter_loss(self, run: Run) -> None:
        run.loss = run.output.sum()


class DeviceOnly(OwnLoss):
    capturable = True


def opened_by(*callbacks: Callback) -> str | None:
    trainer = made(*callbacks)
    return why_opened(Plan(callbacks, Run(trainer._training, trainer._plan)), "captured")


def test_who_plays_inside_opens_the_step() -> None:
    assert opened_by() is None
    assert opened_by(GradientClip(norm=1.0), EMA(), Precision("bf16"), Accumulate(3), DeviceOnly()) is None
    assert opened_by(Looks()) == "Looks plays before_backward and is not capturable"
    assert "GradientClip plays before_step" in str(opened_by(GradientClip(norm=1.0, log=True)))
    assert "Precision plays" in str(opened_by(Precision("fp16")))
    assert "Accumulate plays" in str(opened_by(Accumulate(2, weight=lambda run: 1.0)))
    assert "OwnLoss has its own on_iter_loss; declare capturable = True" in str(opened_by(OwnLoss()))


def test_a_plan_that_is_timed_is_opened() -> None:
    trainer = made()
    plan = Plan((), Run(trainer._training, trainer._plan), lambda point, callback, player: player)
    assert "timed" in str(why_opened(plan, "captured"))


def test_compiled_is_refused_with_the_reason() -> None:
    with pytest.raises(RuntimeError, match="not possible here: Looks plays before_backward"):
        made(Looks(), execution="compiled").fit(tiny_loader(), epochs=1)
    with pytest.raises(RuntimeError, match="LBFGS evaluates the loss again"):
        made(optimizer=torch.optim.LBFGS, execution="compiled").fit(tiny_loader(), epochs=1)
    with pytest.raises(RuntimeError, match="not capturable"):
        made(Precision("fp16"), execution="compiled").fit(tiny_loader(), epochs=1)


def test_a_refused_fit_leaves_the_optimizer_as_it_was() -> None:
    trainer = made(Looks(), execution="compiled")
    with pytest.raises(RuntimeError, match="Looks"):
        trainer.fit(tiny_loader(), epochs=1)
    assert "step" not in vars(trainer._training.optimizers[0])


# Optimizers ---------------------------------------------------------------------------------------------------------


class Mine(torch.optim.SGD):
    """An optimizer of one's own."""


@pytest.mark.parametrize(
    ("optimizer", "why"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), None),
        (lambda p: torch.optim.AdamW(p), None),
        (lambda p: torch.optim.NAdam(p), None),
        (lambda p: Mine(p, lr=0.1), "the optimizer Mine has no form"),
        (lambda p: torch.optim.Rprop(p), "the optimizer Rprop has no form"),
        (torch.optim.LBFGS, "LBFGS evaluates the loss again"),
        (lambda p: torch.optim.Adam(p, differentiable=True), "is differentiable"),
    ],
)
def test_which_optimizers_can_be_recorded(optimizer: Any, why: str | None) -> None:
    found = why_no_form(optimizer(tiny_classifier().parameters()))
    assert found is None if why is None else why in str(found)


def test_hooks_and_sparse_gradients_cannot_be_recorded() -> None:
    optimizer = torch.optim.Adam(tiny_classifier().parameters())
    optimizer.register_step_post_hook(lambda *_: None)
    assert "hooks are registered" in str(why_no_form(optimizer))
    embedding = nn.Sequential(nn.Embedding(3, 2, sparse=True))
    assert "0 makes sparse gradients" in str(why_no_weights(embedding, []))


def test_which_form_is_chosen() -> None:
    parameters = list(tiny_classifier().parameters())
    sgd, adam, nadam = (kind(parameters, lr=0.1) for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.NAdam))
    kinds = {
        (one, fused, cycles): captured_form(one, CPU, fused=fused, cycles=cycles).kind
        for one in (sgd, adam, nadam)
        for fused in (None, False)
        for cycles in (False, True)
    }
    assert [kinds[sgd, None, False], kinds[sgd, False, False], kinds[sgd, None, True]] == [
        "fused",
        "tensor sgd",
        "tensor sgd",
    ]
    assert [kinds[adam, None, False], kinds[adam, False, False], kinds[adam, None, True]] == [
        "fused",
        "capturable",
        "tensor momentum",
    ]
    assert kinds[nadam, None, False] == "capturable"


def test_the_form_that_is_told_is_the_one_for_a_schedule_that_sets_momenta() -> None:
    """As ``explain()`` asks for it, before anything runs."""
    trainer = made(OneCycleSchedule())
    plan = Plan(trainer.callbacks, Run(trainer._training, trainer._plan), every_rank=True)
    assert "with its momentum in a tensor" in form_words(Execution("captured"), plan, trainer._training.optimizers[0])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_with_rates_as_tensors_is_sgd(momentum: float, nesterov: bool) -> None:
    if nesterov and not momentum:
        return
    results = []
    for formed in (False, True):
        torch.manual_seed(0)
        weight = torch.randn(5, requires_grad=True)
        more = {"momentum": momentum, "nesterov": nesterov, "weight_decay": 0.1, "maximize": True}
        if momentum and not nesterov:
            more["dampening"] = 0.2
        optimizer = torch.optim.SGD([weight], lr=0.1, **more)
        form = Form(optimizer, "tensor sgd", CPU)
        if formed:
            form.begin()
        for step in range(5):
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
            if momentum:
                optimizer.param_groups[0]["momentum"] = momentum - 0.1 * step
            weight.grad = torch.randn(5)
            optimizer.step()
        form.end()
        results.append((weight.detach(), optimizer.state_dict()))
    torch.testing.assert_close(results[0][0], results[1][0])
    assert results[0][1]["param_groups"] == results[1][1]["param_groups"]
    assert results[0][1]["state"].keys() == results[1][1]["state"].keys()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("option", ["fused", "foreach"])
def test_forms_that_the_user_allows_for_eager_steps(kind: Any, option: str) -> None:
    def make(parameters: Any) -> Any:
        return kind(parameters, lr=0.01)

    plain, allowed = (
        made(optimizer=make, execution="eager"),
        made(optimizer=make, execution=Execution(**{option: True})),
    )
    for one, other in zip(weights(plain), weights(allowed), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    own = made(optimizer=lambda p: kind(p, lr=0.01, **{option: True}), execution="eager")
    assert all(map(torch.equal, weights(own), weights(made(optimizer=make, execution=Execution(**{option: True})))))
    optimizer = allowed._training.optimizers[0]
    assert optimizer.param_groups[0][option] is None
    assert f"Execution: eager ({option}=True)" in allowed.explain()


def test_a_form_that_an_optimizer_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="Rprop has no fused form"):
        made(optimizer=torch.optim.Rprop, execution=Execution(fused=True)).fit(tiny_loader(), epochs=1)


def test_a_form_and_schedulers_of_torch_do_not_disturb_each_other() -> None:
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    before = vars(optimizer)["step"]
    trainer = Trainer(
        model, optimizer, nn.CrossEntropyLoss(), scheduler=schedule, device="cpu", execution=Execution(fused=True)
    )
    trainer.fit(tiny_loader(), epochs=2)
    assert vars(optimizer)["step"] is before
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.025)


def test_a_scheduler_made_while_a_form_is_on() -> None:
    parameters = list(tiny_classifier().parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    form = Form(optimizer, "tensor sgd", CPU)
    form.begin()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    schedule.step()
    form.end()
    expected = [parameter.detach() - 0.05 for parameter in parameters]
    optimizer.step()
    for parameter, wanted in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.detach(), wanted)


# Options that are no modes ------------------------------------------------------------------------------------------


def test_channels_last_lays_out_the_weights() -> None:
    convolution = nn.Conv2d(3, 4, 3)
    model = nn.Sequential(convolution, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [(torch.randn(2, 3, 8, 8), torch.randint(0, 4, (2,)))]
    for asked in (None, True):
        execution = Execution(channels_last=asked)
        Trainer(model, optimizer, nn.CrossEntropyLoss(), device="cpu", execution=execution).fit(data, epochs=1)
        assert convolution.weight.is_contiguous(memory_format=torch.channels_last) is bool(asked)


def test_tf32_is_left_alone_without_a_gpu() -> None:
    precision = torch.get_float32_matmul_precision()
    seen: list[str] = []
    trainer = made(execution=Execution(tf32=True))
    trainer.on("after_step")(lambda run: seen.append(torch.get_float32_matmul_precision()))
    trainer.fit(tiny_loader(8), epochs=1)
    assert seen == [precision]
    assert torch.get_float32_matmul_precision() == precision


@pytest.mark.parametrize("asked", [True, False, None])
def test_tf32_is_turned_on_or_off_for_a_gpu_and_put_back(asked: bool | None) -> None:
    """Torch keeps these settings also where there is no GPU that would follow them."""

    def now() -> tuple[str, bool]:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    before = now()
    trainer = made()
    run = Run(trainer._training, trainer._plan)
    run.device = torch.device("cuda")
    undo = settle(Execution(tf32=asked), run)
    expected = {True: ("high", True), False: ("highest", False), None: before}
    assert now() == expected[asked]
    while undo:
        undo.pop()()
    assert now() == before


# Shapes -------------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass
class Item:
    x: Tensor
    name: str


BATCHES: list[Any] = [
    torch.zeros(2),
    (torch.zeros(2, 3), torch.zeros(2)),
    {"x": torch.zeros(2), "deep": [torch.zeros(1), 3, None]},
    Pair(torch.zeros(1), torch.zeros(2)),
    Item(torch.zeros(3), "a"),
]


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: type(batch).__name__)
def test_batches_are_taken_apart_and_put_together(batch: Any) -> None:
    more = with_tensors(batch, lambda tensor: tensor + 1)
    assert type(more) is type(batch)
    assert shape_of(more) == shape_of(batch)
    assert [float(tensor.sum()) for tensor in tensors_of(more)] == [tensor.numel() for tensor in tensors_of(batch)]


def test_what_makes_two_batches_different() -> None:
    batch = (torch.zeros(2, 3), 1)
    assert shape_of(batch) != shape_of((torch.zeros(2, 3), 2))
    assert shape_of(batch) != shape_of((torch.zeros(3, 2).t(), 1))
    assert shape_of(batch) != shape_of((torch.zeros(2, 3, dtype=torch.float64), 1))
    assert shape_of(batch) != shape_of([torch.zeros(2, 3), 1])
    with pytest.raises(Unknown, match="holds a object"):
        shape_of((object(),))


# The least recently used --------------------------------------------------------------------------------------------


class Kept:
    """Records nothing, but counts; stands for a graph."""

    name = "captured"

    def __init__(self) -> None:
        self.recorded: list[int] = []

    def warm_up(self, run: Run, opened: Any, *, last: bool) -> tuple[bool, None]:
        return opened(run), None

    def record(self, run: Run, opened: Any, callbacks: Any, prepare: Any) -> Any:
        self.recorded.append(len(run.batch[0]))
        return _Replay(opened), opened(run)


class _Replay:
    replays = 0

    def __init__(self, opened: Any) -> None:
        self.opened = opened

    def play(self, run: Run) -> bool:
        self.replays += 1
        return bool(self.opened(run))


def played(sizes: list[int], shapes: int = 2) -> tuple[Kept, Region, list[str]]:
    from dataclasses import replace

    from cadenza.execution.eager import opened_step

    recorder, told, regions = Kept(), list[str](), list[Region]()
    trainer = made(execution="eager")
    with trainer.run(epochs=1) as run:
        score = run.plan.stages["train"]
        opened = opened_step(score)
        region = Region(
            score,
            opened,
            score.verbs.train_step,
            recorder,
            [],
            shapes=shapes,
            warm_ups=(2, 2),
            refuse=told.append,
            tell=told.append,
        )
        regions.append(region)
        score.verbs = replace(score.verbs, train_step=region.step)
        data = [(torch.randn(size, 4), torch.randint(0, 3, (size,))) for size in sizes]
        for _ in run.epochs():
            for _ in run.train(data):
                run.train_step()
    assert trainer.clock.steps == len(sizes)
    return recorder, regions[0], told


def test_a_shape_is_recorded_after_its_warm_up() -> None:
    recorder, region, told = played([8] * 5 + [3] * 2 + [8] * 2)
    assert recorder.recorded == [8]
    assert (len(region.recordings), told) == (1, [])


def test_the_shape_not_in_use_for_longest_is_let_go_of() -> None:
    recorder, region, told = played([1] * 30 + [2] * 30 + [1] * 30 + [3] * 30)
    assert recorder.recorded == [1, 2, 3]
    assert [shape[0][1][0] for shape in region.recordings] == [1, 3]  # type: ignore[index]
    assert told == []


def test_recordings_that_do_not_pay_end_it() -> None:
    recorder, region, told = played([1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6, 7, 7, 7])
    assert region.full
    assert "dynamic shapes" in told[0]
    assert len(recorder.recorded) < 7


def test_many_shapes_end_it_before_any_is_recorded() -> None:
    recorder, region, told = played(list(range(1, 30)))
    assert recorder.recorded == []
    assert region.closed
    assert len(told) == 1
