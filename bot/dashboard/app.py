"""The application: which address shows which page.

Reads are GET; changes are POST: to `/sign-in`, `/sign-out`, `/runs`, `/control/...`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from sse_starlette.sse import EventSourceResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from bot.clock import SystemClock
from bot.dashboard import controls
from bot.dashboard.backtests import NoRun
from bot.dashboard.documents import PageFiles
from bot.dashboard.open_pages import CHART, PageUpdates
from bot.dashboard.page_models import PAGES, Data, NoSuchPage, PageSources, PageSpec
from bot.dashboard.pages import frame
from bot.dashboard.pages.trades import csv_rows
from bot.dashboard.request_checks import SIGN_IN, RequestChecks, form_of, refused
from bot.dashboard.sign_in import COOKIE_S, DashboardSignIn
from bot.dashboard.sources import DaemonSource
from bot.dashboard.values.identity import Moved
from bot.dashboard.values.reading import Reading
from bot.errors import BotError
from bot.logs import log
from bot.plain_text import csv_text
from bot.runtime.journal.round_trips import COLUMNS

REPORT_POLICY: Final = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
    " blob:; font-src data:"
)
# limit of open pages; pages that are open at the same address are rendered only once
STREAMS_MAX: Final = 100
ADDRESSES: Final = (
    ("/", "overview"),
    ("/market", "market"),
    ("/market/{coin}", "market"),
    ("/trades", "trades"),
    ("/strategies", "strategies"),
    ("/strategies/{name}", "strategy"),
    ("/events", "events"),
    ("/explain/{name}", "explain"),
    ("/guardians", "guardians"),
    ("/approvals", "approvals"),
    ("/runs", "runs"),
    ("/proof", "proof"),
    ("/fleet", "fleet"),
    ("/runs/compare", "compare"),
)
OTHER_SIGN_IN: Final = "the token of the page is missing or belongs to another sign-in: open the page again"
# fragments of every page
FRAME: Final = ("status", "notice")


class ControlTarget(NamedTuple):
    """The daemon that a control is for. `folder` and `name` are those of a daemon of the fleet."""

    daemon: DaemonSource
    folder: str = ""
    name: str = ""

    def subject(self, action: controls.ControlAction, seen: controls.Seen, name: str) -> controls.Subject | None:
        """What the control acts on. Of another daemon only the whole account or all strategies."""
        subject = None if self.folder and name else action.subject(seen, name)
        if subject is None or not self.folder:
            return subject
        return subject._replace(text=f"{subject.text}, by the daemon {self.name} in {self.folder}")

    def confirmation(self, action: controls.ControlAction, name: str, subject: controls.Subject) -> Data:
        """The values of the page that asks. For a daemon of the fleet the person types its name."""
        asked = controls.confirmation(action, name, subject) | {"folder": self.folder}
        if not self.folder:
            return asked | {"back": "/"}
        return asked | {"word": self.name, "subject": f"{asked['subject']} of {self.name}", "back": "/fleet"}


class Dashboard:
    """The routes. `control`: changes are allowed."""

    def __init__(self, sources: PageSources, documents: PageFiles, sign_in: DashboardSignIn, *, control: bool) -> None:
        self._sources = sources
        self._documents = documents
        self._sign_in = sign_in
        self._control = control
        self._updates = PageUpdates(SystemClock().now_ms)
        self.stopping = self._updates.stopping

    def app(self) -> RequestChecks:
        routes = [
            Route(SIGN_IN, self.sign_in_form),
            Route(SIGN_IN, self.sign_in, methods=["POST"]),
            Route("/sign-out", self.sign_out, methods=["POST"]),
            Route("/static/{name}", self.static),
            Route("/stream/{page}", self.stream),
            Route("/data/value", self.value_data),
            Route("/data/market/{coin}", self.market_data),
            Route("/data/trades.csv", self.trades_data),
            Route("/runs", self.start_backtest, methods=["POST"]),
            Route("/runs/{name}/report", self.report),
            Route("/control/{action}", self.control_form),
            Route("/control/{action}", self.change, methods=["POST"]),
            *(Route(address, self._page_route(PAGES[name])) for address, name in ADDRESSES),
        ]
        return RequestChecks(
            Starlette(routes=routes, lifespan=self._lifespan, exception_handlers={404: self._missing}),
            sign_in=self._sign_in,
            files=self._documents.static,
        )

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        preparing = asyncio.create_task(self._prepare())
        yield
        preparing.cancel()
        await self._sources.backtests.close()
        await self._sources.service.close()

    async def _prepare(self) -> None:
        """What would make the first page slow: the closed trades, which grow with the journal, and the templates."""
        await self._sources.daemon.closed_trades()
        await asyncio.to_thread(self._documents.compile)

    # -- pages

    def _page_route(self, page: PageSpec) -> Callable[[Request], Awaitable[Response]]:
        async def show(request: Request) -> Response:
            return await self._page(page, request)

        return show

    async def _page(self, page: PageSpec, request: Request) -> Response:
        query = dict(request.query_params) | request.path_params
        values = await self._values(page, query)
        if isinstance(values, NoSuchPage):
            return await self._message(404, "Not found", str(values))
        # The updates of the page name what it was loaded for.
        about = query | values["identity"]
        stream = request.url_for("stream", page=page.name).include_query_params(
            **{name: str(value) for name, value in about.items()}
        )
        address = f"{stream.path}?{stream.query}" if stream.query else stream.path
        return self._html(
            page.template,
            {"title": page.title, "token": self._sign_in.change_token(request.state.cookie)}
            | values
            | {"page": page.name, "stream": address if page.fragments else ""},
        )

    async def _values(self, page: PageSpec, query: Mapping[str, str]) -> Data | NoSuchPage:
        try:
            return await page.values(self._sources, query)
        except Moved as error:
            return NoSuchPage(str(error))
        except NoSuchPage as error:
            return error

    async def _message(self, status: int, title: str, text: str) -> Response:
        values = await self._frame()
        return self._html("message", values | {"title": title, "text": text, "page": "", "stream": ""}, status)

    async def _frame(self) -> Data:
        snapshot = await self._sources.daemon.snapshot()
        return {"frame": frame.frame(snapshot, now_ms=SystemClock().now_ms())}

    async def _missing(self, request: Request, _error: Exception) -> Response:
        return await self._message(404, "Not found", f"There is no page {request.url.path}.")

    def _html(self, template: str, values: Data, status: int = 200) -> Response:
        pages = [page for page in frame.PAGES if page[0] != "fleet" or self._sources.fleet is not None]
        return HTMLResponse(self._documents.page(template, values | {"pages": pages, "control": self._control}), status)

    # -- data and updates

    async def value_data(self, request: Request) -> Response:
        return await self._chart(PAGES["overview"], request)

    async def market_data(self, request: Request) -> Response:
        return await self._chart(PAGES["market"], request)

    async def trades_data(self, request: Request) -> Response:
        """The closed trades that the filters of the address leave, with raw values."""
        values = await self._values(PAGES["trades"], dict(request.query_params))
        if isinstance(values, NoSuchPage):
            return refused(404, str(values))
        headers = {"content-disposition": 'attachment; filename="trades.csv"'}
        return Response(csv_text(csv_rows(values["csv_rows"]), COLUMNS), media_type="text/csv", headers=headers)

    async def _chart(self, page: PageSpec, request: Request) -> Response:
        values = await self._values(page, dict(request.query_params) | request.path_params)
        return refused(404, str(values)) if isinstance(values, NoSuchPage) else JSONResponse(values["chart"])

    async def stream(self, request: Request) -> Response:
        """Server-sent events: each second the fragments of the page that have changed, and the end of its chart."""
        page = PAGES.get(request.path_params["page"])
        if page is None:
            return refused(404, "no such page")
        if self._updates.streams >= STREAMS_MAX:
            return refused(503, f"{STREAMS_MAX} pages are open; close one")
        query = dict(request.query_params)
        if missing := [name for name in page.identity if name not in query]:
            return refused(404, f"the updates of this page need {' and '.join(missing)}: reload the page")
        return EventSourceResponse(self.updates(page, query, request.state.cookie), ping=15)

    def updates(self, page: PageSpec, query: Mapping[str, str], cookie: str) -> AsyncIterator[dict[str, str]]:
        """The messages of an open page. Those who have signed in see the same, so that they share them."""

        async def values() -> Data | str:
            answer = await self._values(page, query)
            return str(answer) if isinstance(answer, NoSuchPage) else answer

        def goes_on() -> bool:
            return self._sign_in.knows(cookie)

        return self._updates.stream(
            (page.name, *sorted(query.items())), values, lambda shown: self.rendered(page, shown), goes_on
        )

    def rendered(self, page: PageSpec, values: Data) -> dict[str, str]:
        """The parts of a page that are updated while it is open: its fragments, and the end of its chart."""
        shown = values | {"control": self._control}
        parts = {name: self._documents.fragment(name, shown) for name in (*FRAME, *page.fragments)}
        chart = values.get("chart_update")
        return parts if chart is None else parts | {CHART: json.dumps(chart, separators=(",", ":"))}

    async def static(self, request: Request) -> Response:
        file = self._documents.static.get(request.path_params["name"])
        if file is None:
            return refused(404, "no such file")
        headers = {"cache-control": "private, max-age=31536000, immutable"} if request.url.query else {}
        return Response(file[0], media_type=file[1], headers=headers)

    # -- backtests

    async def report(self, request: Request) -> Response:
        """The page of `bot report`.

        It has scripts of its own, so it runs in a sandbox: it cannot read the dashboard or its cookie.
        """
        try:
            page = await self._sources.backtests.report(request.path_params["name"])
        except NoRun as error:
            return await self._message(404, "No report", str(error))
        return HTMLResponse(page, headers={"content-security-policy": REPORT_POLICY})

    async def start_backtest(self, request: Request) -> Response:
        if not self._control:
            return refused(403, "this dashboard only reads: start it with --control to start backtests")
        form = await self._form(request)
        if form is None:
            return refused(403, OTHER_SIGN_IN)
        values = await PAGES["runs"].values(self._sources, form)
        config = values["config"]
        if config is None:
            problem: str | None = "which config the daemon runs is not known, or it runs without a file"
        elif form.get("config") != config:
            problem = f"nothing was started: the page showed another config, and the daemon runs {config} now"
        else:
            problem = self._sources.backtests.start(config, form)
        if problem is not None:
            token = self._sign_in.change_token(request.state.cookie)
            more = {"title": "Backtests", "page": "runs", "stream": "", "token": token, "problem": problem}
            return self._html("runs", values | more, 400)
        log.info("dashboard.backtest_started")
        return RedirectResponse("/runs", 303)

    # -- sign-in

    async def _form(self, request: Request) -> dict[str, str] | None:
        """The form of a page that this sign-in has opened; None for any other."""
        form = await form_of(request)
        is_ours = form is not None and self._sign_in.is_change_token(request.state.cookie, form.get("token", ""))
        return form if is_ours else None

    async def sign_in_form(self, request: Request) -> Response:
        if self._sign_in.knows(request.state.cookie):
            return RedirectResponse("/", 303)
        return HTMLResponse(self._documents.page("sign_in", {"problem": ""}))

    async def sign_in(self, request: Request) -> Response:
        form = await form_of(request)
        cookie = None if form is None else self._sign_in.redeem(form.get("code", ""))
        if cookie is None:
            log.warning("dashboard.sign_in_refused")
            problem = (
                "This link was used before, is older than ten minutes, or belongs to an earlier start. Run bot"
                " dashboard again for a new one."
            )
            return HTMLResponse(self._documents.page("sign_in", {"problem": problem}), 403)
        log.info("dashboard.signed_in")
        response = RedirectResponse("/", 303)
        response.set_cookie(
            self._sign_in.cookie_name, cookie, max_age=COOKIE_S, httponly=True, samesite="strict", path="/"
        )
        return response

    async def sign_out(self, request: Request) -> Response:
        if await self._form(request) is None:
            return refused(403, OTHER_SIGN_IN)
        self._sign_in.end(request.state.cookie)
        log.info("dashboard.signed_out")
        response = RedirectResponse(SIGN_IN, 303)
        response.delete_cookie(self._sign_in.cookie_name, httponly=True, samesite="strict", path="/")
        return response

    # -- changes

    async def control_form(self, request: Request) -> Response:
        action = controls.ACTIONS.get(request.path_params["action"])
        if action is None:
            return await self._message(404, "Not found", f"There is no control {request.path_params['action']}.")
        if not self._control:
            return await self._message(
                403, "Read-only", "This dashboard only reads. Start it with --control to allow changes."
            )
        name, given = request.query_params.get("name", ""), request.query_params.get("of", "")
        if action.needs_name and not name:
            return await self._message(404, "Not found", f"{action.title} needs the name of what it acts on.")
        target = await self._target(request.query_params.get("folder", ""))
        if target is None:
            return await self._message(404, "Nothing to act on", "This machine has no daemon in that folder.")
        seen = await self._seen(target, action)
        subject = target.subject(action, seen, name)
        if subject is None:
            return await self._message(404, "Nothing to act on", controls.missing(action, name, seen))
        if given and given != subject.stamp:
            now = controls.GONE.format(subject=name or action.title, now=f"It is {subject.text} now.")
            return await self._message(409, "It has changed", now)
        return await self._control_page(request, target.confirmation(action, name, subject))

    async def _target(self, folder: str) -> ControlTarget | None:
        """The daemon that a control is for: that of this dashboard, or one of the fleet; None if there is none."""
        if not folder:
            return ControlTarget(self._sources.daemon)
        member = None if self._sources.fleet is None else await self._sources.fleet.daemon(folder)
        return None if member is None else ControlTarget(member[1], folder, member[0])

    async def _seen(self, target: ControlTarget, action: controls.ControlAction) -> controls.Seen:
        """What the daemon says at this moment: a page may show what was a second ago."""
        proposals = await target.daemon.fresh_approvals() if action.is_of_proposal else Reading(())
        return controls.Seen(await target.daemon.fresh_snapshot(), proposals.value, proposals.known)

    async def change(self, request: Request) -> Response:
        if not self._control:
            log.warning("dashboard.change_refused", reason="read-only")
            return refused(403, "this dashboard only reads: start it with --control to allow changes")
        form, action = await self._form(request), controls.ACTIONS.get(request.path_params["action"])
        if action is None:
            return refused(404, f"there is no control {request.path_params['action']}")
        if form is None:
            log.warning("dashboard.change_refused", reason="token")
            return refused(403, OTHER_SIGN_IN)
        name, key = form.get("name", ""), form.get("key", "")
        target = await self._target(form.get("folder", ""))
        if target is None:
            return await self._message(404, "Nothing to act on", "This machine has no daemon in that folder.")
        seen = await self._seen(target, action)
        subject = target.subject(action, seen, name)
        if subject is None or form.get("of") != subject.stamp:
            log.warning("dashboard.change_refused", reason="changed", subject=name or None)
            now = controls.missing(action, name, seen) if subject is None else f"It is {subject.text} now."
            text = controls.GONE.format(subject=name or action.title, now=now)
            return await self._message(409, "It has changed", text)
        asked = target.confirmation(action, name, subject) | ({"key": key} if key else {})
        if form.get("confirm", "").strip() != asked["word"]:
            problem = f"Nothing was sent: type {asked['word']} to confirm."
            return await self._control_page(request, asked | {"problem": problem}, 400)
        log.warning("dashboard.change", action=request.path_params["action"], subject=subject.text)
        try:
            body = controls.body_of(action, subject, asked["key"], form)
            answer = await target.daemon.ask("POST", action.path, body)
        except BotError as error:
            lines = [str(error), *controls.other_ways(request.path_params["action"])]
            return await self._control_page(request, asked | {"done": False, "lines": lines}, 502)
        lines = controls.answer_lines(request.path_params["action"], answer)
        return await self._control_page(request, asked | {"done": True, "lines": lines})

    async def _control_page(self, request: Request, values: Data, status: int = 200) -> Response:
        frame_values = await self._frame()
        token = self._sign_in.change_token(request.state.cookie)
        more = {
            "title": values["subject"],
            "page": "",
            "stream": "",
            "token": token,
            "action_name": request.path_params["action"],
        }
        return self._html("control", frame_values | values | more, status)
