"""What several of the examples need: sound, boxes, text, pictures; in Python here, in C beside it."""
