"""What we rely on of torch that it does not document: one test for each name, which fails when torch changes it."""

from __future__ import annotations

import copy
import inspect
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from cadenza.foundation import torch_private as private


@pytest.fixture
def weights() -> list[nn.Parameter]:
    parameters = [nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.tensor([[3.0]]))]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    return parameters


def values(tensors: Any) -> list[list[float]]:
    return [tensor.flatten().tolist() for tensor in tensors]


def test_only_one_module_touches_what_is_private_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
    import house

    assert "_version" in house.private_torch_names()
    assert house.private_torch_uses() == []


# Many tensors in one call ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "arguments", "made"),
    [
        (private.foreach_add, ([torch.tensor([1.0]), torch.tensor([2.0])],), [[11.0, 22.0], [32.0]]),
        (private.foreach_mul, (2.0,), [[20.0, 40.0], [60.0]]),
        (private.foreach_neg, (), [[-10.0, -20.0], [-30.0]]),
        (private.foreach_norm, (1,), [[30.0], [30.0]]),
    ],
)
def test_functions_of_many_tensors_make_new_ones(function: Any, arguments: Any, made: list[list[float]]) -> None:
    tensors = [torch.tensor([10.0, 20.0]), torch.tensor([30.0])]
    if function is private.foreach_add:
        arguments = ([torch.tensor([1.0, 2.0]), torch.tensor([2.0])],)
    assert values(function(tensors, *arguments)) == made
    assert values(tensors) == [[10.0, 20.0], [30.0]]


@pytest.mark.parametrize(
    ("function", "arguments", "left"),
    [
        (private.foreach_add_, (1,), [[11.0, 21.0], [31.0]]),
        (private.foreach_mul_, (torch.tensor(2.0),), [[20.0, 40.0], [60.0]]),
        (private.foreach_sub_, ([torch.tensor([1.0, 2.0]), torch.tensor([3.0])],), [[9.0, 18.0], [27.0]]),
        (private.foreach_copy_, ([torch.tensor([1.0, 2.0]), torch.tensor([3.0])],), [[1.0, 2.0], [3.0]]),
        (private.foreach_lerp_, ([torch.tensor([0.0, 0.0]), torch.tensor([0.0])], 0.5), [[5.0, 10.0], [15.0]]),
    ],
)
def test_functions_of_many_tensors_change_them_in_place(function: Any, arguments: Any, left: list[list[float]]) -> None:
    tensors = [torch.tensor([10.0, 20.0]), torch.tensor([30.0])]
    function(tensors, *arguments)
    assert values(tensors) == left


def test_a_factor_scales_what_is_added(weights: list[nn.Parameter]) -> None:
    made = private.foreach_add([torch.zeros(2)], [torch.ones(2)], alpha=0.5)
    assert values(made) == [[0.5, 0.5]]


