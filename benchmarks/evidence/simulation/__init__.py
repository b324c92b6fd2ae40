"""
The simulation: random programs and faults, in virtual time, on masters in memory.

`python -m benchmarks.evidence.simulation` runs it; see `__main__`.
"""
