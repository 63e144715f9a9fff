from __future__ import annotations

import pytest

from .checked import check, messages


def test_a_helper_is_followed_and_named() -> None:
    source = """
    class Mine(Callback):
        def after_epoch(self, run):
            self._show(run)

        def _show(self, r):
            self._print(4, value=r)

        def _print(self, times, value):
            print(value.loss)
    """
    (finding,) = check(source)
    assert finding.line == 12
    assert finding.message.startswith(
        "Mine._print, called from Mine.after_epoch, reads run.loss, which exists from after_loss"
    )


HELPERS_FOUND = {
    "function": "def show(run):\n    print(run.loss)\nclass Mine(Callback):\n    def after_epoch(self, run):\n"
    "        show(run)",
    "static": "class Mine(Callback):\n    @staticmethod\n    def show(run): run.loss\n"
    "    def after_epoch(self, run):\n        self.show(run)",
    "in a base": "class A(Callback):\n    def show(self, run): run.loss\nclass Mine(A):\n"
    "    def after_epoch(self, run):\n        self.show(run)",
    "of a function at a point": 'def show(run): run.loss\n@trainer.on("after_epoch")\ndef end(run): show(run)',
    "by an attribute": "class Mine(Callback):\n    def after_register(self, run):\n        self.run = run\n"
    "    def after_epoch(self, run):\n        self.show()\n    def show(self): self.run.loss",
    "right from one point, wrong from another": "class Mine(Callback):\n    def after_iter(self, run): self.show(run)\n"
    "    def after_epoch(self, run): self.show(run)\n    def show(self, run): run.loss",
    "under a condition, wrong from both": "class Mine(Callback):\n    def after_run(self, run): self.show(run)\n"
    "    def after_epoch(self, run): self.show(run)\n    def show(self, run):\n        if self.loud: run.loss",
    "a request": "class Mine(Callback):\n    def after_epoch(self, run): self.drop(run)\n"
    "    def drop(self, run): run.skip_step()",
}


@pytest.mark.parametrize("source", HELPERS_FOUND.values(), ids=HELPERS_FOUND)
def test_a_wrong_helper_is_found(source: str) -> None:
    assert len(messages(source)) == 1


HELPERS_QUIET = {
    "never called": "class Mine(Callback):\n    def show(self, run): run.loss",
    "right": "class Mine(Callback):\n    def after_iter(self, run): self.show(run)\n    def show(self, run): run.loss",
    "under a condition": "class Mine(Callback):\n    def after_iter(self, run): self.show(run, True)\n"
    "    def after_epoch(self, run): self.show(run, False)\n"
    "    def show(self, run, whole):\n        if whole: run.loss",
    "left before": "class Mine(Callback):\n    def after_iter(self, run): self.show(run, True)\n"
    "    def after_epoch(self, run): self.show(run, False)\n"
    "    def show(self, run, whole):\n        if not whole: return\n        print(run.loss)",
    "called under try": "class Mine(Callback):\n    def after_epoch(self, run):\n"
    "        try: self.show(run)\n        except AttributeError: pass\n    def show(self, run): run.loss",
    "asked before": "class Mine(Callback):\n    def after_epoch(self, run):\n"
    '        if hasattr(run, "loss"): self.show(run)\n'
    "    def show(self, run): run.loss",
    "sets it": "class Mine(MainCallback):\n    def on_iter_forward(self, run):\n        self.compute(run)\n"
    "        print(run.loss)\n"
    "    def compute(self, run): run.loss = 1",
    "calls itself": "class Mine(Callback):\n    def after_epoch(self, run): self.show(run)\n"
    "    def show(self, run): self.show(run)",
    "a context manager": "class Mine(Callback):\n    def before_epoch(self, run): self.held = self.hold(run)\n"
    "    def hold(self, run):\n        yield\n        print(run.loss)",
    "of another class": "class A:\n    def show(self, run): run.loss\nclass Mine(Callback):\n"
    "    def after_epoch(self, run): self.show(run)",
    "replaced in a subclass": "class Mine(Callback):\n    def after_iter(self, run): self.show(run)\n"
    "    def show(self, run): ...\n"
    "class Other(Mine):\n    def show(self, run): run.loss",
    "an attribute that holds another run": "class Mine(Callback):\n"
    "    def before_run(self, run): self.run = tracker.start()\n"
    "    def after_epoch(self, run): print(self.run.loss)",
}


@pytest.mark.parametrize("source", HELPERS_QUIET.values(), ids=HELPERS_QUIET)
def test_a_helper_that_may_be_right_is_not_reported(source: str) -> None:
    assert messages(source) == []
