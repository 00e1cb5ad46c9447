"""Benchmarks: every number is a ratio taken in one interleaved run. A leaf: only the command line imports it."""
