"""Before torch is imported anywhere: one thread a process. The tests are many small ones, run in several processes."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
