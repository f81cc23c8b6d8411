"""The runbooks: durable order of steps, deterministic, no I/O."""
