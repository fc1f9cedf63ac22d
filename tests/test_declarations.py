"""Declarations of processes and messages, recorded as plain data that a reader can evaluate (G2)."""

from dataclasses import dataclass

import msgspec
import pytest

from strobe import Declares, Process, System, Waits
from strobe.declarations import Declared, MessageRule, declare, field_of, message_rules, require_small
from strobe.errors import UsageError


class Grant(msgspec.Struct, tag=True):
    declares = Declares(grants=True)


class Relayed(msgspec.Struct, tag="relayed", rename="camel"):
    declares = Declares(grants="on_behalf_of", requests=["who_asks"], references=("what_for", "who_asks"))
    on_behalf_of: str
    who_asks: list[str]
    what_for: str | None = None


class Packed(msgspec.Struct, tag=7, array_like=True):
    declares = Declares(references="names")
    number: int
    names: list[str]


class Plain(msgspec.Struct, tag=True):
    declares = "this is the user's own"


class Modest(Process):
    pass


class Declaring(Process):
    def __init__(self, references):
        self.kept = references

    def waits_for(self):
        return Waits.any("b", Waits.all("c", "d", times_out=True))

    def references(self):
        return self.kept

    def active(self):
        return False


def test_waits_are_written_as_sentences():
    assert str(Waits.all("a", "b")) == "a and b"
    assert str(Waits.any("a", Waits.all("b", "c"), times_out=True)) == "a or (b and c), for a time"


def test_rules_name_fields_as_they_are_encoded():
    assert message_rules([Grant, Relayed, Packed, Plain]) == (
        MessageRule("type", "Grant", grants=True),
        MessageRule(
            "type", "relayed", grants=("onBehalfOf",), requests=("whoAsks",), references=("whatFor", "whoAsks")
        ),
        MessageRule(0, 7, references=(2,)),
    )


def test_a_message_is_distinguished_from_plain_values_by_its_tag():
    grant, relayed, packed = message_rules([Grant, Relayed, Packed])
    sent = [Grant(), Relayed("a", ["b"]), Packed(1, ["x"]), Plain(), 5, None]
    messages = msgspec.msgpack.decode(msgspec.msgpack.encode(sent))
    assert [[rule.is_of(message) for message in messages] for rule in (grant, relayed, packed)] == [
        [place == own for place in range(len(sent))] for own in range(3)
    ]
    assert field_of(messages[2], 2) == ["x"]
    assert field_of(messages[1], "absent") is None
    assert field_of(messages[2], 9) is None
    assert MessageRule(grants=True).is_of("a message of the only type there is")


def test_a_declared_field_that_does_not_exist_is_refused_at_the_build():
    class Wrong(msgspec.Struct):
        declares = Declares(references="nmae")
        name: str

    with pytest.raises(UsageError, match="Wrong declares the field 'nmae', which it has not; fields: name"):
        System({}, [], [Wrong])

    @dataclass
    class Plain:
        declares = Declares(grants=True)

    with pytest.raises(UsageError, match=r"Plain declares what its messages do, but is no msgspec\.Struct"):
        System({}, [], [Plain])


def test_a_process_without_declarations_adds_no_bytes():
    assert declare("a", Modest(), ()) is None
    assert msgspec.json.encode(Declared()) == b"{}"
    assert declare("a", Modest(), message_rules([Grant])) == Declared(messages=message_rules([Grant]))


def test_references_belong_to_the_process_or_to_its_objects():
    assert declare("a", Declaring(["x", "y"]), ()).references == {"a": ("x", "y")}
    assert declare("a", Declaring([]), ()).references == {"a": ()}
    assert declare("a", Declaring({"": ["x"], "x": ["b/y"]}), ()).references == {"a": ("x",), "x": ("b/y",)}
    assert declare("a", Declaring({"": ["x"], "a": ["y"]}), ()).references == {"a": ("x", "y")}


@pytest.mark.parametrize("wrong", ["x", {"": "xy"}, [1, 2], {"": None}, {7: ["x"]}, {"x": ["y", None]}, 5])
def test_references_that_are_no_names_are_refused_and_shown(wrong):
    with pytest.raises(UsageError) as refused:
        declare("a", Declaring(wrong), ())
    assert str(refused.value).startswith(f"references() of process 'a' returns {wrong!r}; return a list of names")


def nested(depth):
    waits = Waits.all("b")
    for _ in range(depth):
        waits = Waits.any(waits)
    return waits


@pytest.mark.parametrize("wrong", ["b", ("b",), Waits.all(["b"]), Waits.any("b", Waits.all(None)), nested(3000), []])
def test_invalid_waits_are_refused_and_named(wrong):
    process = Modest()
    process.waits_for = lambda: wrong
    with pytest.raises(UsageError, match=r"waits_for\(\) of process 'a' returns .*; return None, or such as Waits"):
        declare("a", process, ())


def test_the_result_of_active_is_converted_to_a_bool():
    process = Modest()
    for answer in ([], None, 0, ""):
        process.active = lambda answer=answer: answer
        assert declare("a", process, ()) == Declared(active=False)
    process.active = lambda: ["a task"]
    assert declare("a", process, ()) is None


def test_references_too_large_for_a_manifest_are_refused():
    require_small("a", None)
    require_small("a", Declared(references={"a": ("x",) * 1000}))
    with pytest.raises(
        UsageError, match=r"references\(\) of process 'a' come to .* bytes, and a snapshot takes 8,388,608"
    ):
        require_small("a", Declared(references={"a": ("x" * 100,) * 100_000}))


def test_declarations_survive_json_unchanged():
    declared = declare("a", Declaring({"": ["x"], "x": []}), message_rules([Grant, Relayed, Packed]))
    assert msgspec.json.decode(msgspec.json.encode(declared), type=Declared) == declared
    assert declared.waits == Waits(("b", Waits(("c", "d"), times_out=True)), any_suffices=True)
