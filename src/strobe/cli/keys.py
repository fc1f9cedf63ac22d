"""`strobe keys`: the keys with which processes sign their part of each snapshot."""

from pathlib import Path
from typing import Annotated

import typer

from strobe.cli.commands import JsonOption, new_app
from strobe.cli.output import print_json, say
from strobe.storage.keys import create_keys

app = new_app("Make the keys that processes sign with, and that others check it with.")


@app.command()
def create(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to put them; made if need be.")],
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The names of the processes.")],
    json: JsonOption = False,
) -> int:
    """Make an Ed25519 key pair for each process: NAME.key for it alone, NAME.pub for whoever checks its signatures.

    \b
    Example:
      strobe keys create ./keys a b c d
    """
    files = create_keys(directory, names)
    if json:
        print_json({"directory": str(directory), "files": [path.name for path in files]})
        return 0
    for path in files:
        say(str(path))
    say()
    say("Give each process its .key and nobody else; keep the .pub files apart from the store, then:")
    say(f"    strobe snapshot verify --keys {directory} --store DIR")
    return 0
