"""Every command that takes a store accepts one in an object store."""

from tests.cli.command_line import BANK, run

from strobe.errors import UsageError


def test_S1_every_command_works_on_an_object_store(objects, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = objects.new_url()
    simulate = ("simulate", BANK, "--snapshots", "3", "--faults", "none", "--store", url)
    made = run(*simulate)
    assert made.code == 0, made
    listed = run("snapshot", "list", "--store", f"{url}/", "--json").document
    assert listed["store"] == url
    first, second, *_, last = (snapshot["id"] for snapshot in listed["snapshots"])
    assert run("snapshot", "show", "--store", url, "--json").document["id"] == last
    verified = run("snapshot", "verify", "--all", "--level", "restore", "--system", BANK, "--store", url)
    assert verified.code == 0, verified
    assert run("snapshot", "diff", first, second, "--store", url).code == 0
    assert run("snapshot", "pin", second, "--store", url, "--json").document["changed"]
    assert run("snapshot", "remove", second, "--store", url).code == 2
    assert run("snapshot", "unpin", second, "--store", url).code == 0
    assert run("snapshot", "remove", first, "--store", url).code == 0
    assert run("snapshot", "collect", "--store", url, "--dry-run", "--json").document["bytes"] > 0
    collected = run("snapshot", "collect", "--keep-last", "1", "--store", url, "--json")
    assert collected.code == 0, collected
    left = run("snapshot", "list", "--store", url, "--json").document["snapshots"]
    assert [snapshot["id"] for snapshot in left] == [last]
    assert run("snapshot", "verify", "--all", "--store", url).code == 0
    # A new simulation replaces the store of the earlier one.
    assert run(*simulate).code == 0
    assert run("snapshot", "list", "--store", url, "--json").document["snapshots"] == listed["snapshots"]
    assert not list(tmp_path.iterdir())


def test_a_coordinator_is_found_through_the_users_directory(objects, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    url = objects.new_url()
    result = run("snapshot", "take", "--store", url)
    assert result.code == 3
    assert f"no coordinator runs for the store {url}" in result.error


def test_a_url_with_a_secret_is_refused_and_not_shown():
    result = run("snapshot", "list", "--store", "s3://me:secret@bucket/store")
    assert result.code == UsageError.exit_code
    assert "secret" not in result.err + result.out
