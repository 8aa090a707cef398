"""The `rm-plugins` command, one module per subcommand."""
