"""What a person hears of a run: health, messages, and the outbox that carries them.

Start with `health.py` (why a run may only close). `messages.py` holds the texts, `notifier.py` delivers them."""
