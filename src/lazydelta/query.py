"""SQL over tables, under deltalake's names."""

from __future__ import annotations

from lazydelta.left_to_deltalake import refuse

__all__ = ["QueryBuilder"]


class QueryBuilder:
    """SQL over tables with DataFusion: deltalake does this."""

    def __init__(self, session_config: dict[str, str] | None = None) -> None:  # noqa: ARG002 - deltalake's parameter
        refuse("QueryBuilder", "run SQL")