@pytest.mark.parametrize(
    ("kernel", "optimizer"),
    [(private.fused_adam_, torch.optim.Adam), (private.fused_adamw_, torch.optim.AdamW)],
)
def test_the_fused_kernels_do_what_the_optimizers_do(kernel: Any, optimizer: Any, weights: list[nn.Parameter]) -> None:
    theirs = copy.deepcopy(weights)
    for parameter in theirs:
        parameter.grad = torch.ones_like(parameter)
    optimizer(theirs, lr=0.1, fused=True, weight_decay=0.01).step()
    moments = [[torch.zeros_like(one) for one in weights] for _ in range(2)]
    with torch.no_grad():
        kernel(
            list(weights), [one.grad for one in weights], *moments, [], [torch.tensor(1.0) for _ in weights],
            lr=0.1, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip
    assert values(weights) == values(theirs)


# Tensors and modules --------------------------------------------------------------------------------------------------


def test_every_change_in_place_counts_as_a_version() -> None:
    tensor = torch.zeros(2)
    before = private.version_of(tensor)
    tensor.add_(1)
    tensor[0] = 3
    assert private.version_of(tensor) == before + 2
    with torch.inference_mode():
        uncounted = torch.zeros(1)
    with pytest.raises(RuntimeError, match="Inference tensors"):
        private.version_of(uncounted)


def test_a_module_holds_its_parts_in_tables() -> None:
    module = nn.Sequential(nn.BatchNorm1d(2))
    norm = module[0]
    norm.register_buffer("none", None, persistent=False)
    assert list(private.parameters_in(norm)) == ["weight", "bias"]
    assert list(private.buffers_in(norm)) == ["running_mean", "running_var", "num_batches_tracked", "none"]
    assert list(private.tables_of(module, *private.TABLES)["_modules"]) == ["0"]
    assert set(private.TABLES) <= vars(module).keys()
    assert norm._non_persistent_buffers_set == {"none"}


def test_schedulers_hold_others_in_a_list() -> None:
    sgd = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    inner = [torch.optim.lr_scheduler.ConstantLR(sgd), torch.optim.lr_scheduler.ExponentialLR(sgd, 0.9)]
    assert private.inner_schedulers(torch.optim.lr_scheduler.SequentialLR(sgd, inner, milestones=[2])) == inner
    assert private.inner_schedulers(torch.optim.lr_scheduler.ChainedScheduler(inner)) == inner
    assert private.inner_schedulers(inner[0]) == []


def test_a_tensor_that_is_put_into_a_table_is_the_modules() -> None:
    norm, other = nn.BatchNorm1d(2), torch.full((2,), 7.0)
    private.buffers_in(norm)["running_mean"] = other
    private.parameters_in(norm)["weight"] = nn.Parameter(other)
    assert norm.running_mean is other
    assert norm.weight.tolist() == [7.0, 7.0]


def test_a_scripted_module_has_no_tables_to_replace() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Linear(1, 1))
    assert private.tables_of(scripted, private.PARAMETERS, private.BUFFERS) == {}


def test_norms_derive_from_two_classes() -> None:
    assert all(issubclass(one, private.BatchNorm) for one in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d))
    assert issubclass(nn.SyncBatchNorm, private.BatchNorm)
    assert issubclass(nn.InstanceNorm1d, private.RunningNorm)
    assert issubclass(nn.BatchNorm1d, private.RunningNorm)
    assert not issubclass(nn.InstanceNorm1d, private.BatchNorm)


def test_compiling_in_place_is_undone() -> None:
    module = nn.Linear(2, 2)
    before = private.compiled_call(module)
    module.compile(backend="eager")
    assert before is None
    assert private.compiled_call(module) is not None
    private.set_compiled_call(module, before)
    assert private.compiled_call(module) is None
    assert module(torch.ones(1, 2)).shape == (1, 2)


def test_a_state_dict_carries_versions() -> None:
    state = nn.BatchNorm1d(2).state_dict()
    assert private.versions_in(state)[""] == {"version": 2}
    assert private.versions_in({}) is None
    plain = type(state)(state)
    private.set_versions(plain, {"": {"version": 1}})
    del plain["num_batches_tracked"]
    nn.BatchNorm1d(2).load_state_dict(plain)  # which misses the count if its version is not 1


# Optimizers -----------------------------------------------------------------------------------------------------------


def test_hooks_of_a_step_are_seen(weights: list[nn.Parameter]) -> None:
    sgd = torch.optim.SGD(weights, lr=0.1)
    assert not private.has_step_hooks(sgd)
    for register in (sgd.register_step_pre_hook, sgd.register_step_post_hook):
        handle = register(lambda *_: None)
        assert private.has_step_hooks(sgd)
        handle.remove()
    assert not private.has_step_hooks(sgd)


def test_torchs_wrapper_of_a_step_is_marked_and_holds_the_step(weights: list[nn.Parameter]) -> None:
    sgd = torch.optim.SGD(weights, lr=1.0)
    assert type(sgd).step.hooked  # type: ignore[attr-defined]
    type(sgd).step.__wrapped__(sgd)  # type: ignore[attr-defined]
    assert values(weights) == [[0.0, 1.0], [2.0]]


def test_a_quick_step_goes_past_the_wrapper(weights: list[nn.Parameter], monkeypatch: pytest.MonkeyPatch) -> None:
    sgd = torch.optim.SGD(weights, lr=1.0)
    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Optimizer, "_optimizer_step_code", lambda _: pytest.fail("wrapped"))
        private.step_quickly(sgd)
    assert values(weights) == [[0.0, 1.0], [2.0]]


