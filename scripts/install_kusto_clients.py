"""Install Microsoft's Kusto clients for Node and Java, with which the slow tests ask the Kusto endpoint.

Node's comes from npm. Ivy, which comes with PySpark, fetches Java's with everything it needs, 20 MB.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from scripts.install_jdbc import retrieve
from scripts.npm_cache import NpmPackage, cache_root

__all__ = ["NODE", "jars"]

NODE = NpmPackage("azure-kusto-data", "7.0.4", "azure-kusto-node", "dist-esm/src/index.js")
_JAVA_VERSION = "7.0.6"


def jars() -> Path:
    """Return the folder where the Java client is, or will be."""
    return cache_root() / f"azure-kusto-java-{_JAVA_VERSION}"


def install_java() -> None:
    """Fetch the Java client unless it is there; its folder appears when it is whole."""
    target = jars()
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{target.name}.tmp-", dir=target.parent))
    try:
        retrieve(scratch, "com.microsoft.azure.kusto", "kusto-data", _JAVA_VERSION)
        (scratch / "jars").rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    if "--is-there" in sys.argv:
        sys.exit(not (jars().exists() and NODE.entry_point(NODE.location()).exists()))
    install_java()
    sys.exit(NODE.command("Microsoft's Kusto client for Node"))
