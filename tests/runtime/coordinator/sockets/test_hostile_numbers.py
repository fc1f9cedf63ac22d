"""One number in the log is replaced, with a valid hash chain: a coordinator starts, at least after a fence (E14)."""

import copy
import random

import pytest
from tests.runtime.coordinator.sockets.test_coordinator_crafted import started, whole  # noqa: F401 -- a fixture
from tests.storage import stranger
from tests.storage.crafting import chained, copied, documents_of
from tests.support.mutating import places

from strobe.errors import EntryUnreadable, StoreCorrupt, StoreError
from strobe.storage import Store
from strobe.storage.log.follower import Follower
from strobe.storage.store.repair import examine, fence_off

HOSTILE = (0, -1, 2**31, 2**53, 2**63 - 1, 2**64)
DECISIVE = {
    ("term", "entry", "term"),
    ("epoch", "entry", "epoch"),
    ("epoch", "entry", "view", "number"),
    ("begin", "term"),
}


def value_at(document, path):
    for key in path:
        document = document[key]
    return document


def numbers(document):
    """Yield the path to every number in a document."""
    for path in places(document):
        value = value_at(document, path)
        if path and isinstance(value, int | float) and not isinstance(value, bool):
            yield path


def kind_of(document, path):
    """Return the kind of a number: equal for all entries of a type, and for all processes and channels in them."""
    return document["entry"]["type"], *(
        key for key in path if isinstance(key, str) and len(key) > 1 and "->" not in key
    )


def cases(documents):
    """Yield (position, path, value): every hostile value for the `DECISIVE` numbers, one for each other number."""
    chance = random.Random(16)
    found = {}
    for position, document in enumerate(documents):
        for path in numbers(document):
            found.setdefault(kind_of(document, path), []).append((position, path))
    for kind, places_of_kind in found.items():
        for value in HOSTILE if kind in DECISIVE else [chance.choice(HOSTILE)]:
            yield (*chance.choice(places_of_kind), value)


def with_number(document, path, value):
    changed = copy.deepcopy(document)
    value_at(changed, path[:-1])[path[-1]] = value
    return changed


def starts(store):
    """Return whether a coordinator starts; if not, an entry must be the reason."""
    try:
        started(store)
    except (EntryUnreadable, StoreCorrupt):
        return False
    return True


def readers_agree(store):
    """Check that all readers find the same snapshots."""
    found = list(Store.open(store).state().committed)
    follower = Follower(store)
    follower.advance()
    assert [one.snapshot_id for one in follower.between(0, follower.end)] == found
    assert list(stranger.complete_snapshots(store)) == found


def repair(store, position):
    """Fence off the findings of a repair; the first must be the changed entry."""
    findings = examine(Store.open(store).backend).open
    assert findings[0].position == position
    for finding in findings:
        fence_off(Store.open(store).backend, finding.position, "a number that no writer writes", 1)


def test_E14_an_invalid_number_is_harmless_or_can_be_fenced_off(whole, tmp_path):  # noqa: F811
    """E14: for any value of one number of an entry, a coordinator can be started."""
    documents, fenced, all_cases = documents_of(whole), 0, list(cases(documents_of(whole)))
    for position, path, value in all_cases:
        crafted = copied(whole, tmp_path / "crafted")
        chained(crafted, position, {position: with_number(documents[position], path, value)})
        try:
            if not starts(crafted):
                repair(crafted, position)
                fenced += 1
                assert starts(crafted)
            readers_agree(crafted)
        except Exception as error:
            raise AssertionError(f"entry {position}, {path} = {value}: {error!r}") from error
    assert 0 < fenced < len(all_cases)


@pytest.mark.parametrize("name", ["term", "epoch"])
def test_E14_a_term_or_epoch_far_ahead_is_named_and_not_adopted(whole, tmp_path, name):  # noqa: F811
    documents = documents_of(whole)
    position = max(place for place, one in enumerate(documents) if one["entry"]["type"] == name)
    crafted = copied(whole, tmp_path / "crafted")
    chained(crafted, position, {position: with_number(documents[position], ("entry", name), 2**63 - 1)})
    with pytest.raises(StoreError, match=f"{name} 9223372036854775807 after {name} "):
        started(crafted)
    (finding,) = examine(Store.open(crafted).backend).open
    assert finding.position == position
    assert "9223372036854775807" in finding.problem
