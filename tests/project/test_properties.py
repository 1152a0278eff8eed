"""Keys of table properties are written in one table, which all other modules use."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import lazydelta
from lazydelta.options import Options
from lazydelta.protocol.properties import PROPERTIES, Key, TableProperties

PACKAGE = Path(lazydelta.__file__).parent
OWN = set(Options.__struct_encode_fields__)


def _raw_keys(module: Path) -> list[str]:
    values = [node.value for node in ast.walk(ast.parse(module.read_text("utf-8"))) if isinstance(node, ast.Constant)]
    words = [each.decode("latin-1") if isinstance(each, bytes) else each for each in values]
    keys = [each for each in words if isinstance(each, str) and re.fullmatch(r"delta\.[A-Za-z.]+", each)]
    return [each for each in keys if each not in OWN and not each.startswith("delta.lazy.")]


def test_no_other_module_spells_a_key() -> None:
    table = PACKAGE / "protocol" / "properties.py"
    raw = {str(each.relative_to(PACKAGE)): found for each in PACKAGE.rglob("*.py") if (found := _raw_keys(each))}
    assert set(raw.pop(str(table.relative_to(PACKAGE)))) == {
        value for name, value in vars(Key).items() if not name.startswith("_")
    }
    assert raw == {}


def test_every_typed_property_is_parsed() -> None:
    assert set(PROPERTIES) == set(TableProperties.__struct_fields__)
