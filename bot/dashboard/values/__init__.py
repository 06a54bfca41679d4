"""What several pages show: the daemon's last answers, how well a value is known, who a daemon is, and how values are
written.
"""
