"""Kinds of jobs, each a small file behind `JobKind`."""
