"""For all suites: hypothesis on a busy machine, where a slow draw is no finding, and ctrl+c as a terminal gives it."""

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell ignores it for what it starts in the background,
    signal.signal(signal.SIGINT, signal.default_int_handler)  # and what the tests start would inherit that
