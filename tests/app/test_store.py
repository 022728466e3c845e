"""The store: bounded rings, buckets, the joining of processes into jobs, and the views made of them."""

from __future__ import annotations

import math
import threading

import pytest
from agents import START, beat, gone, hello, record, run_of, steps
from hypothesis import given, settings
from hypothesis import strategies as st

from bsmon.model import AgentCost, AgentMemory, Device, Gpu, GpuSample, MoeCounts, NoiseSample
from bsmon.store import Fleet
from bsmon.store.buckets import Series
from bsmon.store.process import Process, Room

OTHER = "fedcba9876543210"
ROOM = Room(records=1000, numbers=1000)


def fleet_of(*events):
    fleet = Fleet()
    for event in events:
        fleet.ingest(event)
    return fleet


def only_job(fleet, now):
    (job,) = fleet.jobs(now)
    return job


# ------------------------------------------------------------------ records


@given(st.lists(st.integers(1, 60), max_size=80))
def test_records_are_kept_once_and_in_order_and_every_gap_is_counted(seqs):
    process = Process(hello(), "live")
    for seq in seqs:
        process.add([record(seq)], ROOM)
    kept = [one.seq for one in process.at(math.inf).records]
    rising = [seq for index, seq in enumerate(seqs) if seq > max(seqs[:index], default=0)]
    assert kept == rising
    lost = set(range(rising[0], rising[-1])) - set(rising) if rising else set()
    assert process.missing == len(lost)


def test_what_came_before_the_first_record_is_no_loss():
    assert only_job(fleet_of(hello(), run_of(10, first=5000)), START + 2505).dropped_records == 0


def test_losses_that_the_agent_counted_itself_are_not_counted_twice():
    fleet = fleet_of(hello(), steps(record(1), record(5)), beat(START + 3, dropped_records=3))
    assert only_job(fleet, START + 3).dropped_records == 3


def test_memory_is_bounded_by_count_age_and_numbers():
    process = Process(hello(), "live")
    for seq in range(1, 20_001):
        process.add([record(seq, time=START + seq / 1000)], ROOM)
    assert 1000 <= len(process.at(math.inf).records) <= 1126
    process.add([record(20_001, time=START + 10_000)], ROOM)
    assert len(process.at(math.inf).records) <= 64


def test_counts_of_experts_are_let_go_before_the_records_are():
    process = Process(hello(), "live")
    layers = [MoeCounts(layer=index, assignments=100, assigned=[1] * 50) for index in range(2)]
    for seq in range(1, 101):
        process.add([record(seq, moe=layers)], ROOM)
    records = process.at(math.inf).records
    assert len(records) == 100
    assert [one.seq for one in records if one.moe] == list(range(91, 101))


def test_a_record_with_more_numbers_than_there_is_room_for_is_kept_until_the_next():
    process = Process(hello(), "live")
    huge = [MoeCounts(layer=0, assigned=[1] * 4096)]
    for seq in (1, 2, 3):
        process.add([record(seq, moe=huge)], ROOM)
        assert [one.seq for one in process.at(math.inf).records if one.moe] == [seq]


def test_a_fleet_is_bounded_and_lets_go_of_the_ended_first():
    fleet = Fleet()
    fleet.ingest(hello(session="a" * 16, job="live"))
    fleet.ingest(beat(START + 5, session="a" * 16))
    for index in range(400):
        session = f"{index:016x}"
        fleet.ingest(hello(session=session, job=f"job{index}"))
        fleet.ingest(gone(START + index, session=session, finished=True))
    ids = {job.id for job in fleet.jobs(START + 1000)}
    assert 250 < len(ids) < 260
    assert "live" in ids
    assert "job399" in ids
    assert "job0" not in ids


def test_what_a_stranger_sends_changes_nothing():
    fleet = fleet_of(run_of(3), beat(START), gone(START))
    assert fleet.jobs(START + 1) == []