@pytest.mark.parametrize("whose", ["own", "global"])
def test_a_quick_step_plays_hooks(whose: str, weights: list[nn.Parameter]) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    sgd, heard = torch.optim.SGD(weights, lr=1.0), []
    own = (sgd.register_step_pre_hook, sgd.register_step_post_hook)
    for register in own if whose == "own" else (register_optimizer_step_pre_hook, register_optimizer_step_post_hook):
        handle = register(lambda *_: heard.append(1))
        private.step_quickly(sgd)
        handle.remove()
    assert heard == [1, 1]


def test_a_quick_step_is_counted_by_a_scheduler(weights: list[nn.Parameter]) -> None:
    sgd = torch.optim.SGD(weights, lr=1.0)
    scheduler = StepLR(sgd, 1)
    assert "step" in vars(sgd)
    private.step_quickly(sgd)
    scheduler.step()  # warns if the optimizer was not stepped


def test_a_profiler_sees_a_quick_step(weights: list[nn.Parameter]) -> None:
    from torch.profiler import ProfilerActivity, profile

    sgd = torch.optim.SGD(weights, lr=1.0)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        private.step_quickly(sgd)
    assert any("Optimizer.step#SGD.step" in event.key for event in profiler.key_averages())


def test_a_traced_step_sees_a_compiler(weights: list[nn.Parameter]) -> None:
    asked = []

    class Asking(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            asked.append(torch.compiler.is_compiling())

    private.step_traced(Asking(weights, lr=0.1))
    assert asked == [True]
    assert not torch.compiler.is_compiling()


def test_a_step_that_is_replaced_stays_counted(weights: list[nn.Parameter]) -> None:
    sgd = torch.optim.SGD(weights, lr=0.1)
    scheduler, inner = StepLR(sgd, 1), sgd.step

    def step() -> None:
        private.note_step(sgd)

    private.pass_on_scheduler_mark(inner, step)
    sgd.step = step  # type: ignore[assignment, method-assign]
    sgd.step()
    scheduler.step()  # warns if the mark or the note is missing


def test_without_the_mark_a_scheduler_warns(weights: list[nn.Parameter]) -> None:
    sgd = torch.optim.SGD(weights, lr=0.1)
    scheduler = StepLR(sgd, 1)
    with pytest.warns(UserWarning, match=r"before `optimizer.step\(\)`"):
        scheduler.step()
    other = torch.optim.SGD(weights, lr=0.1)
    scheduler = StepLR(other, 1)
    other.step = lambda: None  # type: ignore[assignment, misc, method-assign]
    with pytest.warns(UserWarning, match="overridden"):
        scheduler.step()


def test_torch_asks_whether_it_warned_of_capturable(weights: list[nn.Parameter]) -> None:
    name = "_warned_capturable_if_run_uncaptured"
    adam = copy.deepcopy(torch.optim.Adam(weights, lr=0.1, capturable=True))
    assert not hasattr(adam, name)  # a copy would warn
    private.keep_quiet_about_capturable(adam)
    assert getattr(adam, name)
    assert name in inspect.getsource(torch.optim.Optimizer._cuda_graph_capture_health_check)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nothing_is_said_of_capturable() -> None:
    weight = nn.Parameter(torch.ones(1, device="cuda"))
    weight.grad = torch.ones_like(weight)
    adam = copy.copy(torch.optim.Adam([weight], lr=0.1, capturable=True))
    private.keep_quiet_about_capturable(adam)
    adam.step()  # warnings are errors


@pytest.mark.parametrize(("gradient", "found"), [(1.0, [0.0]), (float("inf"), [1.0])])
def test_a_scaler_notes_what_it_found(gradient: float, found: list[float], weights: list[nn.Parameter]) -> None:
    sgd, scaler = torch.optim.SGD(weights, lr=0.1), torch.amp.GradScaler("cpu")
    scaler.scale(torch.zeros(()))
    weights[0].grad = torch.full((2,), gradient)
    scaler.unscale_(sgd)
    assert [float(one) for one in private.found_infs(scaler, sgd)] == found


# Loaders --------------------------------------------------------------------------------------------------------------


def test_a_loader_keeps_its_iterator_with_its_workers() -> None:
    loader = DataLoader([1, 2], num_workers=1, persistent_workers=True)
    assert private.live_iterator(None) is None
    assert private.live_iterator(loader) is None
    iterator = iter(loader)
    assert private.live_iterator(loader) is iterator
    workers = iterator._workers
    private.end_workers(iterator)
    assert not any(worker.is_alive() for worker in workers)


def test_parts_of_a_loader_are_replaced_in_a_copy() -> None:
    loader = DataLoader([1, 2], batch_size=2)
    with pytest.raises(ValueError, match="should not be set after"):
        loader.batch_sampler = [[0]]  # type: ignore[assignment]
    other = copy.copy(loader)
    private.replace_parts(other, batch_sampler=[[1], [0]])
    assert [batch.tolist() for batch in other] == [[2], [1]]
    assert [batch.tolist() for batch in loader] == [[1, 2]]


def test_nothing_ends_what_has_no_workers() -> None:
    private.end_workers(iter([]))


def test_the_function_that_collates_tensors_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert private.collates_tensors_plainly()
    monkeypatch.setitem(default_collate_fn_map, Tensor, lambda batch, **_: "mine")
    assert not private.collates_tensors_plainly()
    assert default_collate([torch.ones(1)]) == "mine"


def test_what_pins_a_batch_asks_objects_to_pin_themselves() -> None:
    class Mine:
        def pin_memory(self) -> str:
            return "pinned"

    assert private.pin_memory([Mine(), 1]) == ["pinned", 1]  # type: ignore[no-untyped-call]


# Processes ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_tensors_are_broadcast_together(group: None) -> None:
    tensors = [torch.ones(2), torch.ones(1, dtype=torch.int64)]
    private.broadcast_together(tensors, 1024)
    assert [tensor.tolist() for tensor in tensors] == [[1.0, 1.0], [1]]


def test_hooks_of_ddp_are_seen(group: None) -> None:
    model = DistributedDataParallel(nn.Linear(1, 1))
    assert not private.communication_hooks(model)
    model.register_comm_hook(None, lambda state, bucket: bucket)
    assert private.communication_hooks(model)
    assert not private.communication_hooks(nn.Linear(1, 1))


# Graphs and the compiler ----------------------------------------------------------------------------------------------


def test_the_compiler_is_where_it_was() -> None:
    assert find_spec(private.COMPILER) is not None
    assert find_spec("torch._inductor.config") is not None


@pytest.mark.long
def test_a_graph_is_compiled() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda x: (x * 2 + 1,))(torch.ones(2))
    compiled = private.compile_graph(graph, [torch.ones(2)])
    assert values(compiled(torch.ones(2))) == [[3.0, 3.0]]


