"""``pyarrow.compute`` in little: each function is made when it is first called, from the one that Arrow has registered.

PyArrow's module makes three hundred functions with signatures and docstrings at its import, a third of the time that
the rest of PyArrow takes; what finds the files of an hour calls a dozen of them. Functions look and behave alike, and
names that are not known here are taken from there. Methods of arrays and batches that compute (``filter``, ``take``,
``cast``, ``fill_null``) load that module too, so on the way to the first file their functions are called instead.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyarrow._compute import Expression

__all__ = ["Expression", "cast", "fill_null", "take"]

# What is written by hand in PyArrow's module is more than a call of the function of its name, and is taken from there.
_BY_HAND = frozenset(
    {"bottom_k_unstable", "cast", "field", "fill_null", "index", "random", "scalar", "take", "top_k_unstable"}
)
_KEYWORDS = {"and_": "and", "or_": "or"}


@cache
def _arrow() -> Any:
    """Return what calls Arrow's functions: nine megabytes that who only opens a table does without."""
    from pyarrow import _compute  # noqa: PLC0415

    return _compute


def __getattr__(name: str) -> Any:
    # Tools that look at modules ask for `__path__` and the like.
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = _arrow().Expression if name == "Expression" else None if name in _BY_HAND else _registered(name)
    if found is None:
        import pyarrow.compute  # noqa: PLC0415 - see above

        found = getattr(pyarrow.compute, name)
    # The next call finds it without this function.
    globals()[name] = found
    return found


def cast(values: Any, target_type: pa.DataType, *, safe: bool = True) -> Any:
    """Return values of another type; ``safe=False`` lets them overflow or be cut."""
    arrow = _arrow()
    options = arrow.CastOptions.safe(target_type) if safe else arrow.CastOptions.unsafe(target_type)
    return arrow.call_function("cast", [values], options)


def fill_null(values: Any, fill_value: Any) -> Any:
    """Return values with another in the place of nulls."""
    if isinstance(fill_value, pa.Scalar | pa.Array | pa.ChunkedArray) and values.type == fill_value.type:
        return _arrow().call_function("coalesce", [values, fill_value])
    # A Python value: how it becomes one of Arrow is PyArrow's affair.
    import pyarrow.compute  # noqa: PLC0415 - see above

    return pyarrow.compute.fill_null(values, fill_value)


def take(values: Any, indices: pa.Array, memory_pool: pa.MemoryPool | None = None) -> Any:
    """Return the values, or rows, at these positions."""
    arrow = _arrow()
    return arrow.call_function("take", [values, indices], arrow.TakeOptions(), memory_pool)


def _registered(name: str) -> Callable[..., Any] | None:
    """Return a function of Arrow's registry, None if it has none of this name that could be called."""
    arrow = _arrow()
    try:
        function = arrow.get_function(_KEYWORDS.get(name, name))
    except KeyError:
        return None
    options_class: Any = getattr(arrow, function._doc.options_class or "", None)  # noqa: SLF001 - as PyArrow does it
    arity = function.arity
    expression = arrow.Expression

    def call(*args: Any, **options: Any) -> Any:
        # What follows the arguments are options. A function of any number of arguments takes options by name alone.
        values, more = (args, ()) if arity is Ellipsis else (args[:arity], args[arity:])
        if len(values) != arity and arity is not Ellipsis:
            raise TypeError(f"{name}() takes {arity} values, not {len(values)}")
        if options_class is None and (more or options):
            raise TypeError(f"{name}() takes no options")
        chosen = options_class(*more, **options) if more or options else None
        if values and isinstance(values[0], expression):
            return expression._call(function.name, list(values), chosen)  # noqa: SLF001 - as PyArrow does it
        return function.call(values, chosen)

    return call
