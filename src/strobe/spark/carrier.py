"""A function that brings the packages it needs with it, for the one place that Spark sends nothing to.

Spark Connect runs the function of `foreachBatch` in a Python process of the server, and unpickles it there before
anything that was added to the session can be imported. So what is pickled is the code of `call` itself (shipping.py
tells cloudpickle to), and it may use the standard library and Spark only, imported inside.
"""

from typing import Any


def call(archive: bytes, function: bytes, *arguments: Any) -> Any:
    """Unpickle `function` and call it, with the packages of the zip file `archive` at hand where there are none."""
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
    return cloudpickle.loads(function)(*arguments)
