"""State that processes share is found before anything runs, and named with the line that changes it (E13)."""

# ruff: noqa: RUF012 -- these are the mistakes

import heapq
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import pytest

from strobe.detection import Detecting
from strobe.keyed_state import KeyedState
from strobe.process import Process, System
from strobe.self_check import check_process, check_system
from strobe.shared_state import shared_state

SEEN: list[Any] = []
COUNT = 0
RATES = {"EUR": 1}


class Account(msgspec.Struct):
    balance: int = 0
    history: list[int] = []

    names: list[str] = []

    def pay(self, amount: int) -> None:
        self.balance -= amount
        self._note(amount)

    def _note(self, amount: int) -> None:
        self.history.append(amount)

    def largest(self) -> int:
        return max(self.history)


class Fixed(msgspec.Struct, frozen=True):
    name: str = ""


class Keeper(Process):
    """Keeps `items`; each test says where they come from and how they change."""

    items: Any

    def __init__(self, items: Any = None) -> None:
        if items is not None:
            self.items = items

    def capture(self) -> Any:
        return self._everything()

    def _everything(self) -> Any:
        return [list(self.items)]

    def restore(self, state: Any) -> None:
        self.items = state[0]

    def receive(self, ctx: Any, channel: str, message: Any) -> None:
        self.items.append(message)  # here


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"# {text}")]
    return number


def problems(**processes: Process) -> list[str]:
    return [one.problem for one in shared_state(System(processes, []))]


def test_E13_a_mutable_attribute_of_the_class_is_named_with_the_line_that_changes_it() -> None:
    class Branch(Keeper):
        items: Any = []

    found = check_system(System({"a": Branch(), "b": Branch()}, []))
    assert [one.process for one in found.mistakes] == ["a", "b"]
    expected = (
        rf"Branch.items is an attribute of the class, and is changed at tests/test_shared_state.py:{line_of('here')}"
    )
    assert found.mistakes[0].problem.startswith(expected)
    assert "set self.items in __init__" in found.mistakes[0].problem
    assert check_process(System({"a": Branch(), "b": Keeper([])}, []), "a").mistakes == found.mistakes[:1]
    assert check_process(System({"a": Branch(), "b": Keeper([])}, []), "b").mistakes == ()


class Indexed(Keeper):
    def receive(self, ctx: Any, channel: str, message: Any) -> None:
        self.items[0] = message


class Summed(Keeper):
    def receive(self, ctx: Any, channel: str, message: Any) -> None:
        self.items += [message]


class Aliased(Keeper):
    def receive(self, ctx: Any, channel: str, message: Any) -> None:
        items = self.items
        items.append(message)


class Looping(Keeper):
    def receive(self, ctx: Any, channel: str, message: Any) -> None:
        for one in self.items:
            one.balance += 1


class Nested(Keeper):
    def receive(self, ctx: Any, channel: str, message: Any) -> None:
        self.items.get("x").append(message)


class Deleting(Keeper):
    def receive(self, ctx: Any, channel: str, message: Any) -> None:
        del self.items[0]


class Heap(Keeper):
    def receive(self, ctx: Any, channel: str, message: Any) -> None:
        heapq.heappush(self.items, message)


class OfClass(Keeper):
    items = 0

    def receive(self, ctx: Any, channel: str, message: Any) -> None:
        OfClass.items += 1


class OfType(Keeper):
    items = 0

    def receive(self, ctx: Any, channel: str, message: Any) -> None:
        type(self).items = 5


@pytest.mark.parametrize("kind", [Indexed, Summed, Aliased, Looping, Nested, Deleting, Heap, OfClass, OfType])
def test_E13_every_way_to_change_an_attribute_of_the_class_is_found(kind: type[Keeper]) -> None:
    class Branch(kind):  # type: ignore[misc,valid-type]
        items: Any = []

    (found,) = problems(a=kind() if "items" in vars(kind) else Branch())
    assert "items is an attribute of the class, and is changed at tests/test_shared_state.py:" in found


class Constant(Keeper):
    items: Any = ["x", "y"]  # read only

    def receive(self, ctx: Any, channel: str, message: Any) -> None:
        message.append(len(self.items) + self.items.index("x"))


class Replacing(Keeper):
    items: Any = []

    def receive(self, ctx: Any, channel: str, message: Any) -> None:
        self.items = [*self.items, message]


class Cached(Process):
    cache: Any = {}  # changed, but not captured

    def receive(self, ctx: Any, channel: str, message: Any) -> None:
        self.cache[message] = RATES[message]

    def capture(self) -> Any:
        return 1

    def restore(self, state: Any) -> None:
        pass


class Starting(Keeper):
    items: Any = []

    def start(self, ctx: Any) -> None:
        self.items = []


class Local(Keeper):
    items: Any = []

    def receive(self, ctx: Any, channel: str, message: Any) -> None:
        items = list(self.items)
        items.append(message)
        self.items = items


@pytest.mark.parametrize(
    "process", [Constant(), Replacing(), Cached(), Starting(), Local(), Keeper([])], ids=lambda one: type(one).__name__
)
def test_E13_constants_caches_and_own_attributes_are_no_mistake(process: Process) -> None:
    assert problems(a=process, b=type(process)([]) if isinstance(process, Keeper) else type(process)()) == []


class OfModule(Keeper):
    def receive(self, ctx: Any, channel: str, message: Any) -> None:
        SEEN.append(message)  # in the module

    def _everything(self) -> Any:
        return SEEN


