"""One file a chip, with `TARGETS`, or `REFUSED` and the reason. `targets.table` finds every module here."""
