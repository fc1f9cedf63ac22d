"""Runs the judge: a child process that evaluates the declared conditions on every committed snapshot (E12).

The coordinator sends it one question at a time, and never waits for it: neither commits, rollbacks nor requests do. A
snapshot that commits while another is judged waits. If a third commits meanwhile, the second is skipped and counted.

The answer comes one condition at a time. The judge itself ends a function that takes too long; if it cannot, because
the function runs in C, it is killed. After a kill or a crash, the verdicts so far count. The condition that was being
evaluated then comes last in each question, so that the others are judged.

After a planned restart of a process, its program may be another one. Then the judge is replaced before the next
question.
"""

import asyncio
import contextlib
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import msgspec

from strobe.backoff import Backoff
from strobe.runtime.judging.questions import Evaluation, Question, Ready
from strobe.runtime.messages.verdicts import ERROR, UNDECIDED, ConditionVerdict

START_S_MAX = 60.0
"""Maximum time for loading the system."""
PAUSE_S_MIN = 0.2
PAUSE_S_MAX = 10.0
"""Maximum back-off between two starts of a judge that ends before it has answered anything."""
KILL_AFTER_S = 1.0
"""A judge that does not end a function at its time limit is killed this much later."""
GRACE_S = 0.2
"""If the coordinator itself was suspended, the answer has arrived and only needs to be read."""
_ANSWER_BYTES_MAX = 1 << 20

VerdictByName = Mapping[str, ConditionVerdict]


class Unanswered(Exception):
    """The judge process did not answer; `verdict` is the result for the snapshot."""

    def __init__(self, verdict: str, problem: str) -> None:
        super().__init__(verdict, problem)
        self.verdict = verdict
        self.problem = problem


