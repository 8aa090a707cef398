"""`python -m rm_plugins`, and `accelerate launch -m rm_plugins`: the command line."""

from rm_plugins.cli.main import main

main()
