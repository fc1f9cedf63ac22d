"""Functions that bring along the packages they need, for processes that do not get the session's archives.

Two processes beside the driver unpickle our objects before the session's archives can be imported: the stream planner
and, behind a Spark Connect server, the process that runs the function of `foreachBatch`. So the code of this module is
itself pickled (shipping.py registers it with cloudpickle). It may use only the standard library and Spark, imported
inside the functions.
"""

from typing import Any


def call(archive: bytes, function: bytes, *arguments: Any) -> Any:
    """Unpickle `function` and call it, with the packages of the zip file `archive`."""
    return load(archive, function)(*arguments)


def load(archive: bytes, pickled: bytes) -> Any:
    """Unpickle an object, with the packages of the zip file `archive` if Strobe is not installed."""
    import atexit
    import importlib.util
    import io
    import shutil
    import sys
    import tempfile
    import zipfile

    from pyspark import cloudpickle

    if importlib.util.find_spec("strobe") is None:
        # A private directory: others could have put files into one with a known name.
        directory = tempfile.mkdtemp(prefix="strobe-packages-")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        zipfile.ZipFile(io.BytesIO(archive)).extractall(directory)
        sys.path.insert(1, directory)
    return cloudpickle.loads(pickled)


def rebuild(archive: bytes, pickled: bytes) -> Any:
    """Return an object with the pickled class and attributes."""
    kind, attributes = load(archive, pickled)
    instance = object.__new__(kind)
    instance.__dict__.update(attributes)
    return instance
