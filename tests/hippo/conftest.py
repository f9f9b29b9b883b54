import sys
from pathlib import Path

# The test folders are not packages; this makes hippo_cases importable from the tests beside it.
sys.path.insert(0, str(Path(__file__).parent))
