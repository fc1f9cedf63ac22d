"""The meaning of a path or URL of a store."""

from pathlib import Path

import pytest

from strobe.errors import UsageError
from strobe.storage.files.disk import Disk
from strobe.storage.files.object_store import Objects
from strobe.storage.files.object_store_errors import explain
from strobe.storage.files.urls import backend_at, canonical_url, run_directory


def test_a_path_and_a_file_url_are_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("store", tmp_path / "store", (tmp_path / "store").as_uri()):
        assert canonical_url(url) == str(tmp_path / "store")
        assert isinstance(backend_at(url), Disk)
        assert run_directory(url) == tmp_path / "store" / "run"


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("s3://bucket", "s3://bucket"),
        ("S3://bucket/a//b/", "s3://bucket/a/b"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("az://container/a", "az://container/a"),
        ("abfss://container@account.dfs.core.windows.net/a/", "abfss://container@account.dfs.core.windows.net/a"),
    ],
)
def test_a_url_of_an_object_store_is_a_bucket_and_a_prefix(
    given: str, canonical: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    # Without these, the library would ask the machine's cloud for credentials, or report that there are none.
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    assert canonical_url(given) == canonical
    backend = backend_at(given)
    assert isinstance(backend, Objects)
    assert backend.url == canonical


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:secret@bucket/store",
        "s3://secret@bucket",
        "s3://bucket/store?key=secret",
        "s3://bucket/store#secret",
        "abfs://container:secret@account.dfs.core.windows.net/store",
    ],
)
def test_a_url_with_a_secret_in_it_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="give credentials and endpoints in the environment") as caught:
        backend_at(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://", "s3:///prefix", "s3://bucket/../other", "gs://bucket/%2e%2e/other"])
def test_a_url_without_a_valid_place_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="://BUCKET/PREFIX"):
        backend_at(url)


def test_the_run_directory_of_an_object_store_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    here = run_directory("s3://bucket/prefix/")
    assert here == run_directory("S3://bucket//prefix")
    assert here.parent.parent == tmp_path / "strobe"
    assert here.parent.name.startswith("s3-bucket-prefix-")
    assert here != run_directory("s3://bucket-prefix")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert run_directory("gs://bucket").is_relative_to(tmp_path / "home" / ".local" / "state" / "strobe")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Error performing PUT http://169.254.169.254/latest/api/token - HTTP error", "set AWS_ACCESS_KEY_ID"),
        ("status code: 301 Moved Permanently: <Code>PermanentRedirect</Code>", "in another region"),
        ("status code: 501 Not Implemented", "use one that has conditional writes"),
        ("status code: 418 Teapot: <Code>Odd</Code><X>secret</X>", r"refused it \(418 Teapot Odd\)$"),
        ("Error at https://x/y?sig=secret of some kind\nsecret", "^Error at https://x/y of some kind$"),
    ],
)
def test_a_refusal_of_an_object_store_is_reported_without_secrets(text: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected) as caught:
        raise UsageError(explain(Exception(text), "s3://bucket/store"))
    assert "secret" not in str(caught.value)
