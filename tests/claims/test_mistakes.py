"""Promise E13: a system is checked before it runs, and a mistake is reported with its place."""

import msgspec
import pytest

from strobe.errors import UsageError, UserCodeFailed
from strobe.process import Channel, Process, System
from strobe.self_check import check_system


class Account(msgspec.Struct):
    balance: int = 0


class Branch(Process):
    def __init__(self):
        self.account = Account(5)

    def receive(self, ctx, channel, message):
        self.account.balance += message

    def capture(self):
        return self.account

    def restore(self, state):
        self.account = state


def system_of(**methods):
    kind = type("Mine", (Branch,), methods)
    return System({"a": kind(), "b": Branch()}, [Channel("b", "a")])


async def asynchronous(self, ctx, channel, message):
    pass


def test_E13_a_handler_that_would_do_nothing_is_refused_by_the_system():
    with pytest.raises(UsageError, match=r"process 'a': Mine.receive is async \(.*test_mistakes.py:\d+\)"):
        system_of(receive=asynchronous)


def test_E13_a_handler_with_wrong_parameters_is_refused_with_a_hint():
    with pytest.raises(
        UsageError, match=r"Mine.receive takes \(ctx, message\) .*write def receive\(self, ctx, channel"
    ):
        system_of(receive=lambda self, ctx, message: None)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"restore": Process.restore}, r"Mine has capture\(\) but no restore\(\)"),
        ({"restore": lambda self, state: state.nothing}, r"restore\(\) fails: AttributeError.*test_mistakes.py:\d+"),
        ({"restore": lambda self, state: setattr(self, "account", Account())}, r"balance changed \(5, then 0\)"),
        ({"capture": lambda self: Account(object())}, r"cannot be encoded: Account.balance: object"),
        ({"capture": lambda self: Account("5")}, r"Expected `int`, got `str` - at `\$.balance`"),
    ],
)
def test_E13_a_state_that_cannot_be_restored_is_named_before_the_start(methods, message):
    with pytest.raises(UserCodeFailed, match=message):
        check_system(system_of(**methods)).require_sound()


def test_E13_a_system_without_mistakes_runs():
    assert check_system(system_of()).mistakes == ()


def test_E13_an_object_that_two_processes_share_is_named_before_the_start():
    shared = Branch().account
    first, second = Branch(), Branch()
    first.account = second.account = shared
    with pytest.raises(
        UserCodeFailed, match=r"^processes 'a', 'b': Branch.account is the same Account .*test_mistakes.py"
    ):
        check_system(System({"a": first, "b": second}, [])).require_sound()


class Shared(Branch):
    account = Account(5)

    def __init__(self):
        pass


def test_E13_state_in_an_attribute_of_the_class_is_named_before_the_start():
    with pytest.raises(
        UserCodeFailed, match=r"^process 'a': Shared.account is an attribute of the class, and is changed"
    ):
        check_system(System({"a": Shared(), "b": Branch()}, [])).require_sound()
