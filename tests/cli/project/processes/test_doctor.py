"""`strobe doctor`: what it finds, what it says to do, and its exit codes."""

import socket
import time
from importlib.metadata import metadata
from pathlib import Path

import pytest
from tests.cli.command_line import run, simulated_store

from strobe.cli.project import environment
from strobe.cli.project.environment import BUILT_S, DISTRIBUTION, EXTRAS


@pytest.fixture(autouse=True)
def quick_java(request, monkeypatch):
    """Start Java only for the tests that are about it."""
    if "java" not in request.node.name and "nothing_is_missing" not in request.node.name:
        monkeypatch.setattr(environment, "_java", lambda: environment.Diagnosis("Java", "ok", "not started"))


def found(*words):
    result = run("doctor", "--json", *words)
    checks = {one["name"]: one for one in result.document["checks"]}
    assert result.document["holds"] == (result.code == 0)
    assert all(one["remedy"] for one in checks.values() if one["verdict"] == "missing")
    return result.code, checks


def test_here_nothing_is_missing_and_every_check_is_listed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, checks = found()
    assert code == 0
    assert {*checks} == {
        "Python",
        *(f"extra {name}" for name in EXTRAS),
        "Java",
        "port listen",
        "port api",
        "disk",
        "clock",
        "open files",
    }
    printed = run("doctor")
    assert printed.code == 0
    assert printed.out.endswith("checks: nothing that is needed is missing\n")
    assert len(printed.out.splitlines()) == len(checks) + 1


def test_it_knows_every_extra_of_the_package():
    assert set(EXTRAS) == set(metadata(DISTRIBUTION).get_all("Provides-Extra"))


def test_an_absent_extra_is_a_note_with_the_command_that_installs_it(monkeypatch):
    there = environment._is_installed
    monkeypatch.setattr(environment, "_is_installed", lambda package: package != "obstore" and there(package))
    code, checks = found()
    assert code == 0
    assert checks["extra objects"]["verdict"] == "note"
    assert "obstore" in checks["extra objects"]["found"]
    assert checks["extra objects"]["remedy"] == "if you want it: pip install 'strobe-snapshots[objects]'"


def test_java_is_needed_if_spark_is_installed(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    code, checks = found()
    assert (code, checks["Java"]["verdict"]) == (3, "missing")
    assert "JAVA_HOME" in checks["Java"]["remedy"]
    printed = run("doctor")
    assert printed.code == 3
    assert printed.out.splitlines()[-1] == "missing: Java"
    there = environment._is_installed
    monkeypatch.setattr(environment, "_is_installed", lambda package: package != "pyspark" and there(package))
    code, checks = found()
    assert (code, checks["Java"]["verdict"]) == (0, "note")


def test_a_taken_port_is_a_note(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = environment.CoordinatorSettings(listen=address, api="127.0.0.1:0")
        monkeypatch.setattr(environment, "CoordinatorSettings", lambda: settings)
        code, checks = found()
    assert (code, checks["port listen"]["verdict"], checks["port api"]["verdict"]) == (0, "note", "ok")
    assert address in checks["port listen"]["found"]


def test_a_directory_that_cannot_be_written_is_named(monkeypatch):
    monkeypatch.chdir("/proc")
    code, checks = found()
    assert (code, checks["disk"]["verdict"]) == (3, "missing")
    assert "/proc cannot be written" in checks["disk"]["found"]


@pytest.mark.parametrize(("free", "verdict"), [(environment.FREE_BYTES_LOW - 1, "note"), (1, "missing")])
def test_little_room_on_the_disk_is_reported(monkeypatch, tmp_path, free, verdict):
    monkeypatch.chdir(tmp_path)
    usage = environment.shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr(environment.shutil, "disk_usage", lambda place: usage)
    assert found()[1]["disk"]["verdict"] == verdict


def test_a_clock_that_was_never_set_is_reported(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    now = time.time()
    monkeypatch.setattr(environment.time, "time", lambda: BUILT_S - 1)
    assert found()[1]["clock"]["verdict"] == "missing"
    monkeypatch.setattr(environment.time, "time", lambda: now - 3600)
    clock = found()[1]["clock"]
    assert clock["verdict"] == "note"
    assert "differs by +36" in clock["found"]


def test_a_store_is_opened(tmp_path):
    store = simulated_store(tmp_path)
    code, checks = found("--store", str(store))
    assert (code, checks["store"]["verdict"]) == (0, "ok")
    assert "4 complete snapshots; no coordinator runs for it" in checks["store"]["found"]
    code, checks = found("--store", str(tmp_path / "nowhere" / "store"))
    assert (code, checks["store"]["verdict"]) == (3, "missing")
    assert "does not exist" in checks["store"]["found"]
    assert not Path(tmp_path / "nowhere").exists()
    header = store / "strobe.json"
    header.write_text(header.read_text().replace('"', "'", 1))
    assert found("--store", str(store))[0] == 3
