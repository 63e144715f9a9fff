"""What somebody should know whose model, loss or batch an error came from. Looked for only when there is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from cadenza.data.batch import TARGET_KEYS, as_mapping, describe
from cadenza.engine.fields import FieldError
from cadenza.engine.state import GONE, OnPage
from cadenza.main_callback import named_loss

if TYPE_CHECKING:
    from cadenza.run import Run

_OF_A_BATCH = (RuntimeError, TypeError, ValueError, LookupError, AttributeError)
"""What torch raises, and Python, where shapes, types or names are not what the model takes."""


def hint(run: Run, error: BaseException, verb: str) -> str | None:
    """A sentence beside ``error``, which left the behaviours of ``verb``; None if there is nothing to say."""
    if not isinstance(error, Exception) or run._state.batch is GONE:
        return None
    if isinstance(error, FieldError):
        return _unset_output(run, error)
    if verb in ("train_step", "backward") and (said := _bad_loss(run, error)):
        return said
    if verb == "step" or not isinstance(error, _OF_A_BATCH) or _is_ours(error):
        return None
    return (
        _criterion_of_another(run, error)
        or _whole_dict(run)
        or f"the batch was {describe(run._state.batch, types=True)}"
    )


def _is_ours(error: Exception) -> bool:
    """Whether the line that raised is of this library, which has said what there is to say."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith("cadenza.")


def _unset_output(run: Run, error: FieldError) -> str | None:
    if error.name != "output" or run._state.output is not GONE or run._state.forwarded != run._state.current.index:
        return None
    return f"{run.main.name} has made its forward and set no run.output; what a behaviour returns has no meaning"


def _bad_loss(run: Run, error: Exception) -> str | None:
    """What is wrong with ``run.loss``, if that is why it could not be back-propagated."""
    loss: Any = run._state.loss.look() if isinstance(run._state.loss, OnPage) else run._state.loss
    if loss is GONE:
        set_it = "on_iter_loss (or on_iter_forward) assigns it, and what a behaviour returns has no meaning"
        return f"run.loss was not set: {set_it}" if isinstance(error, AttributeError) and _is_ours(error) else None
    if not isinstance(loss, Tensor):
        return (
            f"run.loss is {loss!r}; it must be a tensor with its graph, not what .item() gives"
            if _is_ours(error)
            else None
        )
    if loss.numel() != 1:
        return f"run.loss has the shape {list(loss.shape)}; it must be one number, such as its mean"
    if not loss.requires_grad:
        return "run.loss has no graph: was it detached, or computed under no_grad, or of frozen parameters alone?"
    return None


def _criterion_of_another(run: Run, error: Exception) -> str | None:
    """What to do about a criterion that was called with an output that is no tensor, but has a loss or logits."""
    output = run._state.output
    if run.criterion is None or run._state.loss is not GONE or isinstance(output, Tensor):
        return None
    if not isinstance(error, TypeError | AttributeError) or not run._state.plan.is_default("on_iter_loss"):
        return None
    if named_loss(output) is not None:
        return (
            "the model returns its own loss; leave out criterion: Trainer(model, optimizer). To use the criterion all "
            "the same, write a MainCallback with on_iter_loss"
        )
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        return None
    read = "run.output.logits" if hasattr(output, "logits") else 'run.output["logits"]'
    return (
        f"the criterion was called with the model's output, {type(output).__name__}. Write a MainCallback with "
        f"on_iter_loss: run.loss = run.criterion({read}, run.targets); or give the model the labels by name, and leave "
        "out criterion, if it computes its own loss"
    )


def _whole_dict(run: Run) -> str | None:
    """Says so if the model was called with a whole dict because its signature does not take the names in it."""
    named = as_mapping(run._state.batch)
    if named is None or isinstance(run._state.batch, tuple) or run._state.output is not GONE:
        return None
    if not run._state.plan.is_default("on_iter_forward") or not run.main.gives_whole(run.module, dict(named)):
        return None
    return (
        f"the parts of the batch are called {', '.join(map(str, named))}; {type(run.module).__name__}.forward does not "
        f"take these by name (targets, called {', '.join(TARGET_KEYS)}, may be left out), so it was called with the "
        "whole batch. Let the loader give what it takes, or write a MainCallback with on_iter_forward"
    )
