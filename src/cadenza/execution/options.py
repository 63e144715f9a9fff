"""How a trainer executes its steps, as the user says it."""

from __future__ import annotations

from dataclasses import dataclass

from cadenza.foundation.arguments import among, check, whole

MODES = ("eager", "auto", "captured", "compiled")


@dataclass(frozen=True)
class Execution:
    """How steps are executed. ``Trainer(..., execution="auto")`` is short for ``Execution("auto")``.

    ``mode`` is "eager", "auto", "captured" or "compiled". ``fused`` and ``foreach`` allow torch's form of that name for
    the optimizers, which rounds differently; ``fused=False`` forbids the fused form that a captured step chooses by
    itself. ``channels_last`` lays out the weights of convolutions so, ``tf32`` turns TensorFloat-32 on or off while a
    run is open; None leaves each as it is. ``shapes`` is for how many shapes of a batch a step is kept at a time.

    >>> Execution("captured", fused=True).mode
    'captured'
    """

    mode: str = "eager"
    fused: bool | None = None
    foreach: bool | None = None
    channels_last: bool | None = None
    tf32: bool | None = None
    shapes: int = 8

    def __post_init__(self) -> None:
        among("execution", self.mode, MODES)
        for name in ("fused", "foreach", "channels_last", "tf32"):
            value = getattr(self, name)
            check(value is None or isinstance(value, bool), f"{name} is True, False or None", value)
        if self.fused and self.foreach:
            raise ValueError("an optimizer is stepped in one form: fused=True or foreach=True, not both")
        if self.foreach and self.mode != "eager":
            raise ValueError(f'foreach=True is for "eager"; execution {self.mode!r} chooses its own form')
        if self.fused and self.mode == "compiled":
            raise ValueError('fused=True is not for "compiled": the compiler itself fuses what the optimizer does')
        whole("shapes", self.shapes, 1, "is")

    @classmethod
    def of(cls, value: str | Execution) -> Execution:
        """The options that ``value`` means, which is the name of a mode or options already."""
        if isinstance(value, Execution):
            return value
        if not isinstance(value, str):
            raise TypeError(f"execution is {', '.join(MODES)} or an Execution, not {type(value).__name__}")
        return cls(value)

    @property
    def plain(self) -> bool:
        """Whether there is nothing to do but to play the steps."""
        return self == Execution(shapes=self.shapes)
