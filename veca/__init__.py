"""Elastic vision backbones: attention linear in image size, compute chosen at inference."""
