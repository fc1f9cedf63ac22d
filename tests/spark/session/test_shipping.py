"""What is sent to a cluster: all that a worker imports, usable by a Python without Strobe and its dependencies (D6)."""

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pyspark.cloudpickle import dumps
from tests.spark.clusters import bare_python, free_port

from strobe.errors import StrobeError, UsageError
from strobe.spark.dataframes.clusters import CarriedSource, cluster_settings, session_for
from strobe.spark.session.shipping import PACKAGES, carried, packed

CALL = """
import pathlib, pickle, sys
print(pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())(20, 22))
"""
ASK = """
import sys
from strobe.errors import StrobeError
from strobe.spark.dataframes.clusters import session_for
try:
    session_for(**{sys.argv[1]: sys.argv[2]})
except StrobeError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def in_bare_python(directory: Path, code: str, *arguments: str, path: str = "") -> str:
    environment = {**os.environ, "PYTHONPATH": path}
    python = bare_python(directory / "bare")
    answer = subprocess.run(
        [python, "-c", code, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_a_carried_function_brings_its_packages_along(tmp_path: Path) -> None:
    def add(left: int, right: int) -> str:
        import strobe.storage

        return f"{left + right} by {strobe.storage.__name__}"

    (tmp_path / "function").write_bytes(dumps(carried(add)))
    assert in_bare_python(tmp_path, CALL, str(tmp_path / "function")) == "42 by strobe.storage\n"


def test_a_carried_source_brings_its_packages_along(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(dumps(CarriedSource({"path": "./store", "table": "frontiers"})))
    code = "import pathlib, pickle, sys; print(pickle.loads(pathlib.Path(sys.argv[1]).read_bytes()).schema().names[:2])"
    assert in_bare_python(tmp_path, code, str(tmp_path / "source")) == "['snapshot_id', 'channel']\n"


def test_every_module_that_workers_import_is_among_the_packages(tmp_path: Path) -> None:
    for package in PACKAGES:
        (tmp_path / f"{package}.zip").write_bytes(packed((package,), flat=True))
        zipfile.ZipFile(tmp_path / f"{package}.zip").extractall(tmp_path / "shipped" / package)
    imports = (
        "import pyspark_strobe, strobe.spark, strobe.storage.log.follower, strobe.causality.proof; print('all there')"
    )
    assert in_bare_python(tmp_path, imports, path=str(tmp_path / "shipped")) == "all there\n"


def test_caches_are_not_packed() -> None:
    names = zipfile.ZipFile(io.BytesIO(packed(PACKAGES))).namelist()
    assert {name.split("/")[0] for name in names} == set(PACKAGES)
    assert not [name for name in names if "__pycache__" in name]


@pytest.mark.parametrize(("option", "scheme"), [("master", "spark"), ("remote", "sc")])
def test_an_unreachable_cluster_is_named_at_once(option: str, scheme: str) -> None:
    url = f"{scheme}://127.0.0.1:{free_port()}"
    # In a separate process: a session of this process would be returned instead.
    answer = subprocess.run([sys.executable, "-c", ASK, option, url], capture_output=True, text=True, check=False)
    assert answer.returncode == 3, answer.stderr
    assert f"{url} cannot be reached" in answer.stdout


@pytest.mark.parametrize(
    "url", ["sc://user:S3cret@127.0.0.1:{port}/;token=S3cret", "sc://user:S3cret@host:S3cret;token=S3cret"]
)
def test_a_token_in_the_address_of_a_server_is_never_shown(url: str) -> None:
    with pytest.raises(StrobeError) as error:
        session_for(remote=url.format(port=free_port()))
    assert "S3cret" not in str(error.value).replace("host:S3cret", "")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"master": "spark://a:1", "remote": "sc://b:2"}, "give one of them"),
        ({"remote": "b:15002"}, "begins with sc://"),
        ({"remote": "sc://"}, "names no host"),
        ({"remote": "sc://host:port"}, "no host and port"),
        ({"conf": {"spark.executor.memory": "4g"}}, "are for a cluster"),
        ({"remote": "sc://b:2", "conf": {"spark.executor.memory": "4g"}}, "a Connect server has its own"),
        ({"master": "local[1]"}, "on all cores: leave it out"),
    ],
)
def test_conflicting_session_options_are_refused_with_advice(options: dict[str, str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        session_for(**options)  # type: ignore[arg-type]


def test_the_users_settings_override_the_defaults(tmp_path: Path) -> None:
    given = {"spark.sql.session.timeZone": "Europe/Zurich", "spark.executor.memory": "4g"}
    settings = cluster_settings("spark://host:7077", given, "audit", tmp_path)
    assert settings.items() >= given.items()
    assert settings["spark.master"] == "spark://host:7077"
    assert settings["spark.sql.streaming.pollingDelay"] == "100ms"
    assert cluster_settings("yarn", {"spark.sql.shuffle.partitions": "99"}, "audit", tmp_path).items() >= {
        ("spark.sql.shuffle.partitions", "99")
    }
