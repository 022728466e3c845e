"""What each command does; one file for a few that belong together."""
