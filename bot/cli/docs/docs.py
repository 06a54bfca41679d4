"""`bot docs`: show the documentation site on this machine, or build it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from bot.cli.docs.paths import SITE

PORT: Final = 8711

# The pages may load nothing from another host, whatever the theme contains. Its scripts are inline.
CSP: Final = (
    "default-src 'self' data: 'unsafe-inline'; worker-src 'self' blob:; frame-ancestors 'none'; base-uri 'self'"
)

EPILOG = """\b
Examples:
  bot docs
  bot docs --port 0

\b
The pages need no network. `make docs` builds them in a clone of the project.
"""


@click.command(epilog=EPILOG)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT,
    show_default=True,
    help="Port on 127.0.0.1; 0 takes a free one.",
)
@click.option(
    "--build", "is_build", is_flag=True, help="Build the site into build/site and end; `make docs` does this."
)
def docs(port: int, *, is_build: bool) -> None:
    """Show the documentation in a browser: prints the address and serves the built pages until Ctrl-C."""
    if is_build:
        from bot.cli.docs.builder import build

        build()
        click.echo(f"built {SITE}: open {SITE / 'index.html'}, or run `bot docs`")
        return
    serve(SITE, port)


def serve(site: Path, port: int) -> None:
    """Serve the files of `site` on loopback until a signal ends the process."""
    # imported here, like the server: the help text needs neither
    from bot.errors import ConfigError

    if not (site / "index.html").is_file():
        raise ConfigError(
            f"{site} has no documentation site: run `make docs` in a clone of the project (it installs zensical), then"
            " `bot docs` there"
        )
    import uvicorn

    config = uvicorn.Config(application(site), host="127.0.0.1", port=port, log_level="warning", server_header=False)
    with config.bind_socket() as listener:
        # Who reads the address may connect at once.
        listener.listen()
        click.echo(f"http://127.0.0.1:{listener.getsockname()[1]}/index.html  (Ctrl-C ends it)")
        # uvicorn raises the interrupt again after its end
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def application(site: Path) -> Callable[..., Awaitable[Any]]:
    """The ASGI application of the site: its files, with a content policy on every response."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.routing import Mount
    from starlette.staticfiles import StaticFiles

    class Pages(StaticFiles):
        def file_response(self, *args: Any, **options: Any) -> Any:
            response = super().file_response(*args, **options)
            response.headers["Content-Security-Policy"] = CSP
            return response

    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    return Starlette(routes=[Mount("/", Pages(directory=site, html=True))], middleware=[hosts])
