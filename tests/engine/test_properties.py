"""Whatever callbacks ask and loops do: what was begun is ended, and nothing is left on."""

from __future__ import annotations

from functools import cache
from io import StringIO

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.engine.played import Actor, Played, Saver, difference
from tests.engine.prediction import PASSES, Deed, Place, Prediction, is_met
from tests.engine.scenarios import Oops, batches, flags, frozen_model, make_trainer, torch_modes
from tqdm import tqdm

from cadenza.points import REQUESTS, SPAN
from cadenza.testing import Recorder

PHASES = (Phase.explicit, Phase.generate, Phase.shrink)
deterministic = settings(derandomize=True, database=None, deadline=None, max_examples=150, phases=PHASES)
CONTAINING = {name for name, span in SPAN.items() if not span.action}


# What holds for every trace -----------------------------------------------------------------------------------------


def unpaired(trace: list[str], failed: bool) -> list[str]:
    """What was begun and not ended in its turn. After an exception only what is held must have been left."""
    begun: list[str] = []
    held: list[str] = []
    wrong = []
    for line in trace:
        kind, _, span = line.split()[0].partition("_")
        if kind == "enter":
            held.append(span)
        elif kind == "exit" and (not held or held.pop() != span):
            wrong.append(line)
        elif kind == "before" and span in CONTAINING:
            begun.append(span)
        elif kind == "after" and span in CONTAINING and (not begun or begun.pop() != span):
            wrong.append(line)
    return wrong + held + ([] if failed else begun)


def actions_out_of_turn(trace: list[str]) -> list[str]:
    """Each after_x of an action has a before_x, unless the step was made by the backward itself."""
    open_actions: set[str] = set()
    wrong = []
    for line in trace:
        kind, _, span = line.partition("_")
        if span in SPAN and SPAN[span].action:
            if kind == "before":
                open_actions.add(span)
            elif kind == "after" and span not in open_actions:
                wrong.append(line)
            elif kind == "after":
                open_actions.remove(span)
    return wrong


def check(trace: list[str], trainer, failed: bool) -> None:
    assert unpaired(trace, failed) == []
    assert actions_out_of_turn(trace) == []
    assert ("after_error" in trace) == failed
    assert failed or "after_run" in trace
    assert torch_modes() == (True, False, False)
    assert flags(trainer.model) == flags(frozen_model())
    if not failed:
        assert trace.count("after_train_iter") == trainer.clock.batches
        assert trace.count("after_step") == trainer.clock.steps


# Requests and exceptions of callbacks -------------------------------------------------------------------------------


@cache
def places_for(mode: str, request: str) -> list[Place]:
    """Every place at which ``request`` can be met."""
    seen = sorted(Prediction(mode).seen.items(), key=str)
    places = [Place(mode, *where[:2], time) for where, times in seen if not where[2] for time in range(times)]
    return [place for place in places if is_met(request, place)]


@st.composite
def sets_of_deeds(draw, mode: str) -> list[Deed]:
    requests = [request for request in REQUESTS if places_for(mode, request)]
    drawn = draw(st.lists(st.sampled_from(requests), min_size=1, max_size=5))
    return [Deed(draw(st.sampled_from(places_for(mode, request))), (request,)) for request in drawn]


places = st.deferred(lambda: st.sampled_from(places_for("fit", "stop")))


def is_ordered_by_the_design(deeds: list[Deed]) -> bool:
    """Not ordered is the step of a held window whose last iteration has ended already when the end of the epoch is
    asked for; test_requests.py looks at what comes of it."""
    asked = {request for deed in deeds for request in deed.requests}
    ends = {deed.place.point for deed in deeds if deed.requests == ("end_epoch",)}
    return "hold_step" not in asked or not ends & {"after_iter", "after_train_iter"}


@given(st.data())
@deterministic
def test_any_set_of_requests_plays_what_is_predicted(data):
    mode = data.draw(st.sampled_from(["fit", "fit", "fit", *PASSES]))
    deeds = data.draw(sets_of_deeds(mode).filter(is_ordered_by_the_design))
    played = Played(mode, *deeds)
    assert difference(played, Prediction(mode, *deeds)) is None
    check(played.trace, played.trainer, failed=False)


