"""The `recoup` command: one file a command group; see `recoup.cli.main`."""

__all__: list[str] = []
