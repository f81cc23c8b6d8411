"""Hangs: which rank a job waits for, from the Flight Recorder dumps of its ranks. Pure: `diagnose` is the judgement,
the other files give it what it compares."""
