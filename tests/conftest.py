"""Hypothesis without deadlines: on a fresh clone the first example of a test may wait for a kernel to be compiled."""

from hypothesis import HealthCheck, settings

settings.register_profile("recoup", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("recoup")
