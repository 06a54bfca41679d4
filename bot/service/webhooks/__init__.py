"""Webhook deliveries: queued, signed, sent, retried. Durable beside the command log.

Start with `outbox.py`; `dispatcher.py` keeps the schedule, `address_policy.py` says where a delivery may go."""
