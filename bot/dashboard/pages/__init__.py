"""What each page shows, as pure functions: answers of the daemon, the journal and the service in, plain values for a
template out.
"""
