"""Stores whose checksums are valid, but whose contents were changed by someone who knows the format."""

import json
import shutil

import msgspec
from blake3 import blake3
from tests.support.mutating import json_text

from strobe.storage.checkpoints.checkpoint_files import checkpoint_name
from strobe.storage.files.checksummed_json import UNSEALED, seal

ENTRY = "log/{:020d}.json"


def encode(document):
    return msgspec.json.encode(document)


def chained(store, start=0, documents=None):
    """Seal entry `start` and all later ones again, so that each follows the one before; `documents` replaces some."""
    before = json.loads((store / "strobe.json").read_bytes())["blake3"]
    position = 0
    while (file := store / ENTRY.format(position)).exists():
        document = (documents or {}).get(position) or json.loads(file.read_bytes())
        if position >= start:
            if isinstance(document, dict) and "previous" in document:
                document["previous"] = before
            raw, before = sealed(document)
            file.write_bytes(raw)
        else:
            before = document["blake3"]
        position += 1


def sealed(document):
    """Return a document as bytes under its checksum, and the checksum."""
    if isinstance(document, dict):
        document = {"blake3": UNSEALED} | {name: value for name, value in document.items() if name != "blake3"}
    return seal(json_text(document, encode) + b"\n")


def documents_of(store):
    return [json.loads(file.read_bytes()) for file in sorted((store / "log").glob("*.json"))]


def commits_of(store):
    """Return the positions of the commits."""
    return [place for place, one in enumerate(documents_of(store)) if one["entry"]["type"] == "commit"]


def copied(store, place):
    shutil.rmtree(place, ignore_errors=True)
    return shutil.copytree(store, place)


def with_blob(store, position, choose, change):
    """Change the bytes of a blob that the manifest at `position` names, and name the changed blob in the manifest.

    `choose` takes the reference from the manifest, and `change` makes new bytes from the old ones.
    """
    document = documents_of(store)[position]
    ref = choose(document["entry"]["manifest"])
    place = store / "blobs" / f"{ref['begin']:020d}"
    raw = change((place / ref["blake3"]).read_bytes())
    ref["blake3"], ref["bytes"] = blake3(raw).hexdigest(), len(raw)
    (place / ref["blake3"]).write_bytes(raw)
    chained(store, position, {position: document})


def newest_checkpoint(store):
    """Return the file of the newest checkpoint, and its contents."""
    file = max((store / "checkpoints").glob("*.json"))
    return file, json.loads(file.read_bytes())


def replace_checkpoint(store, document):
    """Replace the newest checkpoint by another one, under a valid checksum."""
    file, before = newest_checkpoint(store)
    file.unlink()
    raw, digest = sealed(document)
    position = document.get("position")
    named = isinstance(position, int) and not isinstance(position, bool) and 0 <= position < 10**20
    (store / checkpoint_name(position if named else before["position"], digest)).write_bytes(raw)
