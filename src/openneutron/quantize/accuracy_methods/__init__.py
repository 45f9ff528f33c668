"""The accuracy methods: a file for each in `plan.METHODS`, with `apply`; `judged` tries them on copies."""
