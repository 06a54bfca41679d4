"""What several commands share: option types, figures, files, crash reports, the check of a config."""
