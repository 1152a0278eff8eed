"""Install Microsoft's analyser of KQL, which the tests compare our reading of queries with."""

from __future__ import annotations

import sys

from scripts.npm_cache import NpmPackage

KUSTO_VERSION = "12.4.1"
ANALYSER = NpmPackage("@kusto/language-service-next", KUSTO_VERSION, "kusto-language", "Kusto.Language.Bridge.min.js")


if __name__ == "__main__":
    sys.exit(ANALYSER.command("Microsoft's analyser of KQL"))