def test_events_come_from_any_thread():
    fleet = Fleet()

    def feed(index):
        session = f"{index:016x}"
        fleet.ingest(hello(session=session, job=f"job{index}"))
        for seq in range(1, 200):
            fleet.ingest(steps(record(seq), session=session))

    threads = [threading.Thread(target=feed, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for job in fleet.jobs(START + 100):
            fleet.series(job.id, "loss", START, START + 100, 10)
            fleet.window(job.id, START + 100, 10)
    assert [job.step for job in fleet.jobs(START + 100)] == [199] * 4
    assert fleet.revision == 4 * 200


# ------------------------------------------------------------------ buckets


def test_a_gap_stays_a_gap():
    series = Series()
    for second in (*range(10), *range(20, 30)):
        series.add(1000.0 + second, float(second), 0.0)
    found = series.query(1000, 1030, 30, newest=1029)
    assert [bucket and bucket.mean for bucket in found] == [*range(10), *[None] * 10, *range(20, 30)]


def test_a_long_step_fills_every_bucket_it_covers_by_its_share():
    series = Series()
    series.add(1002.5, 10.0, 2.5)  # 1000 .. 1002.5
    series.add(1003.0, 40.0, 0.5)
    found = series.query(1000, 1003, 3, newest=1003)
    assert [bucket.mean for bucket in found] == pytest.approx([10, 10, 25])
    assert (found[2].low, found[2].high) == (10, 40)


def test_what_is_older_than_all_that_is_kept_changes_nothing():
    series = Series()
    series.add(10_000.0, 1.0)
    series.add(10_000.0 + 1800, 2.0)  # the same place in the ring
    series.add(10_000.0, 9.0)
    series.add(9_000.0, 9.0)
    assert [bucket and bucket.mean for bucket in series.query(11_800, 11_801, 1, newest=11_800)] == [2.0]
    assert [bucket and bucket.high for bucket in series.query(9_000, 12_000, 4, newest=11_800)] == [
        None,
        9.0,
        None,
        2.0,
    ]


def test_old_times_come_from_the_coarse_buckets():
    series = Series()
    for minute in range(120):
        series.add(60.0 * minute + 10, float(minute), 0.0)
    day = series.query(0, 7200, 120, newest=7200)
    assert [bucket.mean for bucket in day] == list(range(120))
    assert series.query(7200 - 1800, 7200, 30, newest=7200)[-1].mean == 119


def test_buckets_are_flat_memory():
    series = Series()
    for minute in range(0, 5 * 24 * 60):
        series.add(60.0 * minute, 1.0, 60.0)
    assert [len(level._turn) for level in series.levels] == [1800, 2880]
    assert series.query(0, 3600, 4, newest=5 * 86400) == [None] * 4
    assert series.query(4.5 * 86400, 5 * 86400, 3, newest=5 * 86400)[1].mean == pytest.approx(1.0)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.floats(0, 5000), st.floats(), st.floats(0, 100)), max_size=40),
    st.integers(1, 50),
)
def test_buckets_never_leave_the_values_that_went_in(points, buckets):
    series = Series()
    time = 1e6
    for ahead, value, duration in points:
        time += ahead
        series.add(time, value, duration)
    values = [max(-3e38, min(3e38, value)) for _, value, _ in points if math.isfinite(value)]
    for bucket in series.query(1e6 - 100, time + 1, buckets, newest=time):
        if bucket is not None:
            assert bucket.low <= bucket.mean <= bucket.high
            close = 1e-5 * max(abs(one) for one in values) + 1e-30
            assert min(values) - close <= bucket.low and bucket.high <= max(values) + close


def test_a_series_of_a_job_adds_rates_up_and_averages_the_rest():
    fleet = Fleet()
    for rank in range(4):
        session = f"{rank:016x}"
        fleet.ingest(hello(session=session, rank=rank, world_size=4, data_parallel=4))
        fleet.ingest(run_of(20, session=session, loss=float(rank)))
    rates = fleet.series("job1", "tokens_per_s", START + 1, START + 9, 4)
    assert [bucket.mean for bucket in rates] == pytest.approx([512] * 4)
    losses = fleet.series("job1", "loss", START + 1, START + 9, 4)
    assert [(one.low, one.high, one.mean) for one in losses] == [(0, 3, 1.5)] * 4
    assert fleet.series("job1", "grad_norm", START, START + 9, 4) == [None] * 4
    assert fleet.series("nobody", "loss", START, START + 9, 4) == [None] * 4
    assert fleet.series("job1", "loss", START + 9, START, 4) == []


