"""What may happen, and what follows: every rule and policy, as pure functions.

Each `decide_*` takes the run as it is and the storage time, and answers with the events to
append. An empty answer means that there is nothing to do. Who may call which:

- `create`: triggers, schedules, reruns, retries; anyone with the right
- `lease`: the worker that holds the lease, proven by its token
- `recovery`: maintenance, once nobody holds a live lease
- `operator`: operators, at any time
"""

from perdure.core.decide.create import (
    NewRun,
    continuing,
    decide_alike,
    decide_create,
    decide_rerun,
    decide_retry,
    timeless,
)
from perdure.core.decide.lease import (
    Claim,
    decide_claim,
    decide_failure,
    decide_interruption,
    decide_release,
    decide_renewal,
    decide_return,
    decide_shutdown,
    decide_start,
    decide_stop,
    decide_success,
    decide_unserved,
)
from perdure.core.decide.operator import (
    decide_cancel,
    decide_delivery,
    decide_dispatch,
    decide_pause,
    decide_reschedule,
    decide_resume,
    decide_skip,
    decide_wake,
)
from perdure.core.decide.recovery import decide_attention, decide_expiry, decide_recovery

__all__ = [
    "Claim",
    "NewRun",
    "continuing",
    "decide_alike",
    "decide_attention",
    "decide_cancel",
    "decide_claim",
    "decide_create",
    "decide_delivery",
    "decide_dispatch",
    "decide_expiry",
    "decide_failure",
    "decide_interruption",
    "decide_pause",
    "decide_recovery",
    "decide_release",
    "decide_renewal",
    "decide_rerun",
    "decide_reschedule",
    "decide_resume",
    "decide_retry",
    "decide_return",
    "decide_shutdown",
    "decide_skip",
    "decide_start",
    "decide_stop",
    "decide_success",
    "decide_unserved",
    "decide_wake",
    "timeless",
]