def test_the_compiler_can_be_told_to_draw_as_without_it() -> None:
    from torch._inductor import compile, config

    assert callable(compile)
    with config.patch(fallback_random=True):
        assert config.fallback_random


def test_the_arguments_of_an_operation_are_known() -> None:
    from torch._ops import OpOverload

    dropout = torch.ops.aten.native_dropout.default
    assert isinstance(dropout, private.OpOverload)
    assert private.OpOverload is OpOverload
    assert [argument.name for argument in private.arguments_of(dropout)] == ["input", "p", "train"]
    lerp = torch.ops.aten.add.Tensor
    assert private.arguments_of(lerp)[2].default_value == 1


def test_the_attention_of_a_cpu_is_an_operation() -> None:
    seen = []

    class Watch(private.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    query = torch.ones(1, 2, 4, 8)
    with Watch():
        torch.nn.functional.scaled_dot_product_attention(query, query, query)
    assert private.cpu_attention().default in seen


def test_trees_of_tensors_are_walked() -> None:
    batch = {"x": [1, (2, None)], "y": 3}
    assert private.tree_leaves(batch) == [1, 2, None, 3]
    assert private.tree_map(lambda leaf: leaf, batch) == batch


@pytest.mark.skipif(sys.platform != "linux", reason="torch is built with CUDA on Linux")
def test_the_end_of_allocating_to_a_pool_exists_by_name() -> None:
    if torch.backends.cuda.is_built():
        assert callable(torch._C._cuda_endAllocateToPool)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_allocating_to_a_pool_ends() -> None:
    pool = torch.cuda.MemPool()
    device = torch.device("cuda", torch.cuda.current_device())
    torch._C._cuda_beginAllocateCurrentStreamToPool(device.index, pool.id)
    private.end_allocating_to_pool(device, pool.id)
    before = torch.cuda.memory_allocated()
    kept = torch.ones(1024, device=device)
    assert torch.cuda.memory_allocated() > before
    del kept
