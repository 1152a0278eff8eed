"""Lightweight ``pyarrow.compute``: wraps functions of Arrow's registry when they are first called.

On import, PyArrow's module creates three hundred functions with signatures and docstrings, which takes 0.034 s of CPU,
a third of the time of the rest of PyArrow. Finding the files of an hour calls a dozen of them. The functions here
behave the same, and unknown names are taken from PyArrow's module. Methods of arrays and batches that compute
(``filter``, ``take``, ``cast``, ``fill_null``) load that module too, so code on the way to the first file calls these
functions instead.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyarrow._compute import Expression

__all__ = ["Expression", "cast", "expression_text", "fill_null", "keep", "take"]

# Functions written by hand in PyArrow do more than call the registered function of that name, so they are taken from
# there.
_BY_HAND = frozenset(
    {"bottom_k_unstable", "cast", "field", "fill_null", "index", "random", "scalar", "take", "top_k_unstable"}
)
_KEYWORDS = {"and_": "and", "or_": "or"}


@cache
def _arrow() -> Any:
    """Return the module that calls Arrow's functions: nine megabytes that just opening a table does not need."""
    from pyarrow import _compute  # noqa: PLC0415

    return _compute


def __getattr__(name: str) -> Any:
    # Tools that inspect modules ask for `__path__` and the like.
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = _arrow().Expression if name == "Expression" else None if name in _BY_HAND else _registered(name)
    if found is None:
        import pyarrow.compute  # noqa: PLC0415 - see above

        found = getattr(pyarrow.compute, name)
    # The next access finds it without this function.
    globals()[name] = found
    return found


def cast(values: Any, target_type: pa.DataType, *, safe: bool = True) -> Any:
    """Return values cast to another type. ``safe=False`` allows overflow and truncation."""
    arrow = _arrow()
    options = arrow.CastOptions.safe(target_type) if safe else arrow.CastOptions.unsafe(target_type)
    return arrow.call_function("cast", [values], options)


def fill_null(values: Any, fill_value: Any) -> Any:
    """Return values with nulls replaced."""
    if isinstance(fill_value, pa.Scalar | pa.Array | pa.ChunkedArray) and values.type == fill_value.type:
        return _arrow().call_function("coalesce", [values, fill_value])
    # PyArrow decides how a Python value becomes an Arrow value.
    import pyarrow.compute  # noqa: PLC0415 - see above

    return pyarrow.compute.fill_null(values, fill_value)


def take(values: Any, indices: pa.Array, memory_pool: pa.MemoryPool | None = None) -> Any:
    """Return the values or rows at these positions."""
    arrow = _arrow()
    return arrow.call_function("take", [values, indices], arrow.TakeOptions(), memory_pool)


def keep(rows: Any, mask: pa.BooleanArray, memory_pool: pa.MemoryPool | None = None) -> Any:
    """Return the values or rows for which the mask is true."""
    arrow = _arrow()
    return arrow.call_function("filter", [rows, mask], arrow.FilterOptions(), memory_pool)


def expression_text(expression: object) -> str:
    """Return an expression as a string. PyArrow cuts long strings inside a character, and then fails."""
    try:
        return str(expression)
    except UnicodeDecodeError:
        return "a PyArrow expression with long strings"


def _registered(name: str) -> Callable[..., Any] | None:
    """Return a function of Arrow's registry, or None if there is no callable one of this name."""
    arrow = _arrow()
    try:
        function = arrow.get_function(_KEYWORDS.get(name, name))
    except KeyError:
        return None
    options_class: Any = getattr(arrow, function._doc.options_class or "", None)  # noqa: SLF001 - as in PyArrow
    arity = function.arity
    expression = arrow.Expression

    def call(*args: Any, **options: Any) -> Any:
        # Further arguments are options. A variadic function takes options by keyword only.
        values, more = (args, ()) if arity is Ellipsis else (args[:arity], args[arity:])
        if len(values) != arity and arity is not Ellipsis:
            raise TypeError(f"{name}() takes {arity} values, not {len(values)}")
        if options_class is None and (more or options):
            raise TypeError(f"{name}() takes no options")
        chosen = options_class(*more, **options) if more or options else None
        if values and isinstance(values[0], expression):
            return expression._call(function.name, list(values), chosen)  # noqa: SLF001 - as in PyArrow
        return function.call(values, chosen)

    return call
