"""What bsmon knows, as plain typed data: what arrives from agents, and what is shown.

The first half mirrors ``bsmon_agent.wire`` and is decoded with every field bounded. The second half is the shape of
``bsmon snapshot --json``: a value that can't be known is None, and ``unavailable`` says why by its path.
Units: seconds, bytes, rates per second, shares 0..1, unless a name says otherwise.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

Name = Annotated[str, Meta(max_length=400)]
Text = Annotated[str, Meta(max_length=2000)]
Count = Annotated[int, Meta(ge=0, le=2**62)]
Small = Annotated[int, Meta(ge=0, le=2**31)]
Seconds = Annotated[float, Meta(ge=0)]
Moment = Annotated[float, Meta(ge=0, le=2**33)]  # Unix seconds; NaN is refused
Session = Annotated[str, Meta(min_length=8, max_length=64, pattern="^[0-9a-f]+$")]
PerExpert = Annotated[list[Count], Meta(max_length=4096)]
Reasons = Annotated[dict[Name, Text], Meta(max_length=200)]

JobState = Literal["starting", "pending", "live", "stale", "lost", "finished"]
Severity = Literal["note", "warn", "crit"]
AgentState = Literal["starting", "live", "finished"]


# ---------------------------------------------------------------- what an agent sends


class Device(Struct, frozen=True, omit_defaults=True):
    """Where a process trains. ``uuid`` joins it to NVML."""

    type: Name = "cpu"
    index: Small | None = None
    name: Name | None = None
    uuid: Name | None = None


class ModelInfo(Struct, frozen=True, omit_defaults=True):
    """The trained model: counts of parameters, and bytes of what it keeps."""

    name: Name | None = None
    parameters: Count | None = None
    trainable: Count | None = None
    active: Count | None = None
    parameter_bytes: Count | None = None
    gradient_bytes: Count | None = None
    optimizer_bytes: Count | None = None
    matmul: Count | None = None  # parameters that a token meets in a product: k of E experts, no embedding look-ups
    matmul_frozen: Count | None = None  # of these, frozen, but with a backward through them
    matmul_forward_only: Count | None = None  # of these, frozen, and before all that is trained
    matmul_recomputed: Count | None = None  # of these, computed again in the backward (activation checkpointing)
    recomputed_layers: Small | None = None  # attention layers that are computed again
    attention_layers: Small | None = None
    attention_width: Count | None = None  # heads x head size of a layer, the mean of queries' and values'
    attention_window: Count | None = None  # keys that a query meets at most, in
    windowed_layers: Small | None = None  # so many of the layers
    compute_dtype: Name | None = None  # of the matrix products: bfloat16, float16, float32, tf32, float8
    devices: Small | None = None  # that this process computes on


class RouterInfo(Struct, frozen=True, omit_defaults=True):
    """A router that was found. ``tag`` says how far its counts can be trusted, ``reason`` why they cannot."""

    name: Name
    router: Name = ""
    experts: Annotated[int, Meta(ge=0, le=4096)] | None = None
    top_k: Small | None = None
    capacity_factor: float | None = None
    capacity: Small | None = None
    dropless: bool | None = None
    tag: Literal["exact", "derived", "logits-only", "unsupported", "unknown"] = "unknown"
    reason: Text | None = None
    calls: Count | None = None
    classes: Small | None = None  # what the router scores, where that is more than its experts (skip, zero experts)


class Hello(Struct, frozen=True, omit_defaults=True):
    """Who a training process is."""

    schema: int
    session: Session
    pid: Small
    host: Name
    name: Name
    job: Name  # equal for all ranks of one job
    started: Moment
    time: Moment = 0.0
    pid_start: Count | None = None
    rank: Small = 0
    local_rank: Small = 0
    world_size: Annotated[int, Meta(ge=1, le=2**24)] = 1
    data_parallel: Annotated[int, Meta(ge=1, le=2**24)] | None = None
    launcher: Name | None = None
    command: Annotated[list[Text], Meta(max_length=64)] = []
    python: Name | None = None
    torch: Name | None = None
    agent: Name | None = None
    device: Device = field(default_factory=Device)
    total_steps: Count | None = None
    optimizers: Annotated[list[Name], Meta(max_length=64)] = []
    model: ModelInfo = field(default_factory=ModelInfo)
    token_source: Name | None = None
    loss_source: Name | None = None
    grad_norm_source: Name | None = None
    routers: Annotated[list[RouterInfo], Meta(max_length=512)] = []
    unavailable: Reasons = {}


class MoeCounts(Struct, frozen=True, omit_defaults=True):
    """What one router did in one optimizer step of one process (``wire.MOE_FIELDS``)."""

    layer: Annotated[int, Meta(ge=0, lt=512)]
    tokens: Count = 0
    assignments: Count = 0
    assigned: PerExpert | None = None
    kept: PerExpert | None = None
    padding: PerExpert | None = None
    dropped: Count | None = None
    fully_dropped: Count | None = None
    policy_skipped: Count | None = None
    entropy: float | None = None
    probability: Annotated[list[float], Meta(max_length=4096)] | None = None
    calls: Count | None = None
    groups: Count | None = None


class NoiseSample(Struct, frozen=True, omit_defaults=True):
    """Squared gradient norms of one step: the whole, and the parts that add up to it (``wire.NOISE_FIELDS``)."""

    total: float
    parts: Annotated[list[float], Meta(max_length=4096)]
    weights: Annotated[list[float], Meta(max_length=4096)] | None = None
    estimator: Name = "accumulation"
    coverage: float | None = None
    processes: Annotated[int, Meta(ge=1, le=2**24)] = 1  # whose data is in ``total``
    seen: Annotated[int, Meta(ge=1, le=2**24)] = 1  # of these, whose parts are here; not on the wire
    residual: float | None = None  # |g - sum h_r|^2 / |g|^2 over a few elements


class Record(Struct, frozen=True, omit_defaults=True):
    """One optimizer step of one process (``wire.RECORD_FIELDS``)."""

    seq: Count
    step: Count
    time: Moment
    duration: Seconds | None = None
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    optimizer: Small | None = None
    samples: Count | None = None
    tokens: Count | None = None
    padding: Count | None = None
    micro: Count | None = None
    accumulation: Count | None = None
    sequence_length: Count | None = None
    data_wait: Seconds | None = None
    forward: Seconds | None = None
    backward: Seconds | None = None
    optimizer_time: Seconds | None = None
    communication: Seconds | None = None
    cpu_time: Seconds | None = None  # of the training thread: tells work from waiting
    skipped: bool = False
    moe: Annotated[list[MoeCounts], Meta(max_length=512)] | None = None
    noise: NoiseSample | None = None
    user: Annotated[dict[Name, float], Meta(max_length=64)] | None = None


class Steps(Struct, frozen=True):
    schema: int
    session: Session
    records: Annotated[list[Record], Meta(max_length=512)]


class AgentCost(Struct, frozen=True, omit_defaults=True):
    """What the agent costs its training, as it measures it in its own callbacks."""

    us_per_step: float | None = None
    share_of_step: float | None = None
    budget: float | None = None  # the budget, microseconds a step
    sampling: Annotated[dict[Name, float], Meta(max_length=64)] = {}  # probe -> share of steps it looks at


class AgentMemory(Struct, frozen=True, omit_defaults=True):
    allocated: Count | None = None
    reserved: Count | None = None
    peak: Count | None = None
    device_total: Count | None = None
    process_rss: Count | None = None


class Beat(Struct, frozen=True, omit_defaults=True):
    """The heartbeat."""

    schema: int
    session: Session
    time: Moment
    seq: Count = 0
    state: AgentState = "live"
    exit_code: int | None = None
    dropped_records: Count = 0
    overhead: AgentCost = field(default_factory=AgentCost)
    memory: AgentMemory = field(default_factory=AgentMemory)
    notes: Annotated[list[Text], Meta(max_length=32)] = []


class End(Struct, frozen=True):
    schema: int
    session: Session
    seq: Count


class Gone(Struct, frozen=True):
    """A source says that a process ended, or that it can no longer be heard. ``exit_code`` None: it is not known."""

    session: Session
    time: Moment
    finished: bool
    exit_code: int | None = None


class RankWindow(Struct, frozen=True):
    """What one process reported in a stretch of time, oldest record first."""

    hello: Hello
    beat: Beat | None
    records: list[Record]


# ---------------------------------------------------------------- what is shown (the contract's names)


class RankView(Struct):
    rank: int
    pid: int
    host: str
    device: str | None
    state: JobState
    age_s: float | None
    step: int | None = None
    data_wait: float | None = None
    step_time_s: float | None = None


class StepTime(Struct):
    median: float | None = None
    p95: float | None = None


class Phases(Struct):
    """Mean seconds a step in each phase; ``other`` is what is left of the step."""

    data_wait: float | None = None
    forward: float | None = None
    backward: float | None = None
    optimizer: float | None = None
    communication: float | None = None
    other: float | None = None


class Batch(Struct):
    micro: int | None = None
    accumulation: int | None = None
    data_parallel: int | None = None
    global_samples: int | None = None
    global_tokens: int | None = None
    sequence_length: int | None = None
    padding_share: float | None = None


class ModelView(Struct):
    name: str | None = None
    parameters: int | None = None
    active_parameters: int | None = None
    trainable_parameters: int | None = None
    flops_per_token: float | None = None
    convention: str | None = None


class Mfu(Struct):
    """Model FLOPs a second over the nominal dense peak of the job's devices, by ``ModelView.convention``."""

    value: float | None = None
    achievable: float | None = None  # the same over what matmuls were measured to reach on this device
    peak_flops: float | None = None  # of one device, in the dtype in use
    peak_source: str | None = None
    causal: float | None = None  # ``value`` with half the attention: what a causal mask needs
    hfu: float | None = None  # ``value`` with what activation checkpointing computes again


