"""Slurm 22.05 to 25.11 behind the port: its commands with argument lists, its JSON, and nothing believed unread."""
