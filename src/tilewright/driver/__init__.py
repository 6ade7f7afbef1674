"""The pipeline's stages wired together, behind each front door."""

import time

LOADED_AT = time.time()  # sources that are newer are not those that run
