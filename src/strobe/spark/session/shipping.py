"""Shipping of this package to the executors of a cluster that do not have it installed (D6).

Spark unpacks an archive into the working directory of each executor, under the name after a `#`. That directory is on
the path of its Python workers. So each package is an archive with its own name, and can be imported. Unlike a zip file
on the path, this also works for compiled modules. Workers need their own Spark, pyarrow and numpy, as for any Arrow
function, and the same Python version and platform as here, because of the compiled modules.
"""

import atexit
import functools
import io
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from strobe.errors import MissingComponent
from strobe.spark.session import bootstrap

_NEEDED = ("strobe", "pyspark_strobe", "msgspec", "xxhash", "blake3")
_OPTIONAL = ("obstore",)
"""For stores in an object store."""
PACKAGES = (*_NEEDED, *(name for name in _OPTIONAL if find_spec(name) is not None))
"""Strobe and the packages that it needs to read a store."""

_SHIPPED = "strobe.shipped"
"""A setting of the session that marks the packages as shipped."""

cloudpickle.register_pickle_by_value(bootstrap)  # type: ignore[no-untyped-call]


def is_remote(spark: SparkSession) -> bool:
    """Return whether the session is on a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def ship(spark: SparkSession) -> None:
    """Send the packages to all executors of `spark`, including later ones; once per session."""
    if is_shipped(spark):
        return
    # Executors that start later fetch the files then, so they are kept until this process ends.
    directory = Path(tempfile.mkdtemp(prefix="strobe-shipping-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    for package in PACKAGES:
        path = directory / f"{package}.zip"
        path.write_bytes(packed((package,), flat=True))
        _add_archive(spark, f"{path}#{package}")
    spark.conf.set(_SHIPPED, "true")


def is_shipped(spark: SparkSession) -> bool:
    """Return whether the packages were shipped to the session."""
    return spark.conf.get(_SHIPPED, None) is not None


def require_on_workers(spark: SparkSession, package: str, purpose: str) -> None:
    """Raise MissingComponent if the workers lack a package that is not shipped, for an error of one line."""
    if not is_shipped(spark):
        return

    def look(batches: Any) -> Any:
        import importlib.util

        import pyarrow

        for _ in batches:
            yield pyarrow.RecordBatch.from_pydict({"found": [importlib.util.find_spec(package) is not None]})

    if not all(row.found for row in spark.range(1).mapInArrow(look, "found boolean").collect()):
        raise MissingComponent(f"the Python of the workers has no {package!r}, which {purpose}; install it there")


class ShipsPackages:
    """Makes a data source bring its packages along: the stream planner does not get the session's archives."""

    def __reduce__(self) -> tuple[Any, ...]:
        pickled = cloudpickle.dumps((type(self), self.__dict__))  # type: ignore[no-untyped-call]
        return bootstrap.rebuild, (packed(PACKAGES), pickled)


def carried(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with everything that it needs in a process without Strobe."""
    pickled = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    return functools.partial(bootstrap.call, packed(PACKAGES), pickled)


def _add_archive(spark: SparkSession, place: str) -> None:
    if is_remote(spark):
        spark.addArtifacts(place, archive=True)
    else:
        spark.sparkContext.addArchive(place)


@functools.cache
def packed(packages: tuple[str, ...], flat: bool = False) -> bytes:
    """Return a zip file of the packages; `flat` omits their names from its paths."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for package in packages:
            root = _root(package)
            for path in _files(root):
                archive.write(path, path.relative_to(root if flat else root.parent))
    return buffer.getvalue()


def _root(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None, f"{package} is installed with Strobe"
    assert spec.submodule_search_locations, f"{package} is a package"
    return Path(spec.submodule_search_locations[0])


def _files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path
