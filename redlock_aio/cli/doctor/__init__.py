"""
``redlock doctor``: the examination of the masters.

    command ──► examination, probes ──► facts ──► one_master, all_masters ──► findings

Only `examination` and `probes` ask a server. The others judge values.
"""
