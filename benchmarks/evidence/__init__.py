"""
Evidence that a lock holds: faults, histories of what clients saw, and a check of the histories.

Run its commands from the root of the repository, such as `python -m benchmarks.evidence.matrix`.
"""
