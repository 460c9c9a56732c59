"""The table of operations: the one place that names them, their messages and their scopes."""

from __future__ import annotations

import msgspec

from perdure.engine.protocol import attempts, triggers, workers
from perdure.engine.protocol.scope import Scope


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One operation. `scopes`: a key needs one of them; none: any key. `may_repeat`: it may be
    sent again if an answer was lost."""

    name: str
    request: type[msgspec.Struct]
    answer: type[msgspec.Struct]
    scopes: tuple[Scope, ...]
    may_repeat: bool = True


_WORK = (Scope.WORK,)
_READ_OR_WORK = (Scope.READ, Scope.WORK)


def _operation(
    name: str,
    request: type[msgspec.Struct],
    answer: type[msgspec.Struct],
    scopes: tuple[Scope, ...],
    *,
    may_repeat: bool = True,
) -> Operation:
    return Operation(
        name=name, request=request, answer=answer, scopes=scopes, may_repeat=may_repeat
    )


OPERATIONS: dict[str, Operation] = {
    it.name: it
    for it in (
        _operation("hello", workers.HelloRequest, workers.HelloAnswer, ()),
        _operation("declare", workers.DeclareRequest, workers.DeclareAnswer, _WORK),
        _operation("heartbeat", workers.HeartbeatRequest, workers.HeartbeatAnswer, _WORK),
        # A second answer would not tell what the first one handed over.
        _operation("claim", attempts.ClaimMessage, attempts.ClaimAnswer, _WORK, may_repeat=False),
        _operation("renew", attempts.RenewRequest, attempts.RenewAnswer, _WORK),
        _operation("report", attempts.ReportRequest, attempts.ReportAnswer, _WORK),
        _operation(
            "return_claims", attempts.ReturnClaimsRequest, attempts.ReturnClaimsAnswer, _WORK
        ),
        _operation("log", attempts.LogRequest, attempts.LogAnswer, _WORK),
        _operation("trigger", triggers.TriggerRequest, triggers.TriggerAnswer, (Scope.TRIGGER,)),
        _operation("results", triggers.ResultsRequest, triggers.ResultsAnswer, _READ_OR_WORK),
        _operation("hints", workers.HintsRequest, workers.HintsAnswer, _READ_OR_WORK),
        _operation("tasks", workers.TasksRequest, workers.TasksAnswer, _WORK),
    )
}
