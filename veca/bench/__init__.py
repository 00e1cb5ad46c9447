"""Benchmarks: every number is a ratio taken in one interleaved run. Only the command line imports them.

harness (cases, goals, table, check) · model · data · training · plan (a recipe's cost, by arithmetic)
"""
