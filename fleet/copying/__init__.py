"""Copies of checkpoints and datasets: what is to be where, in which order, and what proves that it is. Pure.

The bytes are moved by `activities/copying/`; docs/copies.md tells the protocol.
"""
