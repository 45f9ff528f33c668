"""Boards: NXP's serial protocol and its client, checks before an upload, measured times."""
