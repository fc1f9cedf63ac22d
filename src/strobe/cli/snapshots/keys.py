"""`strobe keys`: the keys with which processes sign their part of each snapshot."""

from pathlib import Path
from typing import Annotated

import typer

from strobe.cli.shell.commands import JsonOption, new_app
from strobe.cli.shell.output import print_json, print_line
from strobe.storage.inspection.keys import create_keys

app = new_app("Create the keys with which processes sign, and the public keys that verify signatures.")


@app.command()
def create(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory for the keys; created if absent.")],
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The names of the processes.")],
    json: JsonOption = False,
) -> int:
    """Create an Ed25519 key pair for each process: NAME.key to sign with, NAME.pub to verify its signatures.

    \b
    Example:
      strobe keys create ./keys a b c d
    """
    files = create_keys(directory, names)
    if json:
        print_json({"directory": str(directory), "files": [path.name for path in files]})
        return 0
    for path in files:
        print_line(str(path))
    print_line()
    print_line("Give each .key file only to its process, and keep the .pub files outside the store. Then:")
    print_line(f"    strobe snapshot verify --keys {directory} --store DIR")
    return 0
