"""Moves checkpoints and datasets with rclone: stores, the copy itself, its proof and its publication."""
