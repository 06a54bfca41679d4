"""The heartbeat rule and its files, case by case. The worlds test them together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bot.clock import monotonic_ns
from bot.runtime.liveness import heartbeat_rule
from bot.runtime.liveness.heartbeat import HeartbeatProcess
from bot.runtime.liveness.heartbeat_process import LeaseFile, LeaseRecord, classify, first_heart
from bot.runtime.liveness.heartbeat_rule import SECOND, Heart, HeartbeatAnswer
from bot.runtime.liveness.heartbeat_supervision import HeartbeatSupervision
from bot.runtime.liveness.progress_stamp import STARTING, ProgressReader, ProgressWriter, Stamp

S = SECOND
R60 = heartbeat_rule.beat_timing(60)
WELL = Stamp(1, 5, 100 * S, -1)
OK = HeartbeatAnswer("ok", "", 1, 160_000, 100_000)


@pytest.mark.parametrize(
    ("d", "period", "stale"),
    [(20, 5, 20 / 3), (30, 5, 10), (60, 10, 20), (300, 50, 20), (360, 60, 20), (86_400, 60, 20)],
)
def test_the_timing_follows_from_heartbeat_seconds(d: float, period: float, stale: float) -> None:
    lengths = heartbeat_rule.beat_timing(d)
    assert [one / S for one in lengths] == pytest.approx([d, period, stale])


@pytest.mark.parametrize("d", [19.99, 1, 0, -5, float("nan")])
def test_less_than_twenty_seconds_of_real_time_is_refused(d: float) -> None:
    with pytest.raises(ValueError, match="raise heartbeat_seconds or slow the clock"):
        heartbeat_rule.beat_timing(d)


def test_a_heartbeat_needs_a_stamp_younger_than_the_limit_to_the_nanosecond() -> None:
    for age, verdict in ((0, "beat"), (20 * S - 1, "beat"), (20 * S, "stale"), (10**18, "stale"), (-1, "beat")):
        assert heartbeat_rule.judge(R60, Heart(), now_ns=WELL.boot_ns + age, stamp=WELL, fence=1) == verdict


def test_a_heartbeat_waits_for_its_time() -> None:
    heart = Heart(next_ns=101 * S)
    assert heartbeat_rule.judge(R60, heart, now_ns=101 * S - 1, stamp=WELL, fence=1) == "wait"
    assert heartbeat_rule.judge(R60, heart, now_ns=101 * S, stamp=WELL, fence=1) == "beat"


def test_without_a_completed_pass_three_heartbeats_are_sent_and_no_more() -> None:
    for stamp in (None, WELL._replace(cycles=0), WELL._replace(fence=2)):
        heart = Heart()
        for _ in range(3):
            assert heartbeat_rule.judge(R60, heart, now_ns=100 * S, stamp=stamp, fence=1) == "beat"
            heart = heartbeat_rule.sending(heart, stamp=stamp, fence=1)
        assert heartbeat_rule.judge(R60, heart, now_ns=100 * S, stamp=stamp, fence=1) == "boot_spent"
        assert heartbeat_rule.judge(R60, heart, now_ns=100 * S, stamp=WELL, fence=1) == "beat"
        assert heartbeat_rule.sending(heart, stamp=WELL, fence=1).boot_beats == 0


@pytest.mark.parametrize(
    ("lives", "warms_after", "boot_beats", "acts_at"),
    [
        ([], 500, [], 70),
        ([(65, 500)], 500, [65, 75, 85], 145),
        ([(start, start + 2) for start in range(65, 500, 7)], 500, [65, 72, 79], 139),
        ([(start, start + 2) for start in range(65, 500, 55)], 500, [65, 120, 175], 235),
        ([(65, 127)], 1, [65, 75, 85, 95, 105, 115, 125], 185),
        ([(65, 127)], 31, [65, 75, 85, 96, 106, 116, 126], 186),
        ([(start, start + 5) for start in range(65, 500, 7)], 1, [65, 72, 79], 139),
        ([(start, start + 12) for start in range(65, 500, 55)], 1, [65, 75, 120, 130, 175, 185], 245),
    ],
    ids=[
        "none",
        "one that recovers for long",
        "a crash loop",
        "a slow crash loop",
        "one that warms for long",
        "one that recovers and warms for long",
        "a crash loop while it warms",
        "a slow crash loop while it warms",
    ],
)
def test_failed_starts_share_three_heartbeats_and_then_the_switch_acts(
    lives: list[tuple[int, int]], warms_after: int, boot_beats: list[int], acts_at: int
) -> None:
    """Also for runs that make passes during their warm-up, from `warms_after` seconds on.

    The last completed pass was at 0 s and its last heartbeat at 10 s. A run that begins before 70 s still finds the
    switch armed.
    """
    heart, fence, stamp = Heart(), 1, WELL._replace(boot_ns=100 * S)
    beats: list[int] = []
    at, deadline = 0, 60
    while at < deadline:
        if any(at == start for start, _ in lives):
            fence += 1
            stamp = Stamp(fence, 0, 0, -1)
            orders: Any = SimpleNamespace(fence=fence)
            heart = first_heart(LeaseRecord(fence - 1, 0, heart), orders)
        now_ns = (100 + at) * S
        if any(start + warms_after <= at < end for start, end in lives):
            stamp = Stamp(fence, stamp.cycles + 1, now_ns, STARTING)
        is_alive = fence == 1 or any(start <= at < end for start, end in lives)
        if is_alive and heartbeat_rule.judge(R60, heart, now_ns=now_ns, stamp=stamp, fence=fence) == "beat":
            heart = heartbeat_rule.sending(heart, stamp=stamp, fence=fence)
            beats.append(at)
            deadline = at + 60
            answer = HeartbeatAnswer("ok", "", 1, deadline * 1000, at * 1000)
            heart = heartbeat_rule.answered(R60, heart, answer, sent_ns=now_ns, now_ns=now_ns, chance=0.5)
        at += 1
        assert at < 500, "the switch never fires"
    assert (beats, at) == ([0, 10, *boot_beats], acts_at)


def test_lease_and_period_count_from_sending() -> None:
    heart = heartbeat_rule.answered(R60, Heart(), OK, sent_ns=100 * S, now_ns=102 * S, chance=0.5)
    assert heartbeat_rule.believed_deadline_ns(R60, heart) == 160 * S
    assert heart.next_ns == 110 * S
    assert heartbeat_rule.answered(R60, Heart(), OK, sent_ns=0, now_ns=0, chance=0).next_ns == 9 * S


def test_no_entry_is_allowed_within_the_margin_of_the_deadline() -> None:
    heart = Heart(sent_ns=100 * S, guardians=1)
    assert not heartbeat_rule.is_past(R60, heart, now_ns=155 * S - 1)
    assert heartbeat_rule.is_past(R60, heart, now_ns=155 * S)
    assert not heartbeat_rule.may_open(R60, heart, now_ns=155 * S, acknowledged=0)
    assert not heartbeat_rule.may_open(R60, Heart(), now_ns=0, acknowledged=0)
    assert not heartbeat_rule.may_open(R60, heart._replace(lapses=2), now_ns=101 * S, acknowledged=1)


def test_entries_are_allowed_until_a_heartbeat_is_overdue() -> None:
    heart = Heart(sent_ns=100 * S, next_ns=110 * S, guardians=1)
    assert heartbeat_rule.may_open(R60, heart, now_ns=122 * S - 1, acknowledged=0)
    assert not heartbeat_rule.may_open(R60, heart, now_ns=122 * S, acknowledged=0)
    assert not heartbeat_rule.is_overdue(R60, Heart(), now_ns=122 * S), "no beat has counted yet"


@pytest.mark.parametrize("d", [20, 25, 60, 300, 3_600, 86_400])
def test_a_heartbeat_is_overdue_before_the_margin_for_every_timing(d: float) -> None:
    lengths = heartbeat_rule.beat_timing(d)
    heart = Heart(sent_ns=100 * S, guardians=1)
    first = next(at for at in range(100, 100_000) if heartbeat_rule.is_overdue(lengths, heart, now_ns=at * S))
    assert first * S + heartbeat_rule.STUCK_NS < 100 * S + lengths.deadline_ns, (
        "a process that is stuck is replaced in time"
    )
    assert not heartbeat_rule.is_past(lengths, heart, now_ns=first * S)


def test_a_process_that_tries_and_fails_does_not_count_as_stuck() -> None:
    heart = Heart(sent_ns=100 * S, next_ns=124 * S, guardians=1, failures=9)
    assert not heartbeat_rule.does_not_try(R60, heart, now_ns=126 * S)
    assert heartbeat_rule.does_not_try(R60, heart, now_ns=129 * S)
    assert not heartbeat_rule.does_not_try(R60, heart._replace(next_ns=110 * S), now_ns=121 * S), "no beat is overdue"


def test_failures_are_retried_after_a_quarter_a_half_and_then_each_second() -> None:
    heart, waits = Heart(), []
    for _ in range(6):
        heart = heartbeat_rule.answered(
            R60, heart, HeartbeatAnswer("retry", "timeout"), sent_ns=0, now_ns=0, chance=0.5
        )
        waits.append(heart.next_ns / S)
    assert waits == [0.25, 0.5, 1, 1, 1, 1]
    assert heart.failures == 6


def test_retry_after_is_honoured_unless_the_switch_would_fire_meanwhile() -> None:
    def wait(after_s: int, sent_s: int) -> float:
        heart = Heart(sent_ns=sent_s * S, guardians=1 if sent_s else 0)
        answer = HeartbeatAnswer("retry", "rate_limited", after_ns=after_s * S)
        return (
            heartbeat_rule.answered(R60, heart, answer, sent_ns=100 * S, now_ns=100 * S, chance=0.5).next_ns / S - 100
        )

    assert wait(30, 100) == 30
    # 60 less the margin and an attempt
    assert wait(80, 100) == 53
    # already within the margin
    assert wait(30, 46) == 0.25
    # it is not known whether an earlier run's switch is armed
    assert wait(80, 0) == 10
    assert wait(5, 0) == 5


def test_a_heartbeat_sent_after_the_margin_is_a_lapse_although_its_answer_is_good() -> None:
    heart = Heart(sent_ns=100 * S, guardians=1, deadline_ms=160_000, server_ms=100_000)
    late = heartbeat_rule.answered(
        R60, heart, HeartbeatAnswer("ok", "", 1, 216_000, 156_000), sent_ns=156 * S, now_ns=156 * S, chance=0.5
    )
    assert late.lapses == 1
    assert not heartbeat_rule.may_open(R60, late, now_ns=157 * S, acknowledged=0)
    assert heartbeat_rule.may_open(R60, late, now_ns=157 * S, acknowledged=1)


def test_a_missing_switch_is_a_lapse_if_one_was_armed_before() -> None:
    empty = HeartbeatAnswer("ok", server_ms=101_000)
    fresh = heartbeat_rule.answered(R60, Heart(), empty, sent_ns=100 * S, now_ns=100 * S, chance=0.5)
    assert (fresh.lapses, fresh.error, fresh.next_ns) == (0, "nothing_armed", 102 * S)
    gone = heartbeat_rule.answered(
        R60, Heart(sent_ns=90 * S, guardians=1), empty, sent_ns=100 * S, now_ns=100 * S, chance=0.5
    )
    assert (gone.lapses, heartbeat_rule.believed_deadline_ns(R60, gone)) == (1, None)


def test_an_unmoved_deadline_is_a_failure_unless_the_service_clock_is_stopped() -> None:
    heart = heartbeat_rule.answered(R60, Heart(), OK, sent_ns=100 * S, now_ns=100 * S, chance=0.5)
    still = heartbeat_rule.answered(
        R60, heart, OK._replace(server_ms=110_000), sent_ns=110 * S, now_ns=110 * S, chance=0.5
    )
    assert (still.error, still.failures, still.sent_ns) == ("deadline_stands_still", 1, 100 * S)
    assert heartbeat_rule.answered(R60, heart, OK, sent_ns=110 * S, now_ns=110 * S, chance=0.5).error == ""


def test_boot_time_ahead_of_monotonic_time_is_a_suspend() -> None:
    assert heartbeat_rule.suspended(Heart(), boot_ns=3 * S, monotonic_ns=S).lapses == 1
    assert heartbeat_rule.suspended(Heart(), boot_ns=2 * S, monotonic_ns=S).lapses == 0


def test_a_lost_credential_stops_for_good_and_a_refusal_waits_a_period() -> None:
    lost = heartbeat_rule.answered(
        R60, Heart(), HeartbeatAnswer("lost", "unauthorized"), sent_ns=0, now_ns=0, chance=0.5
    )
    assert heartbeat_rule.judge(R60, lost, now_ns=10**18, stamp=WELL, fence=1) == "stopped"
    assert (
        heartbeat_rule.answered(
            R60, Heart(), HeartbeatAnswer("refused", "http_404"), sent_ns=0, now_ns=0, chance=0.5
        ).next_ns
        == 10 * S
    )


@pytest.mark.parametrize(
    ("status", "retry_after", "body", "kind", "error"),
    [
        (200, None, b'{"guardians":[{"id":"g","nextDeadline":5}],"serverTime":1}', "ok", ""),
        (200, None, b'{"guardians":[{"id":"g","nextDeadline":5,"new":1}]}', "ok", ""),
        (200, None, b'{"guardians":[],"serverTime":1}', "ok", ""),
        (200, None, b"", "retry", "bad_answer"),
        (200, None, b"[]", "retry", "bad_answer"),
        (200, None, b'{"guardians":[{"nextDeadline":"5"}]}', "retry", "bad_answer"),
        (200, None, b'{"guardians":[{"nextDeadline":true}]}', "retry", "bad_answer"),
        (200, None, b'{"guardians":{"a":1}}', "retry", "bad_answer"),
        (200, None, b"[" * 60_000, "retry", "bad_answer"),
        (200, None, b"\xff\xfe", "retry", "bad_answer"),
        (401, None, b'{"error":{"code":"unauthorized","message":"no","requestId":"req_1"}}', "lost", "unauthorized"),
        (401, None, b"<html>who are you</html>", "refused", "http_401"),
        (401, None, b'{"error":"no"}', "refused", "http_401"),
        (403, None, b"", "refused", "http_403"),
        (404, None, b"", "refused", "http_404"),
        (301, None, b"", "refused", "http_301"),
        (429, "7", b"", "retry", "rate_limited"),
        (429, "Fri, 20 Nov 2026 00:00:00 GMT", b"", "retry", "rate_limited"),
        (500, None, b"", "retry", "http_500"),
        (503, "²", b"", "retry", "http_503"),
    ],
)
def test_each_http_answer_has_one_next_move(
    status: int, retry_after: str | None, body: bytes, kind: str, error: str
) -> None:
    answer = classify(status, retry_after, body)
    assert (answer.kind, answer.error) == (kind, error)
    assert answer.after_ns == (7 * S if retry_after == "7" else 0)


def test_the_earliest_of_several_deadlines_counts() -> None:
    body = b'{"guardians":[{"id":"a","nextDeadline":9},{"id":"b","nextDeadline":7}],"serverTime":1}'
    assert classify(200, None, body)[2:5] == (2, 7, 1)


def test_a_lease_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = str(tmp_path / "belief")
    reader = LeaseFile(path)
    assert reader.read() is None
    writer = LeaseFile(path, write=True)
    heart = Heart(-1, 2, 3, 4, 5, 6, 2, 8, 9, "deadline_stands_still", True)
    writer.write(77, 88, heart)
    assert reader.read() == (77, 88, heart)
    writer.close()
    reader.close()


def test_a_stamp_is_read_as_it_was_written_and_starts_without_a_pass(tmp_path: Path) -> None:
    path = str(tmp_path / "progress")
    reader = ProgressReader(path)
    assert reader.read() is None
    writer = ProgressWriter(path, fence=2**63)
    assert reader.read() == (2**63, 0, 0, -1)
    writer.cycle_done(boot_ns=123, last_bar_at_ms=None)
    writer.cycle_done(boot_ns=456, last_bar_at_ms=1_700_000_000_000)
    assert reader.read() == (2**63, 2, 456, 1_700_000_000_000)
    writer.close()
    reader.close()


def test_a_damaged_or_foreign_file_is_not_read_as_a_stamp(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    ProgressWriter(str(path), fence=1).close()
    good = path.read_bytes()
    for i in range(len(good)):
        path.write_bytes(good[:i] + bytes([good[i] ^ 1]) + good[i + 1 :])
        assert ProgressReader(str(path)).read() is None
    path.write_bytes(good[:10])
    assert ProgressReader(str(path)).read() is None


WRITE_ALL_THE_TIME = """
import sys
from bot.runtime.liveness.progress_stamp import ProgressWriter
writer = ProgressWriter(sys.argv[1], fence=3)
print(flush=True)
n = 0
while True:
    n += 1
    writer.cycle_done(boot_ns=n, last_bar_at_ms=n)
