"""Benchmarks: every number is a ratio taken in one interleaved run. Only the command line imports them."""