@given(st.data())
@deterministic
def test_requests_and_then_an_exception(data):
    deeds = data.draw(sets_of_deeds("fit").filter(is_ordered_by_the_design))
    place = data.draw(places)
    played = Played("fit", *deeds, Deed(place))
    assert difference(played, Prediction("fit", *deeds, Deed(place))) is None
    check(played.trace, played.trainer, failed=played.error is not None)


# Loops of one's own -------------------------------------------------------------------------------------------------

WRAPPERS = {
    "plain": lambda loop, kept: loop,
    "tqdm": lambda loop, kept: tqdm(loop, file=StringIO()),
    "disabled tqdm": lambda loop, kept: tqdm(loop, disable=True),
    "kept tqdm": lambda loop, kept: kept.append(tqdm(loop, file=StringIO())) or kept[-1],
    "kept": lambda loop, kept: kept.append(loop) or loop,
    "enumerate": lambda loop, kept: (batch for _, batch in enumerate(loop)),
}


ASKED = (
    "skip_batch",
    "skip_backward",
    "skip_step",
    "hold_step",
    "skip_zero_grad",
    "end_epoch",
    "skip_validation",
    "stop",
)
IN_A_BODY = ("step", "step", "step", "verbs", "nothing", "validate", "continue", "break", "return", "raise", *ASKED)
IN_AN_EVALUATION = (
    "step",
    "step",
    "nothing",
    "continue",
    "break",
    "return",
    "raise",
    "skip_batch",
    "end_epoch",
    "stop",
)


class Program:
    """A loop over epochs, training and validation whose bodies do what was drawn, in that order."""

    def __init__(self, run, data, wrapper: str) -> None:
        self.run, self.data = run, data
        self.kept: list[object] = []
        self.wrap = lambda loop: WRAPPERS[wrapper](loop, self.kept)
        # A kept iterator hides its break: the pass would stay open, and the training verbs would be refused in it.
        self.wrap_evaluation = self.wrap if "kept" not in wrapper else lambda loop: loop

    def play(self) -> None:
        for _ in self.run.epochs():
            for _batch in self.wrap(self.run.train(batches(3))):
                word = self.data.draw(st.sampled_from(IN_A_BODY))
                if word == "validate":
                    word = self.evaluate()  # and then the rest of the body
                if word == "return":
                    return
                if word == "break":
                    break
                if word == "continue":
                    continue
                self.do(word)
            if self.data.draw(st.booleans()) and self.evaluate() == "return":
                return

    def evaluate(self) -> str:
        """One pass of validation; says how a training body goes on after it."""
        for _batch in self.wrap_evaluation(self.run.validate(batches(2))):
            word = self.data.draw(st.sampled_from(IN_AN_EVALUATION))
            if word == "return":
                return word
            if word == "break":
                break
            if word == "continue":
                continue
            self.do(word if word != "step" else "eval_step")
        return self.data.draw(st.sampled_from(("step", "verbs", "nothing", "break", "continue", "raise")))

    def do(self, word: str) -> None:
        run = self.run
        if word == "raise":
            raise Oops
        if word == "verbs":
            run.forward()
            run.backward()
            run.step()
        elif word in ("step", "eval_step"):
            (run.train_step if word == "step" else run.eval_step)()
        elif word in ASKED:
            getattr(run, word)()
            (run.train_step if run.stage == "train" else run.eval_step)()


@given(st.data())
@settings(deterministic, max_examples=300)
def test_any_own_loop_keeps_the_pairing(data):
    recorder = Recorder(arounds=True)
    deeds = data.draw(st.one_of(st.just([]), sets_of_deeds("fit"), places.map(lambda place: [Deed(place)])))
    actors = [Actor(deed) for deed in deeds]
    trainer = make_trainer(recorder, *actors, Saver([]), model=frozen_model())
    failed = False
    try:
        with trainer.run(epochs=2) as run:
            Program(run, data, data.draw(st.sampled_from(sorted(WRAPPERS)))).play()
    except Oops:
        failed = True
    check(recorder.trace, trainer, failed)
    for actor in actors:
        trainer.remove(actor)
    trainer.fit(batches(1), epochs=1)
