"""The state machine as a picture. Positions are laid out by hand; what is drawn is checked
against `lifecycle.ARROWS`: no arrow that does not exist, and none left out."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.core.run.lifecycle import ARROWS, EventType, Status

_S, _E = Status, EventType

WIDTH, HEIGHT = 1090, 590
NODE_HEIGHT = 44

BY_TIME = (_S.SCHEDULED, _S.QUEUED)
AGAIN = (_S.RETRYING, _S.RELEASED, _S.WAITING)
HELD = (_S.CLAIMED, _S.RUNNING)


@dataclass(frozen=True)
class Box:
    """A rounded rectangle with a caption."""

    x: int
    y: int
    width: int
    height: int
    caption: str = ""


@dataclass(frozen=True)
class Edge:
    """A drawn line: which arrows it stands for, its way, and what is written beside it."""

    sources: tuple[Status, ...]
    events: tuple[EventType, ...]
    targets: tuple[Status, ...]
    path: str
    style: str = ""
    labels: tuple[tuple[int, int, str, str], ...] = ()  # x, y, anchor, text
    heads: bool = True


REGIONS = (
    Box(20, 84, 370, 436, "Nobody holds it"),
    Box(540, 84, 210, 436, "A worker holds it"),
    Box(860, 84, 210, 436, "Ended for good"),
)
GROUPS = (
    Box(36, 124, 338, 96),
    Box(202, 286, 172, 218),
)

# Left edge, top, width, and the words under the name.
NODES: dict[Status, tuple[int, int, int, str]] = {
    _S.SCHEDULED: (50, 150, 136, "due later"),
    _S.QUEUED: (224, 150, 136, "waits for a worker"),
    _S.PAUSED: (50, 372, 118, "held back"),
    _S.RETRYING: (218, 302, 140, "after a failure"),
    _S.RELEASED: (218, 372, 140, "given back until later"),
    _S.WAITING: (218, 442, 140, "for a signal or child"),
    _S.CLAIMED: (565, 150, 160, "not begun"),
    _S.RUNNING: (565, 290, 160, "the attempt executes"),
    _S.CANCELLATION_REQUESTED: (551, 430, 188, "asked to stop"),
    _S.SKIPPED: (880, 124, 170, "a policy said no"),
    _S.EXPIRED: (880, 190, 170, "too late to begin"),
    _S.SUCCEEDED: (880, 256, 170, "finished"),
    _S.FAILED: (880, 322, 170, "no retry is due"),
    _S.DEAD_LETTERED: (880, 388, 170, "an operator decides"),
    _S.CANCELLED: (880, 454, 170, "on request"),
}

EDGES = (
    Edge(
        (_S.SCHEDULED, _S.QUEUED),
        (_E.DELIVERY_REQUESTED, _E.RESCHEDULED),
        BY_TIME,
        "M 186 165 H 224 M 224 180 H 186",
    ),
    Edge(
        BY_TIME,
        (_E.LEASE_CLAIMED,),
        (_S.CLAIMED,),
        "M 374 172 H 565",
        "main",
        ((466, 163, "middle", "lease_claimed"),),
    ),
    Edge(
        AGAIN,
        (_E.LEASE_CLAIMED,),
        (_S.CLAIMED,),
        "M 374 336 H 402 V 172",
        "main",
        ((410, 300, "start", "when due"),),
        heads=False,
    ),
    Edge(
        (_S.CLAIMED,),
        (_E.STARTED,),
        (_S.RUNNING,),
        "M 645 194 V 290",
        "main",
        ((653, 246, "start", "started"),),
    ),
    Edge(
        HELD,
        (_E.LEASE_RETURNED, _E.DELIVERY_REQUESTED),
        BY_TIME,
        "M 565 188 H 374 M 565 302 H 530 V 188",
        "back",
        (
            (523, 206, "end", "lease_returned"),
            (523, 221, "end", "delivery_requested"),
            (523, 238, "end", "(lease expired)"),
        ),
    ),
    Edge(
        (_S.RUNNING, _S.CANCELLATION_REQUESTED),
        (_E.RETRY_SCHEDULED, _E.RELEASED),
        AGAIN,
        "M 565 322 H 430 V 424 H 374",
        "",
        ((438, 372, "start", "retry_scheduled"), (438, 388, "start", "released")),
    ),
    Edge(
        AGAIN,
        (_E.DELIVERY_REQUESTED, _E.RESCHEDULED),
        BY_TIME,
        "M 318 286 V 220",
        "",
        ((310, 250, "end", "delivery_requested"), (310, 266, "end", "rescheduled")),
    ),
    Edge(
        (*BY_TIME, _S.RETRYING, _S.RELEASED),
        (_E.PAUSED,),
        (_S.PAUSED,),
        "M 84 220 V 372 M 202 394 H 168",
        "",
        ((78, 300, "end", "paused"),),
    ),
    Edge(
        (_S.PAUSED,),
        (_E.RESUMED,),
        BY_TIME,
        "M 128 372 V 220",
        "",
        ((135, 340, "start", "resumed"),),
    ),
    Edge(
        HELD,
        (_E.CANCELLATION_REQUESTED,),
        (_S.CANCELLATION_REQUESTED,),
        "M 645 334 V 430 M 725 182 H 738 V 412 H 700 V 430",
        "",
        ((637, 378, "end", "cancellation"), (637, 393, "end", "_requested")),
    ),
    Edge(
        (_S.RUNNING, _S.CANCELLATION_REQUESTED),
        (_E.SUCCEEDED, _E.FAILED, _E.DEAD_LETTERED),
        (_S.SUCCEEDED, _S.FAILED, _S.DEAD_LETTERED),
        "M 725 312 H 808 M 739 446 H 808 V 278 H 880 M 808 344 H 880 M 808 410 H 880",
        "main",
        ((757, 305, "start", "outcome"),),
    ),
    Edge(
        (_S.CLAIMED,),
        (_E.FAILED, _E.DEAD_LETTERED),
        (_S.FAILED, _S.DEAD_LETTERED),
        "M 725 166 H 828 V 356 H 880 M 828 356 V 422 H 880",
        "back",
        ((757, 159, "start", "refused"),),
    ),
    Edge(
        (_S.CANCELLATION_REQUESTED,),
        (_E.CANCELLED,),
        (_S.CANCELLED,),
        "M 739 464 H 880",
        "",
        ((757, 480, "start", "cancelled"),),
    ),
    Edge(
        (*BY_TIME, _S.PAUSED),
        (_E.SKIPPED, _E.EXPIRED),
        (_S.SKIPPED, _S.EXPIRED),
        "M 205 124 V 52 H 848 V 146 H 880 M 848 146 V 212 H 880",
        "",
        ((465, 44, "middle", "skipped · expired: only before the first attempt"),),
    ),
    Edge(
        (*BY_TIME, *AGAIN, _S.PAUSED),
        (_E.CANCELLED,),
        (_S.CANCELLED,),
        "M 205 520 V 552 H 965 V 498",
        "",
        ((465, 544, "middle", "cancelled: at once, there is nobody to ask"),),
    ),
)

# Accepted by the reducer for other histories, but made by no decision: recovery comes first.
NOT_DRAWN = {(_S.RUNNING, _E.LEASE_CLAIMED, _S.CLAIMED)}


def draw() -> str:
    """The SVG text. Raises AssertionError if picture and state machine disagree."""
    check()
    body = [_region(box) for box in REGIONS]
    body += [_rect(box, "group", 12) for box in GROUPS]
    body += [_edge(edge) for edge in EDGES]
    body += [_start()]
    body += [_node(status) for status in Status]
    return _FRAME.format(width=WIDTH, height=HEIGHT, style=_STYLE, body="\n".join(body))


def check() -> None:
    """Every status stands somewhere; every arrow is drawn, and nothing else is."""
    assert set(NODES) == set(Status), "a status is missing from the picture"
    real = {
        (arrow.source, arrow.event, target)
        for arrow in ARROWS.values()
        for target in arrow.targets
        if target is not arrow.source
    }
    drawn = {step for edge in EDGES for step in _steps(edge)}
    for edge in EDGES:
        assert set(edge.sources) <= {step[0] for step in _steps(edge) & real}, f"idle: {edge}"
        assert set(edge.targets) == {step[2] for step in _steps(edge) & real}, f"idle: {edge}"
    missing = real - drawn - NOT_DRAWN
    assert not missing, f"not drawn: {sorted(missing)}"
    assert real >= NOT_DRAWN, "left out, but no arrow any more"


def _steps(edge: Edge) -> set[tuple[Status, EventType, Status]]:
    """The arrows a line stands for: of its sources, events and targets, those that exist."""
    return {
        (source, event, target)
        for source in edge.sources
        for event in edge.events
        if (source, event) in ARROWS
        for target in edge.targets
        if target in ARROWS[source, event].targets
    }


def _region(box: Box) -> str:
    caption = f'<text class="caption" x="{box.x + 16}" y="{box.y + 25}">{box.caption}</text>'
    return f"{_rect(box, 'region', 16)}\n{caption}"


def _rect(box: Box, css: str, radius: int) -> str:
    place = f'x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}"'
    return f'<rect class="{css}" {place} rx="{radius}"/>'


def _node(status: Status) -> str:
    x, y, width, words = NODES[status]
    middle = x + width // 2
    css = f"node {_kind(status)}"
    box = _rect(Box(x, y, width, NODE_HEIGHT), css, 10)
    name = f'<text class="name" x="{middle}" y="{y + 19}">{status}</text>'
    return f'{box}\n{name}\n<text class="words" x="{middle}" y="{y + 34}">{words}</text>'


def _kind(status: Status) -> str:
    if status is Status.SUCCEEDED:
        return "good"
    if status in (Status.FAILED, Status.DEAD_LETTERED):
        return "bad"
    if status in (Status.CANCELLED, Status.EXPIRED, Status.SKIPPED):
        return "neutral"
    return "leased" if status in (*HELD, Status.CANCELLATION_REQUESTED) else "free"


def _edge(edge: Edge) -> str:
    """One path per stroke; only strokes that end at a box get a head."""
    strokes = [f"M {stroke.strip()}" for stroke in edge.path.split("M")[1:]]
    lines = [_stroke(stroke, edge) for stroke in strokes]
    lines += [
        f'<text class="label" x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'
        for x, y, anchor, text in edge.labels
    ]
    return "\n".join(lines)


def _stroke(stroke: str, edge: Edge) -> str:
    head = ' marker-end="url(#head)"' if edge.heads and stroke not in _JOINS else ""
    css = f"edge {edge.style}".strip()
    return f'<path class="{css}" d="{stroke}"{head}/>'


# Strokes that run into another line instead of a box.
_JOINS = {"M 725 312 H 808", "M 565 302 H 530 V 188"}


def _start() -> str:
    return (
        '<circle class="start" cx="292" cy="100" r="6"/>\n'
        '<path class="edge main" d="M 292 106 V 150" marker-end="url(#head)"/>\n'
        '<text class="label" x="303" y="104">created</text>'
    )


_STYLE = """
text { font-family: ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
.card { fill: #ffffff; stroke: #d8dee4; }
.region { fill: #f6f8fa; stroke: #d8dee4; }
.group { fill: none; stroke: #b6c0cb; stroke-dasharray: 3 4; }
.caption { font-size: 13px; font-weight: 600; fill: #57606a; }
.node { stroke-width: 1.4; }
.free { fill: #ddf4ff; stroke: #54aeff; }
.leased { fill: #fff8c5; stroke: #d4a72c; }
.good { fill: #dafbe1; stroke: #4ac26b; }
.bad { fill: #ffebe9; stroke: #ff8182; }
.neutral { fill: #eaeef2; stroke: #afb8c1; }
.name { font-size: 13px; font-weight: 600; text-anchor: middle; fill: #1f2328; }
.words { font-size: 10.5px; text-anchor: middle; fill: #57606a; }
.label { font-size: 11.5px; fill: #424a53; }
.edge { fill: none; stroke: #8c959f; stroke-width: 1.4; }
.main { stroke: #424a53; stroke-width: 2; }
.back { stroke-dasharray: 5 4; }
.head, .start { fill: #57606a; }
@media (prefers-color-scheme: dark) {
  .card { fill: #0d1117; stroke: #30363d; }
  .region { fill: #161b22; stroke: #30363d; }
  .group { stroke: #484f58; }
  .caption { fill: #9198a1; }
  .words { fill: #b1bac4; }
  .free { fill: #0c2d6b; stroke: #388bfd; }
  .leased { fill: #4b2900; stroke: #bb8009; }
  .good { fill: #033a16; stroke: #2ea043; }
  .bad { fill: #5d0f12; stroke: #f85149; }
  .neutral { fill: #21262d; stroke: #6e7681; }
  .name { fill: #f0f6fc; }
  .label { fill: #c9d1d9; }
  .edge { stroke: #7d8590; }
  .main { stroke: #c9d1d9; }
  .head, .start { fill: #9ea7b3; }
}
"""

_FRAME = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"
 aria-label="The life of a run: statuses and the events between them">
<!-- Made by scripts/generate_docs.py from perdure.core.run.lifecycle. Do not edit. -->
<style>{style}</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"
 markerUnits="userSpaceOnUse" orient="auto"><path class="head" d="M 0 0 L 8 4 L 0 8 z"/></marker>
</defs>
<rect class="card" x="0.5" y="0.5" width="1089" height="589" rx="14"/>
{body}
</svg>
"""