class Noise(Struct):
    state: Literal["measuring", "number", "lower_bound", "not_identifiable", "unsupported", "invalid"] | None = None
    reason: str | None = None
    phi: float | None = None
    phi_low: float | None = None
    phi_high: float | None = None
    b_noise_sequences: float | None = None
    b_noise_tokens: float | None = None
    steps_measured: int | None = None
    window: int | None = None
    estimator: str | None = None
    coverage: float | None = None
    verdict: Literal["noise_limited", "efficient", "past_noise_scale"] | None = None
    signal: float | None = None  # the unbiased |G|^2 of the window
    noise: float | None = None  # the unbiased tr(Sigma)/B of the window
    steps_to_quarter: int | None = None  # more measured steps until the interval is about +-25%


class MoeLayer(Struct):
    name: str
    router: str
    experts: int | None = None
    top_k: int | None = None
    capacity_factor: float | None = None
    capacity: int | None = None
    dropless: bool | None = None
    tag: str = "unknown"
    reason: str | None = None
    assignments: int | None = None
    tokens_per_expert: list[int] | None = None
    padding_per_expert: list[int] | None = None
    kept_per_expert: list[int] | None = None
    dropped_assignments: int | None = None
    dropped_rate: float | None = None
    tokens_fully_dropped: int | None = None
    policy_skipped: int | None = None
    load_variance: float | None = None
    load_cv: float | None = None
    cv_sampling: float | None = None
    max_over_mean: float | None = None
    entropy: float | None = None  # of the router, normalised by ln E
    load_entropy: float | None = None  # of the load, normalised by ln E
    dead_experts: list[int] | None = None
    expected_drop: float | None = None  # what balanced sampling would drop at this capacity
    sampled_steps: int = 0


