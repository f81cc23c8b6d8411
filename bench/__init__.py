"""Benches: every figure that we claim, measured beside its alternative in the same run. See docs/performance.md."""
