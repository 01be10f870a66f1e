"""Property tests draw the same examples on every machine and have the time they need."""

from hypothesis import settings

settings.register_profile("same", deadline=None, derandomize=True)
settings.load_profile("same")
