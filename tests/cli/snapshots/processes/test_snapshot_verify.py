"""`strobe snapshot verify`: levels, the user's own system and signatures; and `strobe keys`."""

import shutil
from pathlib import Path

import msgspec
import pytest
from tests.cli.command_line import BANK, refused, run
from tests.storage.samples import commit, sample
from tests.storage.signing import commit_signed

from strobe.storage import Store, collect
from strobe.storage.files.disk import Disk
from strobe.storage.store import retention

LEVELS = ["exists", "checksums", "causal", "invariants", "restore"]


def words_of(level):
    return ["--level", level, *(["--system", BANK] if level in ("invariants", "restore") else [])]


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_reports_what_was_checked_and_what_was_not(pristine, level):
    result = run("snapshot", "verify", *words_of(level), "--store", pristine)
    assert result.code == 0
    names = ["exists", "checksums", "causal proof", "invariants", "trial restore"]
    checked = LEVELS.index(level) + 1
    assert f"checked: {', '.join(names[:checked])}\n" in result.out
    assert f"not checked: {', '.join([*names[checked:], 'signatures'])}" in result.out
    document = run("snapshot", "verify", *words_of(level), "--json", "--store", pristine).document
    assert document["level"] == level
    assert [check["level"] for check in document["snapshots"][0]["checks"]] == LEVELS[:checked]


def test_the_restore_level_prints_the_conserved_quantity(pristine):
    result = run("snapshot", "verify", "--all", *words_of("restore"), "--store", pristine)
    assert result.code == 0
    assert result.out.count("conserved: 800") == len(Store.open(pristine).list())
    assert "restored 4 processes" in " ".join(result.out.split())
    assert max(map(len, result.out.splitlines())) <= 100


def test_existence_alone_does_not_claim_that_bytes_were_read(store):
    blob = min(store.glob("blobs/*/*"))
    blob.write_bytes(b"?" + blob.read_bytes()[1:])
    result = run("snapshot", "verify", "--all", "--level", "exists", "--store", store)
    assert result.code == 0
    assert "damaged" not in result.out
    assert run("snapshot", "verify", "--all", "--level", "checksums", "--store", store).code == 1


@pytest.fixture
def removing(monkeypatch, store):
    """Remove the oldest snapshot of `store` with its blobs, as retention does, right after names are resolved."""
    oldest = Store.open(store).list()[0][1]
    resolve = Store.resolve

    def resolve_and_remove(self, name):
        found = resolve(self, name)
        monkeypatch.setattr(Store, "resolve", resolve)
        assert retention.remove(Store.open(store), oldest, "retention", 0)
        assert collect(Store.open(store)).names
        return found

    monkeypatch.setattr(Store, "resolve", resolve_and_remove)
    return oldest


@pytest.mark.parametrize("level", LEVELS)
def test_E8_verify_all_leaves_out_snapshots_removed_meanwhile(store, removing, level):
    document = run("snapshot", "verify", "--all", *words_of(level), "--json", "--store", store).document
    assert (document["holds"], document["problems"], document["removed_meanwhile"]) == (True, [], [removing])
    assert [snapshot["id"] for snapshot in document["snapshots"]] == [name for _, name, _ in Store.open(store).list()]


def test_E8_verify_all_reports_how_many_were_removed_meanwhile(store, removing):
    result = run("snapshot", "verify", "--all", "--store", store)
    assert result.code == 0
    assert " hold; 0 damaged files\n1 snapshot skipped: removed meanwhile\n" in result.out


@pytest.mark.parametrize("level", LEVELS)
def test_E8_a_snapshot_removed_while_it_is_verified_is_named(store, removing, level):
    refused(run("snapshot", "verify", removing, *words_of(level), "--store", store), "was removed: retention")


@pytest.fixture
def removing_large(monkeypatch, store):
    """Remove the oldest snapshot with its blobs when one is opened; all blobs count as large and are memory-mapped."""
    oldest = Store.open(store).list()[0][1]
    view = Disk.view

    def remove_and_view(self, name, size):
        retention.remove(Store.open(store), oldest, "retention", 0)
        collect(Store.open(store))
        return view(self, name, size)

    monkeypatch.setattr("strobe.storage.content.blobs.MAPPED_BYTES_MIN", 1)
    monkeypatch.setattr(Disk, "view", remove_and_view)
    return oldest


def test_E8_a_snapshot_removed_after_a_blob_was_opened_is_reported_removed(store, monkeypatch, removing_large):
    monkeypatch.setattr(Store, "verify_bytes", lambda self: [])  # else the removal happens here, before the proofs
    document = run("snapshot", "verify", "--all", "--json", "--store", store).document
    assert (document["holds"], document["removed_meanwhile"]) == (True, [removing_large])


def test_E8_a_large_snapshot_removed_while_it_is_shown_is_reported_removed(store, removing_large):
    refused(run("snapshot", "show", removing_large, "--store", store), "was removed: retention")


