"""``libdelta_lazy.so``: lazy scans for C, C++, C# and whatever else calls C, with a Python inside.

``python -m lazydelta.capi.build`` makes it, with the extra ``capi`` and a C compiler; ``delta_lazy.h`` says what it
has.
"""
