"""Fetch Arrow's JDBC driver for Flight SQL, with which the tests ask our server as Java programs would.

Ivy, which comes with PySpark, fetches it; the digest says that it is the one that the tests were written with.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.npm_cache import cache_root

__all__ = ["DRIVER_VERSION", "install", "java", "location", "retrieve"]

DRIVER_VERSION = "18.3.0"
_MODULE = "flight-sql-jdbc-driver"
_SHA256 = "3f418b46c880e263558c5de669bdbede2c5d4375527ced116fb29f795b03704c"


def location() -> Path:
    """Return where the driver is, or will be."""
    return cache_root() / f"{_MODULE}-{DRIVER_VERSION}" / f"{_MODULE}-{DRIVER_VERSION}.jar"


def java() -> str | None:
    """Return the path of a Java that is recent enough, None where there is none."""
    found = subprocess.run([Path(__file__).with_name("find_java")], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def retrieve(scratch: Path, organisation: str, module: str, version: str, *options: str) -> None:
    """Fetch a module, by default with what it depends on, into the folder ``jars`` of a scratch folder."""
    program = java()
    if program is None:
        raise SystemExit(f"{module} is fetched with Java, which was not found")
    import pyspark  # noqa: PLC0415 - the tests import this module also where the package is absent

    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    command = [program, f"-Divy.default.ivy.user.dir={scratch}", "-jar", str(ivy)]
    command += ["-dependency", organisation, module, version, "-confs", "default", *options]
    # Some modules call their JAR a bundle.
    command += ["-types", "jar", "bundle", "-retrieve", f"{scratch}/jars/[artifact]-[revision].[ext]"]
    subprocess.run(command, check=True)


def install() -> Path:
    """Fetch the driver unless it is there; it appears under its name when it is whole."""
    target = location()
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="tmp-", dir=target.parent))
    try:
        retrieve(scratch, "org.apache.arrow", _MODULE, DRIVER_VERSION, "-notransitive")
        fetched = scratch / "jars" / f"{_MODULE}-{DRIVER_VERSION}.jar"
        found = hashlib.sha256(fetched.read_bytes()).hexdigest()
        if found != _SHA256:
            raise SystemExit(f"the JDBC driver has the digest {found}, not {_SHA256}")
        fetched.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


if __name__ == "__main__":
    if "--is-there" in sys.argv:
        sys.exit(not location().exists())
    print(f"the JDBC driver is in {install()}")