"""


def test_a_reader_beside_a_busy_writer_never_sees_half_a_stamp(tmp_path: Path, repository: Path) -> None:
    path = str(tmp_path / "progress")
    with subprocess.Popen(
        [sys.executable, "-c", WRITE_ALL_THE_TIME, path], stdout=subprocess.PIPE, cwd=repository
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        reader, last, seen = ProgressReader(path), 0, 0
        end_ns = monotonic_ns() + 60 * SECOND
        while seen < 20_000 and monotonic_ns() < end_ns:
            stamp = reader.read()
            # In the middle of a write, also if the writer is not scheduled for a long time.
            if stamp is None:
                continue
            assert stamp.cycles == 0 or stamp.cycles == stamp.boot_ns == stamp.last_bar_at_ms >= last
            last, seen = max(last, stamp.cycles), seen + 1
        reader.close()
        writer.kill()
    assert seen == 20_000


@pytest.mark.parametrize("what", ["removed", "replaced"])
def test_writer_and_reader_follow_a_file_that_was_removed_or_replaced(tmp_path: Path, what: str) -> None:
    path = tmp_path / "progress"
    writer = ProgressWriter(str(path), fence=5)
    writer.cycle_done(boot_ns=1, last_bar_at_ms=None)
    reader = ProgressReader(str(path))
    assert reader.read() == (5, 1, 1, -1)
    path.unlink()
    if what == "replaced":
        path.write_bytes(b"not a stamp")
    reader.renew()
    assert reader.read() == (5, 1, 1, -1), "the newest known lease, until there is a newer one"
    writer.cycle_done(boot_ns=2, last_bar_at_ms=7)
    reader.renew()
    assert reader.read() == (5, 2, 2, 7)
    assert ProgressReader(str(path)).read() == (5, 2, 2, 7)


def test_a_stamp_is_written_again_after_its_folder_was_removed(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    writer = ProgressWriter(str(folder / "progress"), fence=5)
    reader = ProgressReader(writer.path)
    assert reader.read() is not None
    folder.rename(tmp_path / "away")
    writer.cycle_done(boot_ns=3, last_bar_at_ms=None)
    reader.renew()
    assert reader.read() == (5, 1, 3, -1)


def test_the_files_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        ProgressWriter(str(tmp_path / "progress"), fence=1).close()
    finally:
        os.umask(before)
    assert (tmp_path / "progress").stat().st_mode & 0o777 == 0o600


def test_a_nearer_deadline_after_a_reload_counts_at_once_and_causes_no_second_resync(tmp_path: Path) -> None:
    """The new process continues with the old one's record, and the earlier deadline is far ahead."""
    lengths, path = heartbeat_rule.beat_timing(600), str(tmp_path / "belief")
    far = heartbeat_rule.answered(
        lengths, Heart(lapses=2), HeartbeatAnswer("ok", "", 1, 1_600_000, 1_000_000), sent_ns=S, now_ns=S, chance=0.5
    )
    writer = LeaseFile(path, write=True)
    writer.write(7, S, far)

    class Still(HeartbeatProcess):
        def start(self, *, may_beat: bool = True) -> None: ...

    def made(lengths: heartbeat_rule.BeatTiming) -> HeartbeatProcess:
        return Still(
            base_url="http://127.0.0.1:1", api_key="k", stamp_path="", lease_path=path, lengths=lengths, fence=7
        )

    old = made(lengths)
    old.acknowledge(2)
    run: Any = SimpleNamespace(process=old, is_start_complete=True, _started=lambda: made(R60))
    HeartbeatSupervision.replace(run)
    assert not run.process.lease().lapsed
    heart = first_heart(writer.read(), run.process._orders)
    near = heartbeat_rule.answered(
        R60, heart, HeartbeatAnswer("ok", "", 1, 1_062_000, 1_002_000), sent_ns=3 * S, now_ns=3 * S, chance=0.5
    )
    assert (near.error, near.sent_ns, near.lapses) == ("", 3 * S, 2)
    run.process.close()
    writer.close()