# ------------------------------------------------------------------ who belongs together


def test_ranks_are_one_job_by_its_key():
    fleet = fleet_of(
        hello(session="1" * 16, rank=1, world_size=2, pid=11, started=START + 1),
        hello(session="0" * 16, rank=0, world_size=2, pid=10),
    )
    job = only_job(fleet, START + 2)
    assert [(rank.rank, rank.pid) for rank in job.ranks] == [(0, 10), (1, 11)]


def test_two_jobs_of_one_name_are_two():
    fleet = fleet_of(hello(session="1" * 16, job="a"), hello(session="2" * 16, job="b"))
    assert sorted(job.id for job in fleet.jobs(START + 1)) == ["a", "b"]
    assert {job.name for job in fleet.jobs(START + 1)} == {"run"}


def test_a_run_started_again_under_its_key_is_another_job_and_keeps_its_id():
    fleet = fleet_of(hello(session="1" * 16), run_of(3, session="1" * 16), gone(START + 10, "1" * 16, finished=True))
    fleet.ingest(hello(session="2" * 16, started=START + 20, time=START + 20))
    found = {job.id: (job.state, job.step) for job in fleet.jobs(START + 21)}
    assert found == {"job1": ("finished", 3), "job1~2": ("starting", None)}


def test_the_same_pid_again_is_another_process():
    fleet = fleet_of(hello(session="1" * 16), gone(START + 5, "1" * 16))
    fleet.ingest(hello(session="2" * 16, started=START + 6))
    assert [job.state for job in fleet.jobs(START + 7)] == ["starting", "lost"]
    assert {job.ranks[0].pid for job in fleet.jobs(START + 7)} == {100}


def test_a_rank_that_is_restarted_takes_the_place_of_the_one_that_ended():
    fleet = Fleet()
    for rank in (0, 1):
        fleet.ingest(hello(session=str(rank) * 16, rank=rank, world_size=2))
        fleet.ingest(beat(START + 60, session=str(rank) * 16))
    fleet.ingest(gone(START + 61, "1" * 16))
    fleet.ingest(hello(session="2" * 16, rank=1, world_size=2, pid=102, started=START + 62, time=START + 62))
    job = only_job(fleet, START + 63)
    assert [(rank.rank, rank.pid, rank.state) for rank in job.ranks] == [(0, 100, "starting"), (1, 102, "starting")]


def test_two_runs_at_a_time_under_one_key_are_told_apart():
    fleet = Fleet()
    for run in (0, 1):
        for rank in (0, 1):
            session = f"{run}{rank}" * 8
            fleet.ingest(hello(session=session, rank=rank, world_size=2, pid=10 * run + rank, started=START + run))
            fleet.ingest(beat(START + 9, session=session))
    jobs = fleet.jobs(START + 10)
    assert sorted([rank.pid for rank in job.ranks] for job in jobs) == [[0, 1], [10, 11]]


