"""The diff codec: exponent classes, Rice codes, rank and select, and the frames that hold them."""
