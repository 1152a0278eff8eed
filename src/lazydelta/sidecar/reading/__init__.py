"""The base of a scan read from a sidecar.

Whatever is wrong with a sidecar is a ``SidecarError`` here, and sends the scan to the checkpoint.
"""

__all__ = ["base", "delta_spans", "discovery", "foreign", "group_choice"]
