"""Training checkpoints: which formats there are, which files one holds, and what proves that it is complete.

One file a format. Everything here is judgement over a listing and small metadata files that somebody else reads
(`activities/checkpoints.py`); nothing here opens a file, and no pickle is ever executed.
"""
