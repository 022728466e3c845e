"""Snapshots as text and as the contract's JSON."""

from __future__ import annotations

import json
import math
import re

import msgspec
import pytest
from agents import START, beat, gone, hello, record, run_of, steps

from bsmon.model import Alert, Device, Gpu, GpuSample, MoeCounts, Regime, RouterInfo, Snapshot
from bsmon.report import plain
from bsmon.report.changes import Changes
from bsmon.report.json import contract, document, line
from bsmon.store import Fleet

# The contract's names, by part; a part in a list is one of its items.
CONTRACT = {
    "": "schema time host agent_versions jobs gpus alerts unavailable",
    "jobs": """id name state source host ranks world_size started step loss grad_norm learning_rate optimizer
        step_time_s tokens_per_s samples_per_s token_source phases_s batch model mfu noise moe eta_s total_steps
        loss_source exit_code memory gpus regime overhead user dropped_records""",
    "jobs.ranks": "rank pid host device state age_s",
    "jobs.step_time_s": "median p95",
    "jobs.phases_s": "data_wait forward backward optimizer communication other",
    "jobs.batch": "micro accumulation data_parallel global_samples global_tokens sequence_length",
    "jobs.model": "parameters active_parameters trainable_parameters flops_per_token convention",
    "jobs.mfu": "value achievable peak_flops peak_source",
    "jobs.noise": """state reason phi phi_low phi_high b_noise_sequences b_noise_tokens steps_measured window
        estimator coverage verdict""",
    "jobs.moe": "layers dropped_rate load_cv max_over_mean expected_tokens_per_expert",
    "jobs.moe.layers": """name router experts top_k capacity_factor capacity dropless assignments tokens_per_expert
        padding_per_expert dropped_assignments dropped_rate tokens_fully_dropped load_variance load_cv
        cv_sampling max_over_mean entropy dead_experts sampled_steps""",
    "jobs.memory": """allocated reserved peak device_total parameters gradients optimizer activations_per_micro
        largest_micro_batch""",
    "jobs.regime": """headline label time memory statistics experts confidence evidence missing advice gain check
        since""",
    "jobs.overhead": "us_per_step share_of_step budget sampling",
    "gpus": """uuid index name utilization memory_used memory_total temperature_c power_w power_limit_w
        sm_clock_mhz throttle energy_j sm_active tensor_active dram_active""",
    "alerts": "id job rule severity where value limit since state message",
}
ALERT = Alert("x1", "a", "drop_rate", "warn", "layer 3", 0.1, 0.05, START, "raised", "10% of the assignments dropped")
EVIL = "\x1b[31mrun[bold]\u202e"


def snapshot_of(*events, now=START + 10, alerts=(), **fields):
    fleet = Fleet()
    for event in events:
        fleet.ingest(event)
    gpus = fleet.gpus(now)
    unavailable = {"gpus": gpus.reason} if gpus.reason else {}
    return Snapshot(
        time=now,
        host="here",
        jobs=fleet.jobs(now),
        gpus=gpus.found,
        alerts=list(alerts),
        unavailable=unavailable,
        **fields,
    )


def moe_run(**fields):
    counts = MoeCounts(layer=0, tokens=64, assignments=128, assigned=[40, 40, 28, 20], dropped=8, calls=2)
    router = RouterInfo(name="L0", router="top2", experts=4, top_k=2, capacity_factor=1.0, tag="exact")
    return [
        hello(routers=[router], device=Device(type="cuda", index=0, uuid="ab"), total_steps=100, **fields),
        run_of(20, loss=2.0, moe=[counts]),
        GpuSample(
            time=START + 10, host="here", gpus=[Gpu(uuid="GPU-ab", index=0, unavailable={"energy_j": "too old"})]
        ),
    ]


def parts_of(whole, path):
    """Every object at a path; a list stands for its items."""
    found = [whole]
    for name in path.split(".") if path else []:
        found = [item[name] for item in found if item[name] is not None]
        found = [item for value in found for item in (value if isinstance(value, list) else [value])]
    return found


