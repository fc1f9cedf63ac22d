"""Views as graphs: which are refused, which processes must initiate (M1); and the ids of snapshots."""

from itertools import combinations, pairwise

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.protocol.playbook import view

from strobe import Channel, Process, System
from strobe.errors import UsageError
from strobe.protocol import UNORDERED, ChannelSpec, SnapshotId, View, check_channels, initiators
from strobe.protocol.process.first_view import first_view
from strobe.protocol.values.view import find_cycle, upstream_of

NAMES = ("a", "b", "c", "d", "e", "f")


@st.composite
def graphs(draw: st.DrawFn) -> View:
    """Generate directed graphs of up to six processes: self-loops, parallel channels, several components."""
    processes = draw(st.permutations(NAMES[: draw(st.integers(1, len(NAMES)))]))
    ends = draw(st.lists(st.tuples(st.sampled_from(processes), st.sampled_from(processes)), max_size=10))
    channels = tuple(ChannelSpec(f"{number}", *pair) for number, pair in enumerate(ends))
    return View(1, tuple(processes), channels)


def reached(graph: View, starts: tuple[str, ...]) -> set[str]:
    """Return all processes that markers from `starts` reach, by adding neighbours until nothing changes."""
    known = set(starts)
    while True:
        more = known | {channel.target for channel in graph.channels if channel.source in known}
        if more == known:
            return known
        known = more


def fewest(graph: View, chosen: tuple[str, ...] = ()) -> int:
    """Return the size of the smallest set with `chosen` in it that reaches all, by trying every set of every size."""
    return next(
        len(chosen) + size
        for size in range(len(graph.processes) + 1)
        for more in combinations(graph.processes, size)
        if reached(graph, chosen + more) == set(graph.processes)
    )


@given(graphs())
def test_initiators_are_a_smallest_set_that_reaches_every_process(graph: View) -> None:
    chosen = initiators(graph)
    assert reached(graph, chosen) == set(graph.processes)
    assert len(chosen) == len(set(chosen)) == fewest(graph)


@given(graphs(), st.data())
def test_chosen_initiators_are_completed_by_as_few_as_possible(graph: View, data: st.DataObject) -> None:
    chosen = tuple(data.draw(st.lists(st.sampled_from(graph.processes), unique=True, max_size=3)))
    found = initiators(graph, chosen)
    assert found[: len(chosen)] == chosen
    assert reached(graph, found) == set(graph.processes)
    assert len(found) == len(set(found)) == fewest(graph, chosen)


@given(graphs(), st.randoms(use_true_random=False))
def test_initiators_do_not_depend_on_the_order_of_processes(graph: View, random) -> None:
    processes = list(graph.processes)
    random.shuffle(processes)
    assert initiators(msgspec.structs.replace(graph, processes=tuple(processes))) == initiators(graph)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (view("a>b", "b>c", "c>a"), 1),
        (view("a>b", "b>c", "a>c"), 1),
        (view("a>c", "b>c"), 2),
        (view("a>b", "b>a", "c>d"), 2),
        (view(alone=["a", "b", "c"]), 3),
        (view("a>a:loop"), 1),
        (view("a>b:1", "a>b:2"), 1),
    ],
    ids=["ring", "dag", "two sources", "components", "no channels", "self-loop", "parallel"],
)
def test_how_many_initiators_it_takes(graph: View, expected: int) -> None:
    assert len(initiators(graph)) == expected


def test_a_long_chain_needs_no_deep_recursion() -> None:
    names = tuple(f"{number:05d}" for number in range(20_000))
    chain = View(1, names, tuple(ChannelSpec(source, source, target) for source, target in pairwise(names)))
    assert initiators(chain) == (names[0],)


@given(graphs())
def test_incoming_and_outgoing_partition_the_channels(graph: View) -> None:
    for ends in (graph.incoming, graph.outgoing):
        listed = [channel for process in graph.processes for channel in ends(process)]
        assert sorted(channel.id for channel in listed) == sorted(channel.id for channel in graph.channels)


@given(graphs())
def test_any_graph_is_a_view_until_a_channel_ends_at_no_process(graph: View) -> None:
    graph.check()
    strange = ChannelSpec("strange", graph.processes[0], "nobody")
    with pytest.raises(UsageError, match="'strange' names the process 'nobody', which does not exist"):
        View(1, graph.processes, (*graph.channels, strange)).check()


@given(graphs())
def test_protocols_without_barriers_accept_any_graph_of_fifo_channels(graph: View) -> None:
    unordered = View(1, graph.processes, (*graph.channels, ChannelSpec("bag", *graph.processes[:1] * 2, UNORDERED)))
    for protocol in ("chandy-lamport", "lai-yang"):
        check_channels(protocol, graph)
    check_channels("lai-yang", unordered)
    with pytest.raises(UsageError, match="needs fifo channels"):
        check_channels("chandy-lamport", unordered)


