"""Whether a mixture of experts uses its experts."""

from __future__ import annotations

from bsmon.diagnosis.rules.base import Rule

BALANCE = "a stronger balance loss or bias update, router z-loss, a lower learning rate for the router"

EXPERTS: tuple[Rule, ...] = (
    Rule(
        name="dropped tokens",
        label="moe_imbalance",
        axis="experts",
        signal="drop_excess",
        enter=0.02,
        leave=0.005,
        source="drop > 0.5% note, > 2% warn (proposed), beyond twice what balanced routing drops",
        headline="{drop_rate:.1%} of the assignments are dropped",
        evidence=(
            "dropped {drop_rate:.1%} of assignments at worst",
            "balanced routing would drop {drop_expected:.1%}",
            "worst in {drop_layer}",
        ),
        advice="a larger capacity factor, or " + BALANCE,
        gain="capacity factor {roomier_factor:.3g} would drop about {roomier_drop:.1%}, by the shares measured now",
        check="the load per expert: if it is even, the capacity is too small for this batch, not the router wrong",
        confidence=0.85,
        critical=0.20,
    ),
    Rule(
        name="hot expert",
        label="moe_imbalance",
        axis="experts",
        signal="hot_expert",
        enter=1.9,
        leave=1.5,
        source="one expert > 50% of the tokens (proposed; wandb/senpai 2960), at twice the mean or nearly",
        headline="{hot_place} takes {hot_share:.0%} of the tokens",
        evidence=("{hot_place}: {hot_share:.0%} of the tokens, {hot_ratio:.1f} times the mean",),
        advice=BALANCE,
        check="the shares over the next thousand steps: an even split refutes it",
        confidence=0.9,
        severity="crit",
    ),
    Rule(
        name="dead experts",
        label="moe_imbalance",
        axis="experts",
        signal="dead_experts",
        enter=1.0,
        leave=1.0,
        source="no token where 1000 were expected (proposed; wandb/senpai 2960)",
        headline="{dead_experts:.0f} experts get no token",
        evidence=("{dead_experts:.0f} experts without a token", "in {dead_place}"),
        advice=BALANCE + "; re-initialise the dead experts' router rows",
        check="a longer window: a token for each expert refutes it",
        confidence=0.9,
        severity="crit",
    ),
    Rule(
        name="slow dispatch",
        label="moe_imbalance",
        axis="experts",
        signal="dispatch_slowdown",
        enter=1.5,
        leave=1.2,
        source="MaxVio 0.5 makes a step up to 50% slower (prime-rl 905)",
        headline="dispatch takes {dispatch_slowdown:.1f} times as long as with even experts",
        evidence=("all-to-all {dispatch_slowdown:.1f} times as long as with balanced routing",),
        advice=BALANCE + "; experts placed so that hosts are evenly loaded",
        check="the same dispatch with random routing: if it is as slow, it is the network",
        confidence=0.6,
        deciding=("hot_ratio",),
    ),
)
