"""Commands that tell what there is: ops, targets, explain, doctor, completion."""
