"""``libdelta_lazy.so``: lazy scans for C, C++, C# and other languages that call C, with Python embedded.

``python -m lazydelta.capi.build`` builds it; this needs the extra ``capi`` and a C compiler. ``delta_lazy.h`` documents
its functions.
"""
