"""Used by several commands: the check of a config, option types, number formats, files, crash reports."""
