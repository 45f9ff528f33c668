"""The targets: what a chip is (`chip`), a file for each chip (`chips/`), the table of them (`table`)."""