class Moe(Struct):
    layers: list[MoeLayer] = []
    dropped_rate: float | None = None
    load_cv: float | None = None
    max_over_mean: float | None = None
    expected_tokens_per_expert: float | None = None


class MemoryView(Struct):
    allocated: int | None = None
    reserved: int | None = None
    peak: int | None = None
    device_total: int | None = None
    parameters: int | None = None
    gradients: int | None = None
    optimizer: int | None = None
    activations_per_micro: int | None = None
    largest_micro_batch: int | None = None
    process_rss: int | None = None


class Gpu(Struct):
    """One GPU as NVML tells it. Each figure is None where the GPU or its driver does not give it."""

    uuid: str
    index: int
    name: str | None = None
    utilization: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: float | None = None
    throttle: list[str] | None = None
    energy_j: float | None = None
    sm_active: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    unavailable: dict[str, str] = {}


class GpuSample(Struct, frozen=True):
    """What NVML said at one moment. ``reason`` is set when nothing can be read, and says why and what to do."""

    time: Moment
    host: Name
    gpus: Annotated[list[Gpu], Meta(max_length=1024)]
    reason: Text | None = None


Event = Hello | Steps | Beat | End | Gone | GpuSample  # what a source hands on


class Regime(Struct):
    """The diagnosis: a headline, one finding an axis, and what it rests on."""

    headline: str | None = None  # for people
    label: str | None = None  # one of the contract's labels
    time: str | None = None
    memory: str | None = None
    statistics: str | None = None
    experts: str | None = None
    confidence: float | None = None
    severity: Severity | None = None
    evidence: list[str] = []
    missing: list[str] = []
    advice: list[str] = []
    gain: str | None = None
    check: str | None = None
    since: float | None = None


class Overhead(Struct):
    us_per_step: float | None = None
    share_of_step: float | None = None
    budget: float | None = None
    sampling: dict[str, float] = {}


class Job(Struct):
    id: str
    name: str
    state: JobState
    source: str
    host: str
    ranks: list[RankView] = []
    world_size: int = 1
    started: float | None = None
    step: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    optimizer: str | None = None
    step_time_s: StepTime = field(default_factory=StepTime)
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    token_source: str | None = None
    phases_s: Phases = field(default_factory=Phases)
    batch: Batch = field(default_factory=Batch)
    model: ModelView = field(default_factory=ModelView)
    mfu: Mfu = field(default_factory=Mfu)
    noise: Noise = field(default_factory=Noise)
    moe: Moe | None = None
    eta_s: float | None = None
    total_steps: int | None = None
    loss_source: str | None = None
    grad_norm_source: str | None = None
    exit_code: int | None = None
    memory: MemoryView = field(default_factory=MemoryView)
    gpus: list[Gpu] = []
    regime: Regime = field(default_factory=Regime)
    overhead: Overhead = field(default_factory=Overhead)
    user: dict[str, float] = {}
    dropped_records: int = 0
    skipped_steps: int = 0
    age_s: float | None = None
    notes: list[str] = []
    unavailable: dict[str, str] = {}  # path below this job -> why; joined into the snapshot's own on output


class Alert(Struct):
    id: str
    job: str
    rule: str
    severity: Severity
    where: str
    value: float | None
    limit: float | None
    since: float
    state: Literal["raised", "acknowledged", "cleared"]
    message: str


class Snapshot(Struct):
    """Everything known at one moment: what ``bsmon snapshot --json`` prints."""

    time: float
    host: str
    schema: int = 1
    agent_versions: list[str] = []
    jobs: list[Job] = []
    gpus: list[Gpu] = []
    alerts: list[Alert] = []
    unavailable: dict[str, str] = {}
