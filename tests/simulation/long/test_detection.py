"""Online termination detection in the simulator, over many seeds; detectors with a broken rule are caught (G4)."""

from random import Random
from types import SimpleNamespace

import msgspec
import pytest

from strobe import Channel, KeyedState, Process, System, Waits
from strobe.causality.predicate_input import predicate_input_of
from strobe.causality.predicates import termination
from strobe.declarations import Declared, declare
from strobe.detection import Detecting, Signal
from strobe.errors import UsageError, UserCodeFailed
from strobe.protocol.process.dijkstra_scholten import DijkstraScholten, SendSignal
from strobe.simulation import Faults, World

NAMES = ("a", "b", "c", "d")
SEEDS = range(25)


class Task(msgspec.Struct, tag=True):
    size: int


class Pile(msgspec.Struct):
    tasks: list[int] = []
    sent: int = 0
    received: int = 0


class Worker(Process):
    """Works on its tasks one after the other; most of them create smaller ones for other workers."""

    def __init__(self, *tasks):
        self.pile = Pile(list(tasks))
        self.announced = []

    def start(self, ctx):
        if self.pile.tasks:
            ctx.set_timer("work", ctx.random.uniform(0, 0.002))

    def timer(self, ctx, name):
        size = self.pile.tasks.pop()
        for _ in range(ctx.random.randint(0, 3) if size else 0):
            self.pile.sent += 1
            ctx.send(ctx.random.choice(ctx.outputs), Task(size - 1))
        self.start(ctx)

    def receive(self, ctx, channel, task):
        self.pile.received += 1
        if task.size or ctx.random.random() < 0.5:  # the smallest are often done at once
            self.pile.tasks.append(task.size)
            self.start(ctx)

    def active(self):
        return False  # its pending timers show that it has work to do

    def terminated(self, ctx):
        self.announced.append(ctx.now())

    def capture(self):
        return self.pile

    def restore(self, state):
        self.pile = state


class BatchWorker(Worker):
    """Receives all tasks of a frame at once, and passes on several at once."""

    def timer(self, ctx, name):
        size = self.pile.tasks.pop()
        count = ctx.random.randint(0, 3) if size else 0
        self.pile.sent += count
        ctx.send_many(ctx.random.choice(ctx.outputs), [Task(size - 1)] * count)
        self.start(ctx)

    def receive_many(self, ctx, channel, tasks):
        assert not any(isinstance(task, Signal) for task in tasks)
        for task in tasks:
            self.receive(ctx, channel, task)


class SignalsTooEarly(DijkstraScholten):
    """Breaks DS3: the parent is answered as soon as the process is idle, even if its own messages are unanswered."""

    def _ended(self, active):
        return self._leave() if not active and (not self.root or self.state.deficit == 0) else []


class ForgetsAnAnswer(DijkstraScholten):
    """Breaks DS2: a message to an engaged process is never answered."""

    def _received(self, channel):
        return [effect for effect in super()._received(channel) if not isinstance(effect, SendSignal)]


class AnswersEveryMessage(DijkstraScholten):
    """Breaks DS1: no process ever owes its parent an answer."""

    engaged = True

    def _received(self, channel):
        return [SendSignal(channel)]


class IgnoresActivity(DijkstraScholten):
    """Breaks DS3 and DS4: leaves although it still has work to do."""

    def _ended(self, active):
        return super()._ended(False)

    def _require_engaged(self, what):
        pass


def run(seed, detector=DijkstraScholten, faults=None, kind=Worker):
    """Run a computation; return its world, whether each announcement was true, and the finding of the last snapshot."""
    workers = {name: kind(3, 3, 2) if name == "a" else kind() for name in NAMES}
    truths = []

    def announced(ctx):
        piles = [worker.pile for worker in workers.values()]
        in_flight = sum(pile.sent for pile in piles) - sum(pile.received for pile in piles)
        truths.append(not in_flight and not any(pile.tasks for pile in piles))

    workers["a"].terminated = announced
    system = System(
        {name: Detecting(worker, name == "a", detector=detector) for name, worker in workers.items()},
        [Channel(p, q) for p in NAMES for q in NAMES if p != q],
        [Task, Signal],
    )
    world = World(system, seed, faults=faults or Faults(delay_us_max=3000))
    last = []
    world.on_commit = last.append
    world.run(3)
    return world, truths, termination(predicate_input_of(last[-1]))


@pytest.mark.parametrize("seed", SEEDS)
def test_termination_is_announced_once_and_truly(seed):
    """G4: and a snapshot taken afterwards shows termination too."""
    world, truths, found = run(seed)
    assert truths == [True]
    assert found.holds
    assert not any(node.process.detector.state.parent for node in world.nodes.values())


def test_termination_is_detected_in_batches_of_messages_and_signals():
    """G4: each message of a batch is answered, whatever else is in its frame."""
    for seed in SEEDS:
        world, truths, found = run(seed, kind=BatchWorker)
        assert truths == [True]
        assert found.holds
        assert not any(node.process.detector.state.deficit for node in world.nodes.values())