class Counting(Keeper):
    def receive(self, ctx: Any, channel: str, message: Any) -> None:
        global COUNT
        COUNT += 1

    def _everything(self) -> Any:
        return COUNT


@pytest.mark.parametrize(("kind", "name"), [(OfModule, "SEEN"), (Counting, "COUNT")])
def test_E13_state_in_a_variable_of_the_module_is_named(kind: type[Keeper], name: str) -> None:
    (found,) = problems(a=kind([]))
    assert found.startswith(
        f"{kind.__name__} keeps state in the variable '{name}' of its module, changed at tests/test_sh"
    )
    assert found.endswith(f"keep it in self.{name}")


class Paying(Process):
    def __init__(self, account: Any) -> None:
        self.account = account

    def receive(self, ctx: Any, channel: str, message: Any) -> None:
        self.account.pay(message)  # paid

    def capture(self) -> Any:
        return Account(self.account.balance)

    def restore(self, state: Any) -> None:
        self.account = state


def test_E13_an_object_given_to_several_processes_is_named_once() -> None:
    shared = Account(history=[1])
    processes = {"a": Paying(shared), "b": Paying(Account()), "c": Paying(shared)}
    (found,) = shared_state(System(processes, []))
    assert found.processes == ("a", "c")
    system = System(processes, [])
    assert [len(check_process(system, name).mistakes) for name in processes] == [1, 0, 1]
    assert found.problem.startswith("Paying.account is the same Account in all of them, and is changed at tests/test_")
    assert f":{line_of('paid')}" in found.problem


@pytest.mark.parametrize("shared", [[], deque(), {"x": []}, KeyedState(int)], ids=lambda one: type(one).__name__)
def test_E13_a_container_given_to_two_processes_is_named(shared: Any) -> None:
    kind = Indexed if isinstance(shared, KeyedState) else Keeper
    (found,) = problems(a=kind(shared), b=kind(shared))
    assert f"items is the same {type(shared).__name__} in all of them" in found


def test_E13_a_default_argument_that_processes_share_is_named() -> None:
    class Branch(Keeper):
        def __init__(self, items: Any = []) -> None:  # noqa: B006 -- the mistake
            self.items = items

    (found,) = problems(a=Branch(), b=Branch())
    assert "Branch.items is the same list in all of them" in found


def test_E13_a_part_that_two_processes_share_is_named_with_its_path() -> None:
    history: list[int] = []
    (found,) = problems(a=Paying(Account(1, history)), b=Paying({"x": [Account(2, history)]}))
    names = ["ada"]  # no method changes them
    assert problems(a=Paying(Account(1, names=names)), b=Paying(Account(2, names=names))) == []
    assert found.startswith("Paying.account.history and Paying.account['x'][0].history is the same list in all of them")


class Reading(Paying):
    def receive(self, ctx: Any, channel: str, message: Any) -> None:
        message.append(self.account.largest())


class Updating(Paying):
    def receive(self, ctx: Any, channel: str, message: Any) -> None:
        self.account.balance += message


class Listing(Paying):
    def receive(self, ctx: Any, channel: str, message: Any) -> None:
        for account in self.account.values():
            account.pay(message)
            account.balance = 0


def test_E13_only_what_is_really_changed_is_named() -> None:
    shared = Account()
    assert problems(a=Reading(shared), b=Reading(shared)) == []
    history: list[int] = []
    assert problems(a=Updating(Account(1, history)), b=Updating(Account(2, history))) == []
    assert len(problems(a=Updating(shared), b=Updating(shared))) == 1
    assert len(problems(a=Listing({"x": shared}), b=Listing({"x": shared}))) == 1


def test_E13_an_object_of_the_class_is_named_if_a_method_of_it_is_called() -> None:
    class Branch(Paying):
        account = Account()

        def __init__(self) -> None:
            pass

    (found,) = problems(a=Branch())
    assert found.startswith(
        "Branch.account is an attribute of the class, and is changed at tests/test_shared_state.py:"
    )


def test_E13_an_object_that_another_process_only_reads_is_named() -> None:
    class Reader(Process):
        def __init__(self, prices: Any) -> None:
            self.prices = prices

        def capture(self) -> Any:
            return b""

    shared: list[int] = []
    (found,) = shared_state(System({"writer": Keeper(shared), "reader": Reader(shared)}, []))
    assert found.processes == ("writer", "reader")
    assert found.problem.startswith("Keeper.items and Reader.prices is the same list")
    assert problems(a=Reader(shared), b=Reader(shared)) == []


def test_E13_a_process_that_holds_another_one_is_named() -> None:
    first = Keeper([])
    (found,) = shared_state(System({"a": first, "b": Paying(Account()), "c": Paying({"peer": first})}, []))
    assert found.processes == ("c",)
    assert found.problem.startswith("Paying.account['peer'] is the process 'a' itself")


@pytest.mark.parametrize("shared", [Fixed(), ("x",), "text", len, Account, frozenset([1])], ids=repr)
def test_E13_what_cannot_change_may_be_shared(shared: Any) -> None:
    assert problems(a=Paying(shared), b=Paying(shared)) == []


def test_E13_the_process_inside_another_one_is_examined() -> None:
    shared = Account()
    (found,) = problems(a=Detecting(Paying(shared)), b=Detecting(Paying(shared)))
    assert "Paying.account is the same Account" in found


def test_a_class_without_source_is_not_examined() -> None:
    names: dict[str, Any] = {"Process": Process}
    exec("class Made(Process):\n    items = []\n    def capture(self): return self.items.append(1)", names)
    assert problems(a=names["Made"]()) == []
