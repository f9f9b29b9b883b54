"""The operations that layers are made of: a folder each, with the public function in `interface` and a file a backend.

Words for what is cut up, the same everywhere:
    piece  some whole samples, or some steps of one, whose intermediate results are in memory at a time;
    tile   what stays in a processor's cache (or, on a GPU, in registers) while all is done with it;
    block  neighbouring modes, features or positions that one thread or one program of a GPU owns.
"""
