"""Wire standards: bytes in, values out. Nothing here performs I/O, reads a clock or draws
randomness. `connection` has what all of them keep of a client, and the bytes for it."""
