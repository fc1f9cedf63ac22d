"""Functions that bring the packages they need with them, for the places that Spark sends nothing to.

Two processes beside the driver unpickle what is ours before anything that was added to the session can be imported: the
one that plans a stream, and, behind a Spark Connect server, the one that runs the function of `foreachBatch`. So what
is pickled is the code of this module itself (shipping.py tells cloudpickle to), and it may use the standard library
and Spark only, imported inside.
"""

from typing import Any


def call(archive: bytes, function: bytes, *arguments: Any) -> Any:
    """Unpickle `function` and call it, with the packages of the zip file `archive` at hand."""
    return load(archive, function)(*arguments)


def load(archive: bytes, pickled: bytes) -> Any:
    """Unpickle an object, with the packages of the zip file `archive` at hand where there are none."""
    import atexit
    import importlib.util
    import io
    import shutil
    import sys
    import tempfile
    import zipfile

    from pyspark import cloudpickle

    if importlib.util.find_spec("strobe") is None:
        # A directory of this process's own: whatever lay in a known place could have been put there by anybody.
        directory = tempfile.mkdtemp(prefix="strobe-packages-")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        zipfile.ZipFile(io.BytesIO(archive)).extractall(directory)
        sys.path.insert(1, directory)
    return cloudpickle.loads(pickled)


def rebuild(archive: bytes, pickled: bytes) -> Any:
    """Return an object of the class, and with the attributes, that are pickled."""
    kind, attributes = load(archive, pickled)
    instance = object.__new__(kind)
    instance.__dict__.update(attributes)
    return instance
