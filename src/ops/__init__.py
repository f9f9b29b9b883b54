"""The operations that layers are made of: one folder each, with the public function in `interface` and one file per
backend.

Words for parts of the work, the same everywhere:
    piece  whole samples, or a run of steps of one sample, whose intermediate results are in memory at the same time;
    tile   data that stays in a processor's cache (on a GPU, in registers) while it is worked on;
    block  neighbouring modes, features or positions that one thread or one GPU program owns.
"""
