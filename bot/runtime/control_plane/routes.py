"""The table of the control socket's routes."""

from __future__ import annotations

from bot.runtime.control_plane.command_routes import CommandRoutes
from bot.runtime.control_plane.daemon_access import DaemonAccess
from bot.runtime.control_plane.proposal_route import ProposalRoute
from bot.runtime.control_plane.read_routes import ReadRoutes
from bot.runtime.control_plane.server import Routes


def routes_of(access: DaemonAccess) -> Routes:
    reads, commands = ReadRoutes(access), CommandRoutes(access)
    return {
        ("GET", "/status"): reads.status,
        ("GET", "/positions"): reads.positions,
        ("GET", "/orders"): reads.orders,
        ("GET", "/strategies"): reads.strategies,
        ("GET", "/guardians"): reads.guardians,
        ("GET", "/events"): reads.events,
        ("GET", "/intents"): reads.intents,
        ("GET", "/logs"): reads.logs,
        ("GET", "/explain"): reads.explain,
        ("GET", "/reconcile"): commands.drifts,
        ("POST", "/reconcile"): commands.reconcile,
        ("POST", "/pause"): commands.pause,
        ("POST", "/resume"): commands.resume,
        ("GET", "/reload"): commands.reload_diff,
        ("POST", "/reload"): commands.reload,
        ("POST", "/close"): commands.close,
        ("POST", "/cancel"): commands.cancel,
        ("GET", "/approvals"): reads.approvals,
        ("POST", "/propose"): ProposalRoute(access).propose,
        ("POST", "/approve"): commands.approve,
        ("POST", "/refuse"): commands.refuse,
        ("POST", "/kill"): commands.kill,
        ("POST", "/lift"): commands.lift,
        ("POST", "/stop"): commands.stop,
    }
