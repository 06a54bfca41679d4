"""The dashboard: pages in a browser that show a running daemon, in a process of its own. Needs the extra `ui`.

It reads the daemon's control socket, the journal (read-only) and the public data of the service. It may import every
package but the command line. Start with `app.py` (which page has which address), then `sources.py` (where the data come
from) and `pages/` (pure functions from data to what a page shows). `request_checks.py` and `sign_in.py` decide who may
read and who may change.
"""