def nulls(value, path=""):
    if value is None:
        yield path
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from nulls(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from nulls(item, f"{path}.{index}")


@pytest.mark.parametrize("run", [[hello()], [hello(), run_of(20)], moe_run()], ids=["starting", "dense", "moe"])
def test_every_name_of_the_contract_is_there_and_every_null_has_a_reason(run):
    found = json.loads(document(snapshot_of(*run, alerts=[ALERT])))
    for part, names in CONTRACT.items():
        for one in parts_of(found, part):
            assert set(names.split()) <= set(one), part
    assert len(list(parts_of(found, "jobs.moe.layers"))) == (len(run) > 2)
    assert [set(one) for one in found["jobs"][0]["gpus"]] == [set(one) for one in found["gpus"]]
    found_nulls = list(nulls({name: value for name, value in found.items() if name != "unavailable"}))
    assert found_nulls
    for path in found_nulls:
        parts = path.split(".")
        reasons = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
        assert any(found["unavailable"].get(reason) for reason in reasons), path
    assert "not known" not in found["unavailable"].values()


def test_a_value_that_is_there_is_not_unavailable():
    found = contract(snapshot_of(*moe_run()))
    missing = set(nulls(found["jobs"][0], "jobs.0")) | set(nulls(found["gpus"], "gpus"))
    groups = {path.rpartition(".")[0] for path in missing}
    assert {path for path in found["unavailable"] if path.startswith("jobs")} <= missing | groups


def test_reasons_are_joined_under_their_job():
    first, second = (
        hello(session="1" * 16, job="a"),
        hello(session="2" * 16, job="b", unavailable={"loss": "no backward"}),
    )
    found = contract(snapshot_of(first, second))
    index = [job["id"] for job in found["jobs"]].index("b")
    assert found["unavailable"][f"jobs.{index}.loss"] == "no backward"
    assert found["unavailable"][f"jobs.{index}.gpus"] == "it trains on cpu, not on a GPU that NVML knows"
    assert all("unavailable" not in job for job in found["jobs"])


def test_a_gpu_keeps_its_own_reasons():
    found = contract(snapshot_of(*moe_run()))
    assert found["unavailable"]["jobs.0.gpus.0.energy_j"] == found["unavailable"]["gpus.0.energy_j"] == "too old"
    assert "unavailable" not in found["gpus"][0]


def test_nan_and_infinity_are_null_with_their_step():
    run = [hello(), run_of(19), steps(record(20, loss=math.nan, grad_norm=math.inf, learning_rate=-math.inf))]
    text = line(snapshot_of(*run))
    found = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert "\n" not in text
    assert (found["jobs"][0]["loss"], found["jobs"][0]["grad_norm"]) == (None, None)
    assert found["unavailable"]["jobs.0.loss"] == "NaN at step 20"
    assert found["unavailable"]["jobs.0.grad_norm"] == "infinite at step 20"


def test_a_number_that_is_none_is_null_wherever_it_is():
    alert = msgspec.structs.replace(ALERT, value=math.nan, limit=math.inf)
    found = contract(snapshot_of(hello(), alerts=[alert]))
    assert (found["alerts"][0]["value"], found["alerts"][0]["limit"]) == (None, None)
    assert found["unavailable"]["alerts.0.value"] == "NaN"
    assert found["unavailable"]["alerts.0.limit"] == "infinite"


def test_a_users_own_number_may_have_any_name():
    found = contract(snapshot_of(hello(), steps(record(1, user={"unavailable": 1.0, "a.b": 2.0, "": 3.0}))))
    assert found["jobs"][0]["user"] == {"unavailable": 1.0, "a.b": 2.0, "": 3.0}


def test_no_job_is_an_object_all_the_same():
    found = json.loads(document(snapshot_of()))
    assert found["jobs"] == found["alerts"] == found["gpus"] == []
    assert found["unavailable"] == {"gpus": "NVML has not been read"}


# ------------------------------------------------------------------ text


def three_jobs():
    return [
        hello(session="1" * 16, job="a", name="dense"),
        run_of(20, session="1" * 16, loss=2.0),
        hello(session="2" * 16, job="b", name="模型" * 12),
        gone(START + 5, session="2" * 16, finished=True, exit_code=1),
        hello(session="3" * 16, job="c", name="ranks", world_size=2, data_parallel=2),
        run_of(4, session="3" * 16),
    ]


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_text_is_aligned_and_no_wider_than_asked(width):
    from rich.cells import cell_len

    snapshot = snapshot_of(*three_jobs(), alerts=[ALERT])
    texts = [plain.fleet(snapshot, width), plain.listing(snapshot, width), plain.nothing(["/tmp/x: nothing"], width)]
    texts += [plain.detail(snapshot, job, width) for job in snapshot.jobs]
    for text in texts:
        assert max(cell_len(one) for one in text.splitlines()) <= width
        assert "\x1b" not in text
    column = plain.fleet(snapshot, 200).splitlines()[0].index("TOK/S") + len("TOK/S")
    dense = next(one for one in plain.fleet(snapshot, 200).splitlines() if "dense" in one)
    assert dense[:column].endswith(" 128")


def test_the_table_has_a_row_a_job_and_the_alerts_that_stand():
    cleared = Alert("x2", "c", "stall", "warn", "", 1.0, 2.0, START, "cleared", "it was stalled")
    text = plain.fleet(snapshot_of(*three_jobs(), alerts=[ALERT, cleared]), 160)
    assert len([one for one in text.splitlines() if "dense" in one and "128" in one]) == 1
    assert "X exit 1" in text
    assert "10% of the assignments dropped" in text
    assert "it was stalled" not in text


def test_one_job_tells_everything_of_it():
    snapshot = snapshot_of(*moe_run(), beat(START + 10))
    text = plain.detail(snapshot, snapshot.jobs[0], 120)
    for said in (
        "20 of 100",
        "2 micro x 2 accumulation x 1 DP = 4 samples",
        "L0",
        "step time",
        "noise scale",
    ):
        assert said in text, said


def test_names_from_outside_reach_no_terminal():
    snapshot = snapshot_of(hello(name=EVIL, host=EVIL), run_of(20))
    for text in (plain.fleet(snapshot), plain.detail(snapshot, snapshot.jobs[0]), plain.listing(snapshot)):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert all("\x1b" not in text for text in Changes().lines(snapshot))


def test_the_drawing_is_ascii_but_for_names():
    snapshot = snapshot_of(*moe_run(), alerts=[ALERT])
    assert plain.fleet(snapshot).isascii()
    assert plain.listing(snapshot).isascii()


# ------------------------------------------------------------------ changes


def test_a_line_a_change_and_none_without():
    changes = Changes()
    events = [hello(), run_of(20, loss=2.0)]
    first = list(changes.lines(snapshot_of(*events)))
    assert len(first) == 1
    assert re.fullmatch(r"\d\d:\d\d:\d\d  run  live  step 20  loss 2.00  tok/s 128  step time 500ms", first[0])
    assert list(changes.lines(snapshot_of(*events))) == []
    events.append(gone(START + 11, finished=True, exit_code=3))
    (ended,) = changes.lines(snapshot_of(*events, now=START + 12))
    assert "live -> finished with exit code 3" in ended
    (forgotten,) = changes.lines(snapshot_of())
    assert "no longer kept" in forgotten


def test_verdicts_and_alerts_are_told_when_they_change():
    changes = Changes()
    snapshot = snapshot_of(hello(job="a"), run_of(20), alerts=[ALERT])
    assert "! warn raised: 10% of the assignments dropped" in list(changes.lines(snapshot))[-1]
    snapshot.jobs[0].regime = Regime(label="input_bound", evidence=["data wait 44% of the step"])
    (verdict,) = changes.lines(snapshot)
    assert "verdict: input-bound  data wait 44%" in verdict
    assert list(changes.lines(snapshot)) == []
    snapshot.alerts[0] = Alert(
        **{name: getattr(ALERT, name) for name in ALERT.__struct_fields__} | {"state": "cleared"}
    )
    assert "warn cleared" in next(iter(changes.lines(snapshot)))