def test_a_frame_of_signals_and_tasks_is_one_event():
    sent = []
    worker = BatchWorker()
    ctx = SimpleNamespace(
        name="b",
        inputs=("a->b",),
        outputs=("b->a",),
        random=Random(1),
        now=lambda: 1.0,
        set_timer=lambda *_: None,
        send=lambda channel, message: sent.append((channel, message)),
    )
    detecting = Detecting(worker)
    detecting.detector.state.parent, detecting.detector.state.deficit = "a->b", 2
    detecting.receive_many(ctx, "a->b", [Signal(), Task(1), Signal(), Task(2)])
    assert worker.pile.received == 2
    assert sent == [("b->a", Signal())] * 2
    assert detecting.detector.state.deficit == 0


def test_a_refused_message_is_not_waited_for():
    """A process may catch the error; if the message counted as sent, its answer would never come."""

    class Careless(Worker):
        def start(self, ctx):
            for send, wrong in ((ctx.send, object()), (ctx.send_many, [Task(1), object()])):
                with pytest.raises(UsageError):
                    send("a->b", wrong)

    world = World(
        System(
            {"a": Detecting(Careless(), root=True), "b": Detecting(Worker())},
            [Channel("a", "b"), Channel("b", "a")],
            [Task, Signal],
        ),
        1,
    )
    world.run(1)
    assert len(world.nodes["a"].process.process.announced) == 1


@pytest.mark.parametrize("mutant", [SignalsTooEarly, AnswersEveryMessage, IgnoresActivity])
def test_a_detector_that_answers_too_early_announces_a_false_termination(mutant):
    truths = [run(seed, mutant)[1] for seed in SEEDS]
    assert any(False in of_run for of_run in truths)


def test_a_detector_that_forgets_an_answer_never_announces_termination():
    missed = [seed for seed in SEEDS if run(seed, ForgetsAnAnswer)[1] == []]
    assert len(missed) > len(SEEDS) / 2


def test_the_detector_is_rolled_back_with_its_process():
    """R1: an announcement after the cut is repeated, and in the end it is true."""
    world, _, found = run(3, faults=Faults(delay_us_max=3000, rollback_every_us=15_000))
    assert world.epoch > 1
    assert found.holds
    assert world.nodes["a"].process.terminated


def test_a_channel_without_a_return_channel_is_named():
    system = System({"a": Detecting(Worker(1), True), "b": Detecting(Worker())}, [Channel("a", "b")], [Task, Signal])
    with pytest.raises(UserCodeFailed, match="'b' has no channel 'b->a' to signal back what comes on 'a->b'"):
        World(system, 1).run(1)


def test_signals_return_on_the_given_channel():
    worker = Worker(1)
    detecting = {"a": Detecting(worker, True, {"two": "one"}), "b": Detecting(Worker(), back={"one": "two"})}
    channels = [Channel("a", "b", id="one"), Channel("b", "a", id="two")]
    World(System(detecting, channels, [Task, Signal]), 5).run(2)
    assert len(worker.announced) == 1


class Upgraded(msgspec.Struct):
    migrations = {1: lambda state: state}


def test_a_process_under_detection_cannot_leave_or_have_an_unusual_state():
    class Keyed(Worker):
        def capture(self):
            return KeyedState(int)

    with pytest.raises(UsageError, match="a process with a KeyedState cannot be wrapped in Detecting"):
        Detecting(Keyed()).capture()

    class Versioned(Worker):
        def capture(self):
            return Upgraded()

    with pytest.raises(UsageError, match="Upgraded has migrations; a process with such a state cannot be wrapped"):
        Detecting(Versioned()).capture()

    class Forgetful(Worker):
        def capture(self):
            """Forget to return."""

    with pytest.raises(UsageError, match=r"capture\(\) of Forgetful returned None; return a struct or bytes"):
        Detecting(Forgetful()).capture()
    detecting = Detecting(Worker())
    with pytest.raises(UsageError, match="'b' cannot leave: its termination is being detected"):
        detecting.leave(SimpleNamespace(name="b"))


def test_no_process_under_detection_leaves_under_faults():
    world, _, found = run(3, faults=Faults(delay_us_max=3000, membership_every_us=5_000))
    assert set(world.nodes) == set(NAMES)
    assert found.holds


def test_a_wrapper_passes_on_the_declarations_of_its_process():
    class Waiting(Worker):
        def waits_for(self):
            return Waits.all("b")

        def references(self):
            return ["x"]

    assert declare("a", Detecting(Waiting()), ()) == Declared(Waits.all("b"), {"a": ("x",)}, active=False)


def test_a_cancelled_timer_keeps_no_process_active():
    class Changing(Worker):
        def start(self, ctx):
            ctx.set_timer("never", 1.0)
            ctx.set_timer("never", 2.0)
            ctx.cancel_timer("never")
            ctx.cancel_timer("never")

    worker = Changing()
    World(System({"a": Detecting(worker, root=True)}, [], [Task, Signal]), 1).run(1)
    assert len(worker.announced) == 1
