"""What deltalake's users type that is no concept of ours: its parameters, its answers, and what only it does.

Each module stands where in the layers it is needed: refusals below the table, calls of the writer and of maintenance
above these. The modules that are named as deltalake's own lie beside this package, because Python looks for them there.
"""
