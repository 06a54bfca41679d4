"""Used by several commands: the way to a running daemon, lines of events, the check of a config, option types,
number formats, files, crash reports.
"""
