"""Keys as files: only its process can read a private key, and no key is ever replaced (P1)."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from strobe.errors import MissingExtra, UsageError
from strobe.storage.inspection.keys import create_keys, private_path, public_path, read_private_key, read_public_keys


def test_a_private_key_matches_its_public_key(tmp_path: Path) -> None:
    create_keys(tmp_path / "keys", ["a", "b"])
    public = read_public_keys(tmp_path / "keys")
    assert list(public) == ["a", "b"]
    for name in ("a", "b"):
        private = read_private_key(private_path(tmp_path / "keys", name))
        public[name].verify(private.sign(b"said"), b"said")


def test_only_its_owner_may_read_a_private_key(tmp_path: Path) -> None:
    create_keys(tmp_path, ["a"])
    path = private_path(tmp_path, "a")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        read_private_key(path)


def test_a_key_is_never_replaced(tmp_path: Path) -> None:
    create_keys(tmp_path, ["a"])
    before = private_path(tmp_path, "a").read_bytes()
    with pytest.raises(UsageError, match=r"has a\.key, a\.pub already"):
        create_keys(tmp_path, ["b", "a"])
    assert private_path(tmp_path, "a").read_bytes() == before
    assert not private_path(tmp_path, "b").exists()


def test_the_name_of_a_process_never_leads_out_of_the_directory(tmp_path: Path) -> None:
    names = ["../evil", "a/b", "ä", "..", "%2F"]
    create_keys(tmp_path / "keys", names)
    assert [path.name for path in tmp_path.iterdir()] == ["keys"]
    assert {*read_public_keys(tmp_path / "keys")} == {*names}
    assert public_path(tmp_path, "a/b").name == "a%2Fb.pub"


@pytest.mark.parametrize("content", [b"", b"no key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_a_file_that_is_no_key_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    for path in (tmp_path / "a.key", tmp_path / "a.pub"):
        path.write_bytes(content)
        path.chmod(0o600)
    with pytest.raises(UsageError, match=r"a\.key holds no private Ed25519 key"):
        read_private_key(tmp_path / "a.key")
    with pytest.raises(UsageError, match=r"a\.pub holds no public Ed25519 key"):
        read_public_keys(tmp_path)


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as ser
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    key = X25519PrivateKey.generate()
    path = tmp_path / "a.key"
    path.write_bytes(key.private_bytes(ser.Encoding.PEM, ser.PrivateFormat.PKCS8, ser.NoEncryption()))
    path.chmod(0o600)
    with pytest.raises(UsageError, match="no private Ed25519 key"):
        read_private_key(path)


def test_a_directory_without_keys_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no public key"):
        read_public_keys(tmp_path)
    with pytest.raises(UsageError, match="is not a directory"):
        read_public_keys(tmp_path / "nothing")
    with pytest.raises(UsageError, match="cannot be read"):
        read_private_key(tmp_path / "nothing.key")


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    with pytest.raises(MissingExtra, match=r"strobe-snapshots\[sign\]"):
        create_keys(tmp_path, ["a"])
    assert list(tmp_path.iterdir()) == []


def test_the_extra_is_loaded_only_when_it_is_used() -> None:
    program = (
        "import sys; from strobe.storage.inspection import keys, verification; sys.exit('cryptography' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