@given(st.permutations(range(6)))
def test_jobs_do_not_depend_on_the_order_in_which_processes_are_found(order):
    greetings = [
        hello(session=f"{index}" * 16, rank=index % 2, world_size=2, started=START + 100 * (index // 2), time=START)
        for index in range(6)
    ]
    ends = [gone(START + 100 * (index // 2) + 50, f"{index}" * 16) for index in range(6)]
    fleet = fleet_of(*(greetings[index] for index in order), *(ends[index] for index in order))
    found = [sorted(rank.pid for rank in job.ranks) for job in fleet.jobs(START + 1000)]
    assert found == [[100, 100]] * 3


# ------------------------------------------------------------------ states


def state(fleet, after):
    return only_job(fleet, START + after).state


def test_a_run_from_its_start_to_its_end():
    fleet = fleet_of(hello())
    assert state(fleet, 1) == "starting"
    fleet.ingest(run_of(20))  # half a second each
    assert state(fleet, 10.1) == "live"
    assert state(fleet, 12.1) == "stale"  # four expected steps, and more than two seconds
    fleet.ingest(beat(START + 39))
    assert state(fleet, 60) == "stale"  # heard, however long the step
    assert state(fleet, 69.5) == "lost"
    fleet.ingest(run_of(1, first=21, time=START + 70))
    assert state(fleet, 70.5) == "live"
    fleet.ingest(gone(START + 71, finished=True, exit_code=0))
    assert state(fleet, 72) == "finished"
    assert only_job(fleet, START + 80).age_s == pytest.approx(9)


def test_slow_steps_have_their_time():
    fleet = fleet_of(hello(), steps(*(record(n, time=START + 20 * n, duration=20.0) for n in range(1, 6))))
    fleet.ingest(beat(START + 155))
    assert state(fleet, 159) == "live"
    assert state(fleet, 161) == "stale"


def test_a_process_said_to_be_gone_that_is_heard_again_is_not():
    fleet = fleet_of(hello(), run_of(5), gone(START + 3))
    assert state(fleet, 3.1) == "lost"
    fleet.ingest(beat(START + 4))
    assert state(fleet, 4.1) == "live"


def test_a_process_that_says_itself_that_it_ended_has_ended():
    fleet = fleet_of(hello(), run_of(5), beat(START + 3, state="finished", exit_code=9))
    assert (state(fleet, 3.1), only_job(fleet, START + 3.1).exit_code) == ("finished", 9)


def test_one_lost_rank_does_not_make_the_others_lost_but_is_said():
    fleet = Fleet()
    for rank in range(3):
        fleet.ingest(hello(session=f"{rank}" * 16, rank=rank, world_size=3))
        fleet.ingest(run_of(20, session=f"{rank}" * 16))
    fleet.ingest(gone(START + 10, "1" * 16))
    job = only_job(fleet, START + 10.5)
    assert (job.state, [rank.state for rank in job.ranks]) == ("live", ["live", "lost", "live"])
    assert "lost: rank 1" in job.notes
    assert only_job(fleet, START + 13).state == "stale"  # the others wait for it
    for rank in (0, 2):
        fleet.ingest(gone(START + 14, f"{rank}" * 16, finished=True, exit_code=rank))
    assert (only_job(fleet, START + 15).state, only_job(fleet, START + 15).exit_code) == ("lost", 2)


def test_the_past_can_be_looked_at_again():
    fleet = fleet_of(hello(), run_of(100), gone(START + 51, finished=True))
    then = only_job(fleet, START + 20.1)
    assert (then.state, then.step) == ("live", 40)
    assert only_job(fleet, START + 60).state == "finished"
    assert fleet.jobs(START - 1) == []


# ------------------------------------------------------------------ views


def test_the_whole_job_is_the_sum_over_its_data_parallel_ranks():
    fleet = Fleet()
    for rank in range(2):
        fleet.ingest(hello(session=f"{rank}" * 16, rank=rank, world_size=2, data_parallel=2, total_steps=120))
        fleet.ingest(run_of(20, session=f"{rank}" * 16, loss=1.0 + rank))
    job = only_job(fleet, START + 10)
    assert job.tokens_per_s == pytest.approx(2 * 64 / 0.5)
    assert job.samples_per_s == pytest.approx(16)
    assert (job.batch.data_parallel, job.batch.global_samples, job.batch.global_tokens) == (2, 8, 128)
    assert (job.step, job.loss, job.eta_s) == (20, 1.5, 50.0)


def test_the_loss_of_a_job_is_of_one_step():
    fleet = Fleet()
    for rank, count in enumerate((21, 20)):
        session = f"{rank}" * 16
        fleet.ingest(hello(session=session, rank=rank, world_size=2, data_parallel=2))
        fleet.ingest(steps(*(record(seq, loss=10.0 * seq + rank) for seq in range(1, count + 1)), session=session))
    job = only_job(fleet, START + 10.5)
    assert (job.step, job.loss) == (20, 200.5)


def test_tensor_parallel_ranks_see_the_same_tokens():
    fleet = Fleet()
    for rank in range(4):
        fleet.ingest(hello(session=f"{rank}" * 16, rank=rank, world_size=4, data_parallel=2))
        fleet.ingest(run_of(20, session=f"{rank}" * 16))
    assert only_job(fleet, START + 10).tokens_per_s == pytest.approx(2 * 64 / 0.5)


def test_how_many_ranks_see_other_data_is_never_guessed():
    fleet = fleet_of(hello(world_size=4), run_of(20))
    job = only_job(fleet, START + 10)
    assert (job.tokens_per_s, job.batch.global_samples, job.batch.micro) == (None, None, 2)
    assert "which of the 4 processes" in job.unavailable["tokens_per_s"]
    assert "which of the 4 processes" in job.unavailable["batch.global_samples"]


def test_ranks_that_are_not_heard_are_taken_to_be_like_the_others_and_that_is_said():
    job = only_job(fleet_of(hello(world_size=8, data_parallel=8), run_of(20)), START + 10)
    assert job.tokens_per_s == pytest.approx(8 * 128)
    assert job.notes == ["1 of 8 ranks heard: rates take the others to be like these"]


def test_a_loss_that_is_no_number_is_named_with_its_step():
    fleet = fleet_of(hello(), run_of(20, loss=2.0), steps(record(21, loss=math.nan, grad_norm=math.inf)))
    job = only_job(fleet, START + 10.5)
    assert math.isnan(job.loss)
    assert job.grad_norm == math.inf
    assert job.unavailable["loss"] == "NaN at step 21"
    assert job.unavailable["grad_norm"] == "infinite at step 21"
    assert fleet.series("job1", "loss", START + 9, START + 12, 1)[0].mean == 2.0


def test_a_lost_run_keeps_its_last_values_but_no_rates():
    job = only_job(
        fleet_of(hello(total_steps=100), run_of(20, loss=2.0, learning_rate=0.1), gone(START + 11)), START + 12
    )
    assert (job.loss, job.learning_rate, job.step) == (2.0, 0.1, 20)
    assert (job.tokens_per_s, job.samples_per_s, job.eta_s) == (None, None, None)
    assert job.unavailable["tokens_per_s"] == job.unavailable["eta_s"] == "the run is lost"


def test_the_agent_knows_best_why_something_is_missing():
    reason = "the loader is iterated by a C extension"
    fleet = fleet_of(hello(unavailable={"phases_s.data_wait": reason, "model": "no module"}), run_of(20))
    job = only_job(fleet, START + 10)
    assert job.unavailable["phases_s.data_wait"] == reason
    assert job.unavailable["model.parameters"] == job.unavailable["model"] == "no module"
    assert job.unavailable["eta_s"] == "the number of steps is not known; give it with attach(total_steps=…)"


def test_a_value_that_is_there_has_no_reason_why_it_is_not():
    fleet = fleet_of(hello(unavailable={"loss": "not yet"}), run_of(20, loss=2.0))
    assert "loss" not in only_job(fleet, START + 10).unavailable


def test_before_the_first_step_that_is_the_reason():
    job = only_job(fleet_of(hello()), START + 1)
    assert job.unavailable["step"] == job.unavailable["tokens_per_s"] == job.unavailable["phases_s"] == "no step yet"
    assert job.unavailable["exit_code"] == "the run has not ended"


def test_sampled_values_are_the_newest_of_the_window():
    fleet = fleet_of(hello(), steps(*(record(n, grad_norm=float(n) if n % 7 == 0 else None) for n in range(1, 21))))
    assert only_job(fleet, START + 10).grad_norm == 14.0


def test_several_optimizers_are_named_by_the_step_they_closed():
    fleet = fleet_of(hello(optimizers=["Adam", "SGD"]), steps(record(1, optimizer=1)))
    assert only_job(fleet, START + 1).optimizer == "SGD"


def test_what_the_user_logs_is_kept_by_name():
    fleet = fleet_of(hello(), steps(record(1, user={"acc": 0.5}), record(2, user={"bad": math.nan}), record(3)))
    job = only_job(fleet, START + 2)
    assert job.user == {"acc": 0.5}
    assert job.unavailable["user.bad"] == "NaN"


def test_the_fullest_process_and_the_dearest_agent_are_shown():
    fleet = Fleet()
    for rank in range(2):
        session = f"{rank}" * 16
        fleet.ingest(hello(session=session, rank=rank, world_size=2, data_parallel=2))
        memory = AgentMemory(allocated=100 * (rank + 1), process_rss=5)
        cost = AgentCost(us_per_step=10.0, share_of_step=0.01 * (rank + 1))
        fleet.ingest(beat(START, session=session, memory=memory, overhead=cost))
    job = only_job(fleet, START + 1)
    assert (job.memory.allocated, job.overhead.share_of_step) == (200, 0.02)


def test_the_noise_scale_is_estimated_from_all_ranks():
    fleet = Fleet()
    for rank in range(2):
        session = f"{rank}" * 16
        fleet.ingest(hello(session=session, rank=rank, world_size=2, data_parallel=2))
        for seq in range(1, 41):
            sample = NoiseSample(total=1.0 + seq % 3 / 10, parts=[0.4, 0.4 + seq % 5 / 50])
            fleet.ingest(steps(record(seq, noise=sample), session=session))
    job = only_job(fleet, START + 20)
    assert job.noise.state == "number"
    assert job.noise.steps_measured == 40
    assert job.noise.b_noise_sequences == pytest.approx(job.noise.phi * 8)


def test_without_a_measured_step_the_noise_has_a_reason():
    job = only_job(fleet_of(hello(unavailable={"noise": "BatchNorm couples the samples"}), run_of(20)), START + 10)
    assert job.noise.state == "unsupported"
    assert job.unavailable["noise.phi"] == "BatchNorm couples the samples"


# ------------------------------------------------------------------ GPUs


def gpu(uuid, **fields):
    return Gpu(uuid=uuid, index=0, **fields)


def _device(uuid):
    return Device(type="cuda", index=0, uuid=uuid)


def test_gpus_are_joined_by_uuid_with_and_without_its_prefix():
    fleet = fleet_of(hello(device=_device("AB-CD")), run_of(20))
    for second in range(8, 11):
        sample = [gpu("GPU-ab-cd", utilization=0.5, power_w=300.0), gpu("GPU-ef")]
        fleet.ingest(GpuSample(time=START + second, host="vm", gpus=sample))
    job = only_job(fleet, START + 10)
    assert [one.uuid for one in job.gpus] == ["GPU-ab-cd"]
    assert fleet.series("job1", "gpu_util", START + 8, START + 10, 1)[0].mean == 0.5
    assert fleet.series("job1", "gpu_power", START + 8, START + 10, 1)[0].mean == 300
    assert len(fleet.gpus(START + 10).found) == 2


@pytest.mark.parametrize(
    ("device", "sample", "reason"),
    [
        (None, None, "it trains on cpu"),
        ("ab", None, "NVML has not been read"),
        ("ab", GpuSample(time=START, host="h", gpus=[], reason="no driver"), "no driver"),
        ("ab", GpuSample(time=START, host="h", gpus=[gpu("GPU-xy")]), "not among those seen here"),
        ("ab", GpuSample(time=START - 60, host="h", gpus=[gpu("GPU-ab")]), "gone silent"),
    ],
)
def test_why_there_is_no_gpu(device, sample, reason):
    fleet = fleet_of(hello(device=_device(device)) if device else hello(), *([sample] if sample else []))
    job = only_job(fleet, START + 1)
    assert job.gpus == []
    assert reason in job.unavailable["gpus"]


def test_an_end_is_not_known_before_its_time() -> None:
    fleet = Fleet()
    fleet.ingest(hello())
    fleet.ingest(run_of(20))
    fleet.ingest(beat(START + 10, state="finished", exit_code=3))
    (before,), (after,) = fleet.jobs(START + 9.9), fleet.jobs(START + 10)
    assert (before.state, before.exit_code) == ("live", None)
    assert (after.state, after.exit_code) == ("finished", 3)
