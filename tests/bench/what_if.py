"""Compare the what-if of many seeded histories with real runs: `python -m tests.bench.what_if 0 1000`.

Prints each seed that differs, and the counts. One history takes about 0.7 s of one core.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from tests.research.given_histories import case, compared


def fills(lines: str) -> list[tuple[Any, ...]]:
    """Instant, market, price, size, kind and balance of each fill."""
    events = [json.loads(line) for line in lines.splitlines()]
    names = ("px", "size", "kind", "balanceUsd")
    return [
        (event["ts"], event["coin"], *(event["data"][name] for name in names))
        for event in events
        if event["type"] == "fill"
    ]


def main(first: int, after: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, after):
        result = compared(case(seed))
        counts["histories"] += 1
        counts["replays equal to their record"] += result.played == result.recorded
        counts["what-ifs with the fills of the real run"] += fills(result.what_if) == fills(result.real)
        counts["what-ifs with every event of the real run"] += result.what_if == result.real
        counts["settings that changed something"] += result.what_if != result.played
        if not result.is_equal:
            print("differs:", seed, case(seed).setting, flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
