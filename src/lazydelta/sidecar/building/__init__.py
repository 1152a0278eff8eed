"""Making sidecars: built anew, or refreshed from an earlier one."""
