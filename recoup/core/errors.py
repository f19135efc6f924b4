"""The root of the error tree, and the errors of the lowest floor.

    RecoupError
      ConfigError        a configuration value, file or override is wrong
      StateError         a saved state cannot be resumed from
      (each higher floor adds its own branch: SchemaError, LogError, TableError, ...)

A message says what was expected, what came, where, and what to do; lower-case, no full stop.
"""


class RecoupError(Exception):
    """Base of every error a user can cause; the CLI prints it in one line and exits with code 1."""


class ConfigError(RecoupError):
    """A configuration value, file or override is not what the configuration class declares."""


class StateError(RecoupError):
    """A saved state (reader position, counters, run) has another version or shape than expected."""