def test_E8_verify_all_reads_every_byte_of_large_blobs_during_retention(store, removing_large):
    document = run("snapshot", "verify", "--all", "--json", "--store", store).document
    assert (document["holds"], document["problems"]) == (True, [])


def test_another_system_is_not_restored(pristine):
    unordered = BANK.replace(":bank", ":bank_unordered")
    result = run("snapshot", "verify", "--level", "restore", "--system", unordered, "--store", pristine)
    assert result.code == 1
    assert "the snapshot was taken by chandy-lamport" in " ".join(result.out.split())


@pytest.fixture
def copied(tmp_path):
    """Return a function that copies the bank's source with one change, and returns the name of the copied system."""

    def copy(old, new):
        text = Path(BANK.removesuffix(":bank")).read_text(encoding="utf-8")
        assert old in text
        (tmp_path / "copied.py").write_text(text.replace(old, new), encoding="utf-8")
        return f"{tmp_path / 'copied.py'}:bank"

    return copy


def test_a_process_that_cannot_be_restored_is_named(pristine, copied):
    system = copied("self.account = state", "self.account = Account(0)")
    result = run("snapshot", "verify", "--level", "restore", "--system", system, "--store", pristine)
    assert result.code == 1
    assert "gives another state: balance changed" in " ".join(result.out.split())


def test_output_of_a_system_does_not_break_the_json_document(pristine, copied):
    system = copied("bank = System(", "print('hello')\nbank = System(")
    result = run("snapshot", "verify", "--level", "restore", "--system", system, "--json", "--store", pristine)
    assert result.document["holds"] is True
    assert "hello" in result.err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--level", "restore"], "name the system with --system"),
        (["--system", BANK], "needs no --system; for a trial restore add --level restore"),
        (["--level", "exists", "--keys", "."], "--level exists ends before it"),
        (["--view", "view.json"], "give the public keys as well"),
        (["--keys", "nowhere"], "is not a directory"),
    ],
)
def test_conflicting_options_are_refused(pristine, words, problem):
    refused(run("snapshot", "verify", *words, "--store", pristine), problem)


# Signatures


@pytest.fixture
def keys(tmp_path):
    result = run("keys", "create", tmp_path / "keys", "a", "b", "c")
    assert result.code == 0
    assert "a.key" in result.out
    return tmp_path / "keys"


@pytest.fixture
def signed(tmp_path, keys):
    store = Store.create(tmp_path / "signed")
    commit_signed(store, sample(1), keys)
    return tmp_path / "signed"


def test_without_keys_the_signer_is_unknown_and_with_them_all_have_signed(signed, keys):
    assert "(self-consistent, signer unknown)" in run("snapshot", "verify", "--store", signed).out
    result = run("snapshot", "verify", "--keys", keys, "--store", signed)
    assert result.code == 0
    assert "(signed by all 3 processes)" in result.out
    assert "checked: exists, checksums, causal proof, signatures\n" in result.out


def test_a_missing_signature_is_a_violation_that_names_the_process(signed, keys):
    commit(Store.open(signed), sample(2))
    result = run("snapshot", "verify", "--keys", keys, "--store", signed)
    assert result.code == 1
    for process in "abc":
        assert f"{process}: has not signed its part" in result.out


def test_a_signature_by_another_key_is_a_violation_that_names_the_process(signed, keys, tmp_path):
    run("keys", "create", tmp_path / "others", "b")
    shutil.copy(tmp_path / "others" / "b.pub", keys / "b.pub")
    result = run("snapshot", "verify", "--keys", keys, "--json", "--store", signed)
    assert result.code == 1
    (snapshot,) = result.document["snapshots"]
    assert snapshot["verdict"] == "violated"
    assert [(finding["subject"], finding["check"]) for finding in snapshot["findings"]] == [("b", "signature")]


def test_the_view_can_be_given_from_outside(signed, keys, tmp_path):
    shown = run("snapshot", "show", "--json", "--store", signed).document["topology"]
    view = tmp_path / "view.json"
    view.write_text(msgspec.json.encode(shown).decode())
    words = ("snapshot", "verify", "--keys", keys, "--view", view, "--store", signed)
    assert run(*words).code == 0
    shown["processes"].append("d")
    del shown["number"]
    view.write_text(msgspec.json.encode(shown).decode())
    result = run(*words)
    assert result.code == 1
    assert "d: this process was expected, and is not in the snapshot's view" in " ".join(result.out.split())
    view.write_text("[]")
    refused(run(*words), "is not a view")


def test_keys_are_not_replaced(keys):
    refused(run("keys", "create", keys, "a"), "has a.key, a.pub already")
    document = run("keys", "create", keys, "d", "--json").document
    assert document["files"] == ["d.key", "d.pub"]