@given(graphs())
def test_V3_barriers_accept_a_view_exactly_if_it_has_no_cycle(graph: View) -> None:
    left = set(graph.processes)
    while sources := {one for one in left if not any(spec.source in left for spec in graph.incoming(one))}:
        left -= sources
    cycle = find_cycle(graph)
    assert bool(cycle) == bool(left)
    assert set(cycle) <= left
    steps = {(spec.source, spec.target) for spec in graph.channels}
    assert all(step in steps for step in pairwise(cycle))
    if cycle:
        with pytest.raises(UsageError, match="without a cycle"):
            check_channels("aligned", graph)
    else:
        check_channels("aligned", graph)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (View(1, ("a", "a"), ()), "two processes are called 'a'"),
        (View(1, ("a",), 2 * (ChannelSpec("c", "a", "a"),)), "two channels are called 'c'"),
        (View(1, ("a", "coordinator"), ()), "may not be called 'coordinator'"),
        (View(1, ("a",), (ChannelSpec("c", "a", "x"),)), "channel 'c' names the process 'x'"),
        (View(1, ("a",), (ChannelSpec("c", "x", "a"),)), "processes are: a"),
        (View(1, (), (ChannelSpec("c", "x", "a"),)), "processes are: none"),
        (View(1, ("a",), (ChannelSpec("c", "a", "a", "lossy"),)), "channel 'c' has the kind 'lossy'"),
        (
            View(1, ("a",), (ChannelSpec("c", "a", "a", hash="md5"),)),
            "hash 'md5'; hashes are: xxh3, blake3",
        ),
        (
            View(1, ("a",), (ChannelSpec("c", "a", "a", UNORDERED, hash="blake3"),)),
            "channel 'c' is unordered, and blake3 is for fifo channels.*; make it fifo, or give it hash='xxh3'",
        ),
    ],
)
def test_an_invalid_view_is_refused_by_name(wrong: View, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        wrong.check()


def test_a_stored_channel_names_its_hash_only_if_it_is_not_xxh3() -> None:
    plain = b'{"id":"ab","source":"a","target":"b","kind":"fifo","incarnation":1}'
    strong = plain[:-1] + b',"hash":"blake3"}'
    explicit = plain[:-1] + b',"hash":"xxh3"}'
    assert msgspec.json.encode(ChannelSpec("ab", "a", "b")) == plain
    assert msgspec.json.encode(ChannelSpec("ab", "a", "b", hash="blake3")) == strong
    for raw, stored in ((plain, plain), (strong, strong), (explicit, plain)):
        read = msgspec.json.decode(raw, type=ChannelSpec)
        assert msgspec.json.encode(msgspec.structs.replace(read, id="ab")) == msgspec.json.encode(read) == stored
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(read), type=ChannelSpec) == read


def test_the_hash_of_a_system_is_the_default_of_its_channels() -> None:
    channels = [Channel("a", "b"), Channel("b", "a", hash="xxh3")]
    processes = {"a": Process(), "b": Process()}
    assert [one.hash for one in first_view(System(processes, channels)).channels] == ["xxh3", "xxh3"]
    assert [one.hash for one in first_view(System(processes, channels, hash="blake3")).channels] == ["blake3", "xxh3"]
    with pytest.raises(UsageError, match="the system has the hash 'md5'; hashes are: xxh3, blake3"):
        first_view(System(processes, [], hash="md5"))


def test_chandy_lamport_refuses_an_unordered_channel_by_name() -> None:
    mixed = View(1, ("a", "b"), (ChannelSpec("ab", "a", "b"), ChannelSpec("ba", "b", "a", UNORDERED)))
    with pytest.raises(UsageError, match="channel 'ba' is unordered"):
        check_channels("chandy-lamport", mixed)
    check_channels("lai-yang", mixed)


def test_an_unknown_protocol_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="chandy-lamport, lai-yang"):
        check_channels("paxos", view("a>b"))


# Ids

IDS = st.builds(
    SnapshotId, st.integers(0, 999_999), st.integers(0, 99_999_999), st.text("abz09-", min_size=1, max_size=5)
)


@given(IDS, IDS)
def test_ids_sort_by_epoch_then_counter_printed_or_not(one: SnapshotId, other: SnapshotId) -> None:
    assume((one.epoch, one.counter) != (other.epoch, other.counter))
    assert (one < other) == (str(one) < str(other)) == ((one.epoch, one.counter) < (other.epoch, other.counter))


@given(IDS)
def test_an_id_can_be_read_back(snapshot: SnapshotId) -> None:
    assert SnapshotId.parse(str(snapshot)) == snapshot


@given(st.text(max_size=3) | st.just("a\nb"))
def test_every_accepted_process_name_makes_ids_that_can_be_read_back(name: str) -> None:
    """E7: the log contains printed ids. One that cannot be read back would stop every restart."""
    try:
        View(1, (name,), ()).check()
    except UsageError:
        return
    snapshot = SnapshotId(1, 1, name)
    assert SnapshotId.parse(str(snapshot)) == snapshot


@pytest.mark.parametrize("wrong", ["", "1-2-p", "000001-00000002-", "000001-0000002x-p", "x000001-00000002-p"])
def test_an_invalid_id_is_refused_with_an_example(wrong: str) -> None:
    with pytest.raises(UsageError, match="000001-00000042-coordinator"):
        SnapshotId.parse(wrong)


@given(graphs())
def test_upstream_of_a_process_is_every_process_that_reaches_it(graph: View) -> None:
    for process in graph.processes:
        found = upstream_of(graph, process)
        assert found == {
            other
            for other in graph.processes
            if any(process in reached(graph, (c.target,)) for c in graph.channels if c.source == other)
        }
