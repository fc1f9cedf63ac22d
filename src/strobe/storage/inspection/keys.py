"""Key files: NAME.key, readable only by its process, and NAME.pub, which is public (P1).

Both are PEM, as other tools read and write them. The name is that of the process. Characters not allowed in a file name
are percent-encoded, such as %2F.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from strobe.causality.signatures import require_cryptography
from strobe.errors import UsageError
from strobe.private_files import create_file, make_directories, open_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PRIVATE, PUBLIC = ".key", ".pub"
_KEY_BYTES_MAX = 64 << 10


def create_keys(directory: Path, names: Sequence[str]) -> list[Path]:
    """Create a new pair for each of `names` and return the files; existing keys are never replaced."""
    require_cryptography()
    paths = [path for name in names for path in (private_path(directory, name), public_path(directory, name))]
    taken = [path.name for path in paths if path.exists()]
    if taken:
        raise UsageError(
            f"{directory} has {', '.join(taken)} already, and signatures of a replaced key cannot be checked; "
            "choose another directory, or remove the files yourself"
        )
    make_directories(directory)
    for name in dict.fromkeys(names):
        _create_pair(directory, name)
    return paths


def private_path(directory: Path, name: str) -> Path:
    return directory / f"{quote(name, safe='')}{PRIVATE}"


def public_path(directory: Path, name: str) -> Path:
    return directory / f"{quote(name, safe='')}{PUBLIC}"


def read_private_key(path: Path) -> "Ed25519PrivateKey":
    """Return the key in NAME.key; raise UsageError if it is invalid or readable by others."""
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    raw = _read(path)
    if path.stat().st_mode & 0o077:
        raise UsageError(f"{path}: other users can read this private key; run `chmod 600 {path}`")
    with suppress(ValueError, TypeError):
        key = load_pem_private_key(raw, password=None)
        if isinstance(key, Ed25519PrivateKey):
            return key
    raise UsageError(f"{path} holds no private Ed25519 key; make one: strobe keys create {path.parent} {path.stem}")


def read_public_keys(directory: Path) -> "dict[str, Ed25519PublicKey]":
    """Return the public keys in `directory`, by process name."""
    require_cryptography()
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory; give the one with the public keys, NAME{PUBLIC}")
    keys = {unquote(path.stem): _read_public_key(path) for path in sorted(directory.glob(f"*{PUBLIC}"))}
    if not keys:
        raise UsageError(f"{directory} has no public key (NAME{PUBLIC}); make them: strobe keys create DIR NAME...")
    return keys


def _read_public_key(path: Path) -> "Ed25519PublicKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    with suppress(ValueError):
        key = load_pem_public_key(_read(path))
        if isinstance(key, Ed25519PublicKey):
            return key
    raise UsageError(f"{path} holds no public Ed25519 key; copy it again from where it was made")


def _create_pair(directory: Path, name: str) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    create_file(private_path(directory, name), private, 0o600)
    # A public key must be readable by everyone, whatever the umask.
    create_file(public_path(directory, name), public, 0o644)


def _read(path: Path) -> bytes:
    try:
        with open_file(path, follow=True) as file:  # keys are often symbolic links into a mounted directory
            return file.read(_KEY_BYTES_MAX)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
