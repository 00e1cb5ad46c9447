"""Optimization: parameter split → one optimizer for both algorithms → learning rate per step."""