class Judge:
    """Runs `command`, which answers questions about snapshots, one for each commit.

    `on_verdicts` is called with each judged snapshot and its verdicts, `on_skip` for each skipped one.
    """

    def __init__(
        self,
        command: Sequence[str],
        conditions: Sequence[str],
        timeout_s: float,
        on_verdicts: Callable[[str, VerdictByName], None],
        on_skip: Callable[[], None],
    ) -> None:
        self._command = command
        self._conditions = conditions
        self._timeout_s = timeout_s
        self._on_verdicts = on_verdicts
        self._on_skip = on_skip
        self._next: Question | None = None
        self._asking = False
        # Whether the process has an old program, and whether the program may have changed since the start.
        self._outdated = self._changed = False
        # The conditions that a judge has ended over.
        self._last: tuple[str, ...] = ()
        self._has_next = asyncio.Event()
        self._process: Process | None = None
        self._backoff = Backoff(PAUSE_S_MIN, PAUSE_S_MAX)
        self._task: asyncio.Task[None] | None = None

    @property
    def pending(self) -> bool:
        """Whether a snapshot waits for its verdict."""
        return self._asking or self._next is not None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def put(self, question: Question) -> None:
        """Queue a snapshot to be judged next; replaces one that still waits."""
        if self._next is not None:
            self._on_skip()
        self._next = question
        self._has_next.set()

    def reload(self) -> None:
        """Load the system again before the next question. Its initial states may differ from those in the store."""
        self._outdated = self._changed = True

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._end()

    async def _run(self) -> None:
        with contextlib.suppress(Unanswered):  # started in advance, so that the first question need not wait for it
            self._process = await self._start()
        while True:
            await self._has_next.wait()
            question, self._next = self._next, None
            self._has_next.clear()
            assert question is not None, "it was put there before the event was set"
            self._asking = True
            verdicts = await self._verdicts_on(question)
            self._asking = False
            self._on_verdicts(question.snapshot, verdicts)
            if self._process is not None:
                self._backoff.reset()
            else:
                await asyncio.sleep(self._backoff.next())

    async def _verdicts_on(self, question: Question) -> VerdictByName:
        verdicts: dict[str, ConditionVerdict] = {}
        running = ""
        try:
            if self._outdated:
                self._outdated = False
                await self._end()
            if self._process is None:
                self._process = await self._start()
            initial = question.initial and not self._changed
            asked = msgspec.structs.replace(question, initial=initial, last=self._last)
            async for answer in self._ask(self._process, asked):
                verdicts |= answer.verdicts
                running = answer.running
            return verdicts
        except Unanswered as failure:
            verdict = ConditionVerdict(failure.verdict, problem=failure.problem)
        except Exception as error:  # noqa: BLE001 -- a bug of ours, which must not affect the system being judged
            verdict = ConditionVerdict(UNDECIDED, problem=f"this is a bug in Strobe: {error!r}")
        await self._end()
        return verdicts | self._unjudged(running, verdict, verdicts)

    def _unjudged(self, running: str, verdict: ConditionVerdict, judged: VerdictByName) -> dict[str, ConditionVerdict]:
        """Return the verdicts on the conditions that are not `judged`, because the judge ended over `running`."""
        if not running:  # it did not get to any condition
            return dict.fromkeys((name for name in self._conditions if name not in judged), verdict)
        self._last = (*(name for name in self._last if name != running), running)
        behind = ConditionVerdict(UNDECIDED, problem=f"not evaluated: the judge's process ended over {running}")
        return dict.fromkeys((name for name in self._conditions if name not in judged), behind) | {running: verdict}

    async def _ask(self, process: Process, question: Question) -> AsyncIterator[Evaluation]:
        """Yield the parts of the answer."""
        assert process.stdin is not None, "it has a pipe"
        with contextlib.suppress(OSError, RuntimeError):  # it has ended or closed its pipe: the read notices that too
            process.stdin.write(msgspec.json.encode(question) + b"\n")
        late = f"it took longer than verdict_timeout_s = {self._timeout_s:g} s, and was ended: does its function loop?"
        while True:
            line = await self._read(process, self._timeout_s + KILL_AFTER_S, Unanswered(ERROR, late))
            try:
                answer = msgspec.json.decode(line, type=Evaluation)
            except msgspec.MsgspecError as error:
                raise Unanswered(UNDECIDED, f"the judge's process answers something else: {error}") from error
            if answer.snapshot != question.snapshot:
                raise Unanswered(UNDECIDED, f"the judge's process answers for snapshot {answer.snapshot}")
            yield answer
            if not answer.running:
                return

    async def _start(self) -> Process:
        """Start the process, and return it once it has loaded the system."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, start_new_session=True, limit=_ANSWER_BYTES_MAX
            )
        except OSError as error:
            raise Unanswered(UNDECIDED, f"the judge's process cannot be started: {error}") from error
        late = f"the judge's process did not load the system within {START_S_MAX:g} s"
        try:
            line = await self._read(process, START_S_MAX, Unanswered(UNDECIDED, late))
            msgspec.json.decode(line, type=Ready)
        except msgspec.MsgspecError as error:
            await _kill(process)
            raise Unanswered(UNDECIDED, f"the judge's process begins with something else: {error}") from error
        except BaseException:
            await _kill(process)
            raise
        return process

    async def _read(self, process: Process, timeout_s: float, late: Unanswered) -> bytes:
        assert process.stdout is not None, "it has a pipe"
        reading = asyncio.ensure_future(process.stdout.readline())
        try:
            for wait_s in (timeout_s, GRACE_S):
                await asyncio.wait([reading], timeout=wait_s)
            if not reading.done():
                raise late
            line = reading.result()
        except ValueError as error:  # a line without an end
            raise Unanswered(UNDECIDED, f"the judge's process answers something else: {error}") from error
        finally:
            reading.cancel()
        if not line.endswith(b"\n"):
            raise Unanswered(UNDECIDED, f"the judge's process ended {_end_text(await process.wait())}")
        return line

    async def _end(self) -> None:
        """Kill the current process, if any."""
        process, self._process = self._process, None
        if process is not None:
            await _kill(process)


async def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


def _end_text(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"by {signal.Signals(-code).name}"
    return f"by signal {-code}"
