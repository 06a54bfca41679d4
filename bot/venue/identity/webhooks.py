"""The webhooks of an account: add, remove, disable. Only the list; the service sends and retries."""

from __future__ import annotations

from bot.errors import Refusal
from bot.venue.model import commands as c
from bot.venue.model.state import WEBHOOKS_MAX, State, VenueWebhook


def add(state: State, command: c.AddWebhook) -> VenueWebhook | Refusal:
    """Add a webhook. Disabled ones count toward the limit until their owner removes them."""
    count = sum(hook.account == command.account for hook in state.webhooks.values())
    if count >= WEBHOOKS_MAX:
        details = {"limit": WEBHOOKS_MAX, "count": count}
        fix = {"action": "delete_webhook", "path": "/v1/webhooks/{id}"}
        return Refusal("limit_exceeded", f"an account has at most {WEBHOOKS_MAX} webhooks", fix, details)
    state.webhook_seq += 1
    hook = VenueWebhook(
        f"whk_{state.webhook_seq:08d}",
        command.account,
        command.url,
        command.types,
        command.encrypted_secret,
        state.now_ms,
    )
    state.webhooks[hook.id] = hook
    return hook


def remove(state: State, command: c.RemoveWebhook) -> VenueWebhook | Refusal:
    """Remove a webhook. One of another account is answered "not found"."""
    hook = state.webhooks.get(command.webhook)
    if hook is None or hook.account != command.account:
        return Refusal("not_found", f"no webhook {command.webhook[:80]}")
    del state.webhooks[hook.id]
    return hook


def disable(state: State, command: c.DisableWebhook) -> VenueWebhook | None:
    """Disable a webhook; None if it was removed meanwhile."""
    hook = state.webhooks.get(command.webhook)
    if hook is not None and hook.disabled is None:
        hook.disabled = command.reason
    return hook
